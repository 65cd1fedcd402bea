"""Replicas as containers: their settings, and their listing as one server."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from docker.models.containers import Container
from plan_samples import plan_of

from orchestrator.core.errors import NameTakenError
from orchestrator.core.origin import Origin
from orchestrator.core.paths import Home
from orchestrator.plan.plan import DetectedPatches, EnvVar, Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.plan.units import Role
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.docker.container import (
    RUN_DIR,
    UNIT,
    container_labels,
    docker_run_line,
    render,
    spec_of,
)
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.servers.group import servers_of

IMAGE = "deploy/pair:0123456789ab"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("mi355x-tp4x2", "server.host=0.0.0.0", "server.api_key_env=SERVING_KEY")


@pytest.fixture
def pair(plan: Plan) -> Artifacts:
    return render(plan, None, IMAGE)


class Daemon:
    """A Docker API whose listed containers have every requested label."""

    containers = property(lambda self: self)

    def __init__(self, *labels: Mapping[str, str]) -> None:
        self._labels = labels

    def list(self, *, filters: Mapping[str, Sequence[str]], **_: bool) -> list[Container]:
        return [
            Container({"Id": f"{number}", "Labels": labels})
            for number, labels in enumerate(self._labels)
            if {label.partition("=")[0] for label in filters["label"]} <= labels.keys()
        ]

    def get(self, number: str) -> Container:
        state = {"Status": "running", "StartedAt": "2026-01-01T00:00:00Z"}
        return Container({"Id": number, "State": state, "RestartCount": 0})


def runtime(home: Path, *labels: Mapping[str, str]) -> DockerRuntime:
    result = DockerRuntime(Home(home), "unix:///nowhere")
    result._host.__dict__["client"] = Daemon(*labels)
    return result


def labels_of(plan: Plan, run: Path, unit_name: str = "") -> dict[str, str]:
    return container_labels(plan, "pair", unit_name) | {RUN_DIR: str(run / unit_name)}


def test_replicas_are_on_loopback_and_gateway_on_host_network(pair: Artifacts) -> None:
    assert [spec_of(server).publish for server in pair.replicas] == [
        ("127.0.0.1", 30008),
        ("127.0.0.1", 30016),
    ]
    gateway = docker_run_line(pair, "pair")
    assert "--network host" in gateway
    assert "--host 0.0.0.0 \\\n  --port 30000" in gateway
    assert not [word for word in ("--device", "--publish", "mem_info_vram_used") if word in gateway]
    assert "--config /run/secrets/deploy.yaml" in gateway
    assert "--name deploy-pair--replica-2 " in docker_run_line(pair.replicas[1], "pair", "replica-2")


def test_replica_waits_for_vram_of_its_own_gpus(pair: Artifacts) -> None:
    assert "sed -n 5,8p" in docker_run_line(pair.replicas[1], "pair", "replica-2")


def test_detected_patches_change_environment_but_not_plan(plan: Plan) -> None:
    variable = EnvVar(name="HSA_FOUND", value="one", origin=Origin.RECIPE, source="")
    rendered = render(plan, None, IMAGE, DetectedPatches(ids=frozenset({"found"}), env=(variable,)))
    assert (rendered.plan, tuple(server.plan for server in rendered.replicas)) == (plan, replica_plans(plan))
    assert all(("HSA_FOUND", "one") in server.command.env for server in rendered.replicas)


def test_containers_with_one_name_form_one_server(plan: Plan, tmp_path: Path) -> None:
    first, second = replica_plans(plan)
    run = tmp_path / "1"  # its parent is searched for other runs of the name
    docker = runtime(
        tmp_path,
        labels_of(second, run, "replica-2"),
        labels_of(plan, run),
        labels_of(first, run, "replica-1"),
    )
    units = docker.find()
    servers = servers_of(docker, units)
    assert [(unit.role, Path(unit.run_dir).name, unit.state.status) for unit in servers[0].units] == [
        (Role.GATEWAY, "1", Status.RUNNING),
        (Role.SERVER, "replica-1", Status.RUNNING),
        (Role.SERVER, "replica-2", Status.RUNNING),
    ]
    assert [(server.url, server.plan_digest, server.run_dir) for server in servers] == [
        ("http://127.0.0.1:30000", plan.digest, str(run))
    ]
    assert [server.url for server in servers[0].replicas] == ["http://127.0.0.1:30008", "http://127.0.0.1:30016"]


def test_replicas_without_gateway_are_exited(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json())
    docker = runtime(tmp_path, labels_of(replica_plans(plan)[0], tmp_path, "replica-1"))
    (server,) = servers_of(docker, docker.find())
    assert (server.runtime_id, server.url, server.run_dir) == ("", "", str(tmp_path))
    assert server.plan_digest == plan.digest
    state = server.current_state()
    assert server.state == state
    assert (state.status, state.detail) == (Status.EXITED, "the gateway was not started")


def test_container_with_invalid_label_is_ignored(plan: Plan, tmp_path: Path) -> None:
    assert runtime(tmp_path, labels_of(plan, tmp_path) | {UNIT: "replica-zwei"}).find() == ()


def test_name_of_another_run_is_not_taken(plan: Plan, pair: Artifacts, tmp_path: Path) -> None:
    theirs = runtime(tmp_path, labels_of(replica_plans(plan)[0], tmp_path / "theirs", "replica-1"))
    with pytest.raises(NameTakenError, match="server `pair` already exists"):
        theirs.start(pair.replicas[1], name="pair", run_dir=tmp_path / "ours/replica-2", secrets={})
