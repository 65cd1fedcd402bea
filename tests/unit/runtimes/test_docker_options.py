"""A container spec as options of the Docker SDK, and the secret files in the container."""

import dataclasses
import io
import tarfile

from orchestrator.core.secrets import Secret
from orchestrator.engine.launch import SecretDelivery
from orchestrator.plan.plan import Ulimit
from orchestrator.planner.planning import load
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.docker.container import CONFIG_FILE, ContainerSpec, container_argv, render, spec_of
from orchestrator.runtimes.docker.options import archive, container_options, host_options, secret_files

GROUPS = {"video": "44"}
NO_SECRETS = SecretDelivery(config=None, env={})


def rendered(profile: str = "mi355x-tp4dp2") -> tuple[Artifacts, ContainerSpec]:
    plan = load(profile).plan
    artifacts = render(plan, None, "deploy/x:1")
    return artifacts, spec_of(artifacts)


def test_groups_missing_on_host_are_skipped() -> None:
    artifacts, spec = rendered()
    assert spec.needs.groups == ("video", "render")
    assert host_options(artifacts, spec, home="/h", gid=GROUPS.get)["group_add"] == ["44"]


def test_container_is_unprivileged_and_uses_init() -> None:
    artifacts, spec = rendered()
    options = host_options(artifacts, spec, home="/h", gid=GROUPS.get)
    assert "privileged" not in options
    assert options["init"] is True
    assert options["restart_policy"] == {"Name": "on-failure", "MaximumRetryCount": 3}
    assert options["port_bindings"] == {30000: ("127.0.0.1", 30000)}


def test_checkpoints_are_mounted_from_docker_host_home() -> None:
    artifacts, spec = rendered()
    mounts = host_options(artifacts, spec, home="/home/amd/deploy", gid=GROUPS.get)["mounts"]
    assert mounts[0]["Source"] == "/home/amd/deploy/models/glm-5.2-mxfp4"
    assert all(mount["ReadOnly"] for mount in mounts if mount["Type"] == "bind")
    assert all(mount["Type"] == "volume" for mount in mounts[2:])


def test_ulimits_and_nvidia_gpus_are_requested() -> None:
    artifacts, spec = rendered("b200-tp8")
    options = host_options(artifacts, spec, home="/h", gid=GROUPS.get)
    assert {"Name": "memlock", "Soft": -1, "Hard": -1} in options["ulimits"]
    assert options["device_requests"][0]["Capabilities"] == [["gpu"]]
    assert options["log_config"]["Config"] == {"max-size": "128m", "max-file": "8"}

    none = dataclasses.replace(spec, needs=dataclasses.replace(spec.needs, all_gpus=False, ulimits=()))
    assert host_options(artifacts, none, home="/h", gid=GROUPS.get)["device_requests"] == []
    one = dataclasses.replace(
        spec, needs=dataclasses.replace(spec.needs, ulimits=(Ulimit(name="cpu", soft=1, hard=2),))
    )
    assert host_options(artifacts, one, home="/h", gid=GROUPS.get)["ulimits"] == [{"Name": "cpu", "Soft": 1, "Hard": 2}]


def test_api_key_is_in_a_file_not_in_command() -> None:
    artifacts, spec = rendered()
    secrets = SecretDelivery(config=Secret('{"api-key": "sk-1"}'), env={})
    options = container_options(artifacts, spec, secrets)
    assert options["command"] == list(container_argv(artifacts, config=True))
    assert options["command"][-2:] == ["--config", CONFIG_FILE]
    assert "sk-1" not in str(options)
    assert secret_files(secrets)[CONFIG_FILE].reveal() == '{"api-key": "sk-1"}'


def test_environment_secrets_are_sourced_from_a_file() -> None:
    artifacts, spec = rendered()
    secrets = SecretDelivery(config=None, env={"HF_TOKEN": Secret("it's $HOME")})
    options = container_options(artifacts, spec, secrets)
    assert options["command"][:2] == ["sh", "-c"]
    assert options["command"][4:] == list(container_argv(artifacts, config=False))
    assert "HOME" not in str(options)
    (text,) = (secret.reveal() for secret in secret_files(secrets).values())
    assert text == "export HF_TOKEN='it'\"'\"'s $HOME'\n"


def test_command_without_secrets_equals_launch_line() -> None:
    artifacts, spec = rendered()
    command = container_options(artifacts, spec, NO_SECRETS)["command"]
    assert command[-len(artifacts.command.argv) :] == list(artifacts.command.argv)
    assert secret_files(NO_SECRETS) == {}


def test_secret_files_are_readable_only_by_owner() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive({"/run/secrets/a": Secret("b")}))) as tar:
        (entry,) = tar.getmembers()
        file = tar.extractfile(entry)
        assert file is not None
        assert (entry.name, entry.mode, entry.uid, file.read()) == ("run/secrets/a", 0o600, 0, b"b")
