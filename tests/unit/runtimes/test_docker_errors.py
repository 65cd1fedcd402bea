"""Translation of daemon errors, recorded from Docker 20.10 with runc 1.1."""

from pathlib import Path

import pytest
import requests
from docker.errors import APIError, DockerException

from orchestrator.core.errors import DeployError, HostError, NameTakenError, StartError
from orchestrator.core.paths import Home
from orchestrator.planner.planning import load
from orchestrator.runtimes.docker.container import render
from orchestrator.runtimes.docker.errors import daemon_errors, start_error
from orchestrator.runtimes.docker.host import DockerHost

SHIM = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
PORT = "driver failed programming external connectivity on endpoint deploy-glm (5839ac1d047d): "


def translate(text: str, profile: str = "mi355x-tp8") -> DeployError:
    artifacts = render(load(profile).plan, None, "deploy/glm:1")
    return start_error(text, artifacts, host="ssh://a", port_holder={30000: "python3 (pid 7)"}.get)


@pytest.mark.parametrize(
    ("text", "error_type", "message"),
    [
        (
            'error gathering device information while adding custom device "/dev/kfd": no such file or directory',
            HostError,
            "this host has no device `/dev/kfd`",
        ),
        (
            f"{PORT}Error starting userland proxy: listen tcp4 127.0.0.1:30000: bind: address already in use",
            HostError,
            "port 30000 is in use by python3 (pid 7)",
        ),
        (f"{PORT}Bind for 127.0.0.1:30001 failed: port is already allocated", HostError, "port 30001 is in use"),
        ("No such image: deploy/glm:1", StartError, "the Docker host has no image `deploy/glm:1`"),
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            HostError,
            "the Docker daemon cannot provide NVIDIA GPUs",
        ),
        (
            'Conflict. The container name "/deploy-glm" is already in use by container "53a36b". You have to remove',
            NameTakenError,
            "container `deploy-glm` exists",
        ),
        (f'{SHIM}exec: "/nope": no such file or directory', StartError, "cannot start the container"),
    ],
)
def test_daemon_error_is_translated(text: str, error_type: type[DeployError], message: str) -> None:
    error = translate(text)
    assert type(error) is error_type
    assert error.message == message


def test_unknown_daemon_error_is_shown_verbatim() -> None:
    assert "something new" in translate("something new").details


@pytest.mark.parametrize("error", [DockerException("no socket"), requests.exceptions.ConnectionError("refused")])
def test_unreachable_daemon_is_named(error: Exception) -> None:
    with pytest.raises(HostError, match=r"`tcp://node:2375` does not answer"), daemon_errors("tcp://node:2375"):
        raise error


def test_invalid_daemon_address_counts_as_unreachable(tmp_path: Path) -> None:
    host = DockerHost(Home(tmp_path), "unix://[")
    with pytest.raises(HostError, match="does not answer"), host.errors():
        host.client.ping()


def test_daemon_failure_includes_its_message() -> None:
    """A restarting daemon responds with 500, which was once reported as an internal error."""
    response = requests.Response()
    response.status_code = 500
    api_error = APIError("500 Server Error", response, "dial unix /run/containerd/containerd.sock: connection refused")
    with (
        pytest.raises(HostError, match=r"the Docker daemon at `tcp://node:2375` failed") as caught,
        daemon_errors("tcp://node:2375"),
    ):
        raise api_error
    assert "containerd.sock" in caught.value.details


def test_daemon_client_errors_are_not_translated() -> None:
    response = requests.Response()
    response.status_code = 409
    with pytest.raises(APIError), daemon_errors("tcp://node:2375"):
        raise APIError("409 Client Error", response, "in use")


def test_name_conflict_of_rank_hints_at_its_host() -> None:
    failure = translate('Conflict. The container name "/deploy-owl--rank-1" is already in use by container "0a1b"')
    assert isinstance(failure, NameTakenError)
    assert failure.message == "container `deploy-owl--rank-1` exists"
    assert failure.hint.startswith("`docker --host ssh://a rm --force deploy-owl--rank-1` removes it")
