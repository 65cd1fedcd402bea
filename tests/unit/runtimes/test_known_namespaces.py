"""The clusters that are queried for a server."""

import json
from pathlib import Path

import pytest
from cluster_samples import HOST_PATH, cluster_plan
from unreadable import unreadable

from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.planner.planning import render_artifacts
from orchestrator.runtimes.base import EXIT_FILE
from orchestrator.runtimes.kubernetes.creation import create_deployment
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.record import deployment_name, object_name
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime, known_namespaces
from orchestrator.runtimes.labels import NAME, PLAN, PROFILE, RUN_DIR, URL

RUNS = {"near": None, "blue": {"context": "one", "namespace": "web"}, "green": {"context": None, "namespace": "web"}}


@pytest.mark.parametrize(
    ("name", "clusters"),
    [
        ("blue", [Cluster("one", "web")]),
        ("near", []),  # a server of another runtime
        ("new", [Cluster("", "web"), Cluster("one", "web")]),
        (None, [Cluster("", "web"), Cluster("one", "web")]),
    ],
)
def test_only_clusters_of_the_named_server_are_queried(
    name: str | None, clusters: list[Cluster], tmp_path: Path
) -> None:
    home = Home(tmp_path)
    for run_name, cluster in RUNS.items():
        run = home.runs / run_name / "20261122T000000Z-00000000"
        run.mkdir(parents=True)
        (run / "plan.json").write_text(json.dumps({"kubernetes": cluster}))
        (run / "plan.json").chmod(0o600)
    assert list(known_namespaces(home, name)) == clusters
    (home.runs / "unreadable").mkdir()
    with unreadable(home.runs / "unreadable"):
        assert list(known_namespaces(home, name)) == clusters
        assert [*known_namespaces(home, "unreadable")] == [Cluster("", "web"), Cluster("one", "web")], (
            "it may be in each"
        )


def test_listing_skips_clusters_of_stopped_servers(tmp_path: Path) -> None:
    run = Home(tmp_path).runs / "blue" / "20261122T000000Z-00000000"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"kubernetes": RUNS["blue"]}))
    (run / "plan.json").chmod(0o600)
    (run / EXIT_FILE).write_text("{}")
    assert known_namespaces(Home(tmp_path)) == ()
    assert known_namespaces(Home(tmp_path), "blue") == (Cluster("one", "web"),)


def test_started_server_ignores_run_directory_from_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the server was once written to the directory that the response of the cluster named."""
    plan = cluster_plan("cpu-tiny", HOST_PATH)
    annotations = {PLAN: "d", PROFILE: "p", URL: "http://x:1", RUN_DIR: str(tmp_path / "elsewhere")}
    created = {"metadata": {"annotations": annotations, "labels": {NAME: "hen"}, "uid": "1"}}
    result = CompletedProgram(argv=("kubectl",), code=0, stdout=json.dumps(created), stderr="")
    for verb in ("create", "apply", "change", "ask"):
        monkeypatch.setattr(Cluster, verb, lambda *_, **__: result)
    monkeypatch.setattr("orchestrator.runtimes.kubernetes.kubectl.free_port", lambda: 1)
    runtime, run_dir = KubernetesRuntime(Home(tmp_path)), tmp_path / "runs/owl/1"
    handle = runtime.start(render_artifacts(plan), name="owl", run_dir=run_dir, secrets={})
    assert (handle.name, handle.run_dir) == ("owl", str(run_dir))


def test_start_reports_differing_object_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        Cluster, "create", lambda _, created: CompletedProgram(argv=(), code=0, stdout=json.dumps(created), stderr="")
    )
    for name, unit_name in (("owl", ""), ("owl-5.3", ""), ("owl-5.3", "replica-1"), ("owl-5.3", "replica-2")):
        metadata = {"name": deployment_name(name, unit_name), "labels": {NAME: name}}
        create_deployment(Cluster("", "default"), {"metadata": metadata})
    expected = object_name("owl-5.3")
    message = f"note: the objects of `owl-5.3` are named `{expected}`: Kubernetes allows no dots and no long names\n"
    assert capsys.readouterr().err == 2 * message
