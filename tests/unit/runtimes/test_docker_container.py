"""The settings of a container; complete `docker run` lines are in tests/golden."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import requests
from docker.models.containers import Container

from orchestrator.checkpoints.overlay import overlay_path
from orchestrator.core.paths import Home
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.docker.container import (
    CONFIG_FILE,
    container_env,
    container_labels,
    container_spec,
    docker_run_line,
    render,
)
from orchestrator.runtimes.docker.runtime import DockerRuntime

IMAGE = "deploy/mi355x-tp4dp2-july:0123456789ab"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load("mi355x-tp4dp2-july").plan


def rendered(plan: Plan, image: str = IMAGE) -> Artifacts:
    return render(plan, None, image)


def options(line: str) -> dict[str, list[str]]:
    """Return the options of a `docker run` line with their values."""
    values: dict[str, list[str]] = {}
    words = shlex.split(line.replace("\\\n", ""))[2:]
    words = [word for word in words[: words.index(IMAGE)] if word not in ("--detach", "--init")]
    for option, value in zip(words[::2], words[1::2], strict=True):
        values.setdefault(option, []).append(value)
    return values


def test_container_devices_and_security_come_from_hardware(plan: Plan) -> None:
    line_options = options(docker_run_line(rendered(plan), "glm"))
    assert line_options["--device"] == ["/dev/kfd", "/dev/dri"]
    assert line_options["--security-opt"] == ["seccomp=unconfined"]
    assert line_options["--ipc"] == ["host"]
    assert "--privileged" not in line_options
    assert "--network" not in line_options


def test_groups_are_resolved_to_host_ids(plan: Plan) -> None:
    assert '--group-add "$(getent group render | cut -d: -f3)"' in docker_run_line(rendered(plan), "glm")


def test_port_is_published_on_loopback(plan: Plan) -> None:
    port = plan.server.port
    assert options(docker_run_line(rendered(plan), "glm"))["--publish"] == [f"127.0.0.1:{port}:{port}"]


@pytest.mark.parametrize(
    ("host", "published", "url_host"), [("0.0.0.0", "0.0.0.0", "127.0.0.1"), ("::", "[::]", "[::1]")]
)
def test_public_server_url_uses_loopback(plan: Plan, host: str, published: str, url_host: str) -> None:
    public = dataclasses.replace(plan, server=dataclasses.replace(plan.server, host=host, allow_unauthenticated=True))
    port = plan.server.port
    assert container_spec(public, IMAGE).publish[0] == host
    assert options(docker_run_line(rendered(public), "glm"))["--publish"] == [f"{published}:{port}:{port}"]
    assert container_labels(public, "glm")["deploy.url"] == f"http://{url_host}:{port}"


def test_checkpoint_and_patched_config_are_mounted_read_only(plan: Plan) -> None:
    model, config = container_spec(plan, IMAGE).mounts
    assert model.read_only
    assert config.read_only
    assert config.source == overlay_path(plan)
    assert config.target == f"{model.target}/config.json"


def test_no_config_overlay_without_config_patch(plan: Plan) -> None:
    bare = dataclasses.replace(plan, patches=())
    assert overlay_path(bare) is None
    assert len(container_spec(bare, IMAGE).mounts) == 1


def test_local_checkpoint_is_mounted_from_its_directory(plan: Plan) -> None:
    source = dataclasses.replace(plan.model.checkpoint, source="local", path="/mnt/weights/glm")
    local = dataclasses.replace(plan, model=dataclasses.replace(plan.model, checkpoint=source))
    assert container_spec(local, IMAGE).mounts[0].source == "/mnt/weights/glm"


@pytest.mark.parametrize("change", ["image", "gfx"])
def test_compiled_kernels_are_separated_by_image_and_architecture(plan: Plan, change: str) -> None:
    hardware = dataclasses.replace(plan.hardware, arch="gfx942")
    other = container_spec(dataclasses.replace(plan, hardware=hardware), IMAGE)
    if change == "image":
        other = container_spec(plan, "deploy/mi355x-tp4dp2-july:ba9876543210")
    ours = container_spec(plan, IMAGE)
    assert [cache.target for cache in ours.caches] == [cache.target for cache in other.caches]
    assert not {cache.name for cache in ours.caches} & {cache.name for cache in other.caches}


def test_aiter_compiled_kernels_are_cached(plan: Plan) -> None:
    assert "/sgl-workspace/aiter/aiter/jit" in {cache.target for cache in container_spec(plan, IMAGE).caches}


def test_cpu_server_has_no_kernel_caches() -> None:
    assert container_spec(load("cpu-tiny").plan, IMAGE).caches == ()


def test_labels_form_the_record(plan: Plan) -> None:
    labels = container_labels(plan, "glm")
    assert labels["deploy.name"] == "glm"
    assert labels["deploy.profile"] == "mi355x-tp4dp2-july"
    assert labels["deploy.plan"] == plan.digest
    assert options(docker_run_line(rendered(plan), "glm"))["--label"] == [
        *(f"{k}={v}" for k, v in sorted(labels.items())),
        "deploy.run-dir=$RUN_DIR",
    ]


def test_docker_stop_waits_for_drain(plan: Plan) -> None:
    line_options = options(docker_run_line(rendered(plan), "glm"))
    assert line_options["--stop-timeout"] == [str(plan.timeouts.termination_grace)]
    assert line_options["--restart"] == ["on-failure:3"]


def test_api_key_is_mounted_from_a_file(plan: Plan) -> None:
    with_key = dataclasses.replace(plan, server=dataclasses.replace(plan.server, api_key_env="MY_KEY"))
    line = docker_run_line(rendered(with_key), "glm")
    assert f'source="$API_KEY_FILE",target={CONFIG_FILE},readonly' in line
    assert line.endswith(f"--config {CONFIG_FILE}\n")
    assert "$API_KEY_FILE" not in docker_run_line(rendered(plan), "glm")


def test_profile_overrides_pythonunbuffered(plan: Plan) -> None:
    artifacts = rendered(plan)
    assert ("PYTHONUNBUFFERED", "1") in container_env(artifacts)
    command = dataclasses.replace(artifacts.command, env=(("PYTHONUNBUFFERED", ""),))
    assert container_env(dataclasses.replace(artifacts, command=command)) == (("PYTHONUNBUFFERED", ""),)


def test_arguments_with_spaces_survive_shell_quoting(plan: Plan) -> None:
    artifacts = rendered(plan)
    command = dataclasses.replace(artifacts.command, argv=("python3", "--json", '{"a": "it\'s"}'), env=(("A", "b c"),))
    line = docker_run_line(dataclasses.replace(artifacts, command=command), "glm")
    words = shlex.split(line.replace("\\\n", ""))
    assert words[-2:] == ["--json", '{"a": "it\'s"}']
    assert "A=b c" in words


def test_manually_started_container_is_listed(tmp_path: Path) -> None:
    """The container may have no label `deploy.run-dir`, which once caused a KeyError in `status`."""
    labels = container_labels(load("cpu-tiny").plan, "tiny")
    runtime = DockerRuntime(Home(tmp_path), "unix:///nowhere")
    handle = runtime._unit(Container({"Id": "abc"}), labels)
    assert (handle.name, handle.run_dir) == ("tiny", str(tmp_path / "runs/tiny/unknown"))


def test_container_of_another_program_is_not_listed(tmp_path: Path) -> None:
    """A container with only the label `deploy.name` once caused a KeyError in `status`."""
    ours = container_labels(load("cpu-tiny").plan, "tiny")

    class Daemon:
        """A Docker API with two containers; a listed container has every label of the filter."""

        containers = property(lambda self: self)

        def get(self, number: str) -> Container:
            return Container({"Id": number, "State": {"Status": "running", "StartedAt": ""}, "RestartCount": 0})

        def list(self, *, filters: Mapping[str, Sequence[str]], **_: bool) -> list[Container]:
            return [
                Container({"Id": "abc", "Labels": labels})
                for labels in (ours, {"deploy.name": "blue"})
                if set(filters["label"]) <= labels.keys()
            ]

    runtime = DockerRuntime(Home(tmp_path), "unix:///nowhere")
    runtime._host.__dict__["client"] = Daemon()
    assert [handle.name for handle in runtime.find()] == ["tiny"]


def test_failed_cleanup_does_not_hide_start_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Dying:
        """A daemon that exits while a container is created."""

        api = containers = property(lambda self: self)

        def create_host_config(self, **_: object) -> None:
            raise KeyboardInterrupt

        def list(self, **_: object) -> None:
            raise requests.ConnectionError("refused")

    runtime = DockerRuntime(Home(tmp_path), "unix:///nowhere")
    runtime._host.__dict__["client"] = Dying()
    with pytest.raises(KeyboardInterrupt):
        runtime.start(rendered(load("cpu-tiny").plan), name="tiny", run_dir=tmp_path, secrets={})
    assert (
        "cannot remove the container: the Docker daemon at `unix:///nowhere` does not answer" in capsys.readouterr().err
    )
