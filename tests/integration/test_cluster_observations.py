"""Check how often a cluster is queried and how an outage is reported, with a script as kubectl."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import PartialResultError, Status
from orchestrator.runtimes.kubernetes import observations
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime

SERVERS = 50
# Logs its arguments. The context `gone` never answers; others answer unless a file `silent` exists.
KUBECTL = """#!/bin/sh
cd "$(dirname "$0")" && echo "$@" >> calls
case "$* $(ls)" in *"context gone"*|*silent*) echo "Unable to connect to the server: i/o timeout" >&2; exit 1 ;; esac
case "$*" in *--raw*/deployments*) cat Deployment.json ;; *--raw*/pods*) cat Pod.json ;;
    *events*) echo '{"items": []}' ;; *) cat all.json ;; esac
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the script, which reports fifty running servers, and return its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    lists(folder, [obj for number in range(SERVERS) for obj in server(number)])
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(observations, "_FRESH", 0.0)  # no observation is fresh
    return folder


def lists(folder: Path, items: list[dict[str, object]]) -> None:
    """Let the script list these objects."""
    for kind in ("Deployment", "Pod", "all"):
        some = [item for item in items if kind in {item["kind"], "all"}]
        (folder / f"{kind}.json").write_text(json.dumps({"items": some}))


def server(number: int, **labels: str) -> Iterator[dict[str, object]]:
    annotations = {"deploy.plan": "0", "deploy.profile": "p", "deploy.url": "http://x:1"}
    metadata = {
        "labels": labels or {"deploy.name": f"s{number}"},
        "annotations": annotations,
        "creationTimestamp": "2026-11-22T10:00:00Z",
    }
    running = {"name": "server", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-22T10:00:00Z"}}}
    yield {"kind": "Deployment", "metadata": {**metadata, "uid": f"u{number}"}, "spec": {"replicas": 1}}
    pod = {
        "kind": "Pod",
        "metadata": {**metadata, "name": f"p{number}", "uid": f"v{number}"},
        "spec": {"nodeName": "n"},
    }
    yield {**pod, "status": {"phase": "Running", "containerStatuses": [running]}}


def home_with(folder: Path, *contexts: str | None) -> Home:
    """Return a home from which a server was started in each of these clusters."""
    home = Home(folder / "home")
    for context in contexts:
        run = home.runs / f"in-{context or 'current'}" / "20261122T000000Z-00000000"
        run.mkdir(parents=True)
        (run / "plan.json").write_text(json.dumps({"kubernetes": {"context": context, "namespace": "default"}}))
        (run / "plan.json").chmod(0o600)
    return home


def count_calls(kubectl: Path) -> int:
    return len((kubectl / "calls").read_text().splitlines())


def test_listing_servers_queries_cluster_once_per_kind(kubectl: Path, tmp_path: Path) -> None:
    runtime = KubernetesRuntime(home_with(tmp_path, None))
    units = runtime.find()
    assert [unit.state.status for unit in units] == [Status.RUNNING] * SERVERS
    assert count_calls(kubectl) == 2
    runtime.state(units[0])
    assert count_calls(kubectl) == 3


def test_states_of_all_replicas_need_one_query(kubectl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [{"deploy.name": "s", "deploy.unit": f"replica-{number}"} for number in (1, 2)]
    lists(kubectl, [obj for number in (0, 1) for obj in server(number, **labels[number])])
    runtime = KubernetesRuntime(home_with(tmp_path, None))
    units = runtime.find()
    runtime._seen.forget()
    monkeypatch.setattr(observations, "_FRESH", 60.0)
    assert [runtime.state(unit).status for unit in units] == [Status.RUNNING] * 2
    assert count_calls(kubectl) == 3


def test_warnings_are_requested_before_the_first_container_and_once_per_later_run(
    kubectl: Path, tmp_path: Path
) -> None:
    def reports(**status: object) -> int:
        """Set the status of the pod; return the number of queries for warnings when the state is read."""
        lists(kubectl, [deployment, {**pod, "status": status}])
        before = (kubectl / "calls").read_text().count("events")
        runtime.state(unit)
        return (kubectl / "calls").read_text().count("events") - before

    def container(start: str, restarts: int) -> list[dict[str, object]]:
        return [{"name": "server", "restartCount": restarts, "state": {"running": {"startedAt": start}}}]

    deployment, pod = server(0)
    lists(kubectl, [deployment, pod])
    runtime = KubernetesRuntime(home_with(tmp_path, None))
    [unit] = runtime.find()
    assert [reports(), reports()] == [1, 1]
    assert reports(initContainerStatuses=[{"name": "arguments", "state": {"running": {}}}]) == 0
    assert reports(containerStatuses=container("2026-11-22T10:00:00Z", 0)) == 0
    for start, restarts in (("2026-11-22T11:00:00Z", 1), ("2026-11-22T12:00:00Z", 2)):
        assert [reports(containerStatuses=container(start, restarts)) for _ in range(2)] == [1, 0]


def test_unreachable_cluster_does_not_hide_others(kubectl: Path, tmp_path: Path) -> None:
    runtime = KubernetesRuntime(home_with(tmp_path, "gone", "near"))
    with pytest.raises(PartialResultError, match="the cluster of context `gone` does not answer") as caught:
        runtime.find()
    assert len(caught.value.units) == SERVERS
    assert count_calls(kubectl) == 4


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ('Get "https://127.0.0.1:1/api/v1/pods": read tcp 127.0.0.1:2->127.0.0.1:1: read: reset', "does not answer"),
        (
            'Error from server (InternalError): failed calling webhook: Post "https://a/b": reset',
            "the cluster rejected the request",
        ),
    ],
)
def test_broken_connection_is_distinguished_from_rejected_request(kubectl: Path, stderr: str, message: str) -> None:
    (kubectl / "kubectl").write_text(f"#!/bin/sh\necho '{stderr}' >&2\nexit 1\n")
    with pytest.raises(HostError, match=message):
        Cluster("", "default").json("get", "deployments,pods")


def test_cluster_outage_is_reported_once(
    kubectl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = KubernetesRuntime(home_with(tmp_path, None))
    handle = runtime.find()[0]
    runtime.state(handle)
    (kubectl / "silent").touch()
    for _ in range(3):
        assert runtime.state(handle).status is Status.RUNNING
    (kubectl / "silent").unlink()
    runtime.state(handle)
    stderr = capsys.readouterr().err
    assert stderr.count("does not answer: retrying for 5 min") == 1
    assert stderr.count("the cluster answers again") == 1

    (kubectl / "silent").touch()
    monkeypatch.setattr(observations, "MAX_STALENESS", 0.0)
    with pytest.raises(HostError, match="does not answer"):
        runtime.state(handle)
