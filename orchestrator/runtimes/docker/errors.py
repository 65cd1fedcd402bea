"""What the Docker daemon says when a container cannot be made or started, as errors that name the cause."""

import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import requests
import urllib3
from docker.errors import APIError, DockerException

from orchestrator.core.errors import DeployError, HostError, NameTakenError, StartError
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.docker.container import ContainerSpec

# runc names a limit by its number (setrlimit(2)). OFILE is BSD's name of NOFILE.
_LIMITS: Final = {
    getattr(resource, name): name.removeprefix("RLIMIT_").lower()
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}


@contextmanager
def daemon_errors(host: str) -> Iterator[None]:
    """Turn a daemon at `host` that does not answer, or fails, into a HostError; what it refuses passes through."""
    try:
        yield
    except APIError as error:
        if not error.is_server_error():
            raise
        raise HostError(
            f"the Docker daemon at `{host}` fails",
            hint="its own log says why: `journalctl -u docker` on its machine",
            details=f"  {error.explanation or error}",
        ) from error
    except (DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise HostError(
            f"the Docker daemon at `{host}` does not answer",
            hint="`docker version` shows whether it runs and may be used; DOCKER_HOST or --host names another",
            details=f"  {error}",
        ) from error


@dataclass(frozen=True, kw_only=True)
class DaemonRefusal:
    """A container that could not be created or started, with what is needed to say why."""

    said: str  # by the daemon
    artifacts: Artifacts
    spec: ContainerSpec
    holder: Callable[[int], str | None]  # who holds a port of the Docker host, None where that cannot be known

    @property
    def hardware(self) -> str:
        """The file that asks for devices and limits."""
        return f"profiles/hardware/{self.artifacts.plan.hardware.name}.yaml"


def start_error(refusal: DaemonRefusal) -> DeployError:
    """The error to show: the first cause whose words the daemon used."""
    for pattern, explain in _CAUSES:
        if match := re.search(pattern, refusal.said, re.IGNORECASE):
            return explain(match, refusal)
    return StartError("the container could not be started", details=f"  {refusal.said}")


def _device(match: re.Match[str], refusal: DaemonRefusal) -> DeployError:
    return HostError(
        f"this host has no device `{match['device']}`",
        where=f"{refusal.hardware}: container.devices",
        hint=f"`ls -l {match['device']}` on the host: is the GPU driver loaded, is it the right hardware?",
    )


def _limit(match: re.Match[str], refusal: DaemonRefusal) -> DeployError:
    name = _LIMITS.get(int(match["number"]), match["number"])
    asked = next((f" to {limit.hard}" for limit in refusal.spec.needs.ulimits if limit.name == name), "")
    return HostError(
        f"the Docker daemon is not permitted to set the limit `{name}`{asked}",
        where=f"{refusal.hardware}: container.ulimits",
        hint="the daemon itself is confined (it lacks CAP_SYS_RESOURCE): raise its own limit, or ask for less",
    )


def _port(match: re.Match[str], refusal: DaemonRefusal) -> DeployError:
    port = int(match["port"])
    by = refusal.holder(port)
    return HostError(
        f"port {port} is taken" + (f" by {by}" if by else ""),
        where="server.port",
        hint="end what holds it, or choose another with `--set server.port=...`",
    )


def _bind(match: re.Match[str], _: DaemonRefusal) -> DeployError:
    return HostError(
        f"`{match['path']}` does not exist on the Docker host",
        hint="`deploy stage PROFILE` brings the checkpoint there",
    )


def _group(match: re.Match[str], refusal: DaemonRefusal) -> DeployError:
    return HostError(f"the image has no group `{match['group']}`", where=f"{refusal.hardware}: container.groups")


def _name(match: re.Match[str], _: DaemonRefusal) -> DeployError:
    container = match["name"]
    return NameTakenError(
        f"container `{container}` exists",
        hint=f"`deploy status` shows it; `deploy down {container.removeprefix('deploy-').partition('--')[0]}` ends it",
    )


def _image(_: re.Match[str], refusal: DaemonRefusal) -> DeployError:
    return StartError(
        f"the Docker host has no image `{refusal.spec.image}`",
        hint="`deploy build PROFILE` makes it",
    )


def _gpus(_: re.Match[str], refusal: DaemonRefusal) -> DeployError:
    return HostError(
        "the Docker daemon cannot hand out NVIDIA GPUs",
        where=f"{refusal.hardware}: container.all_gpus",
        hint="install the NVIDIA container toolkit and restart the daemon",
    )


def _capabilities(_: re.Match[str], refusal: DaemonRefusal) -> DeployError:
    asked = ", ".join(refusal.spec.needs.cap_add)
    return HostError(
        f"the Docker daemon is not permitted to grant {asked}", where=f"{refusal.hardware}: container.cap_add"
    )


def _disk(_: re.Match[str], refusal: DaemonRefusal) -> DeployError:
    return HostError(
        "the Docker host's disk is full", hint="`docker system df` shows what takes it", details=f"  {refusal.said}"
    )


# The wording of Docker 20.10 and runc 1.1.
_CAUSES: Final[tuple[tuple[str, Callable[[re.Match[str], DaemonRefusal], DeployError]], ...]] = (
    (r'gathering device information while adding custom device "(?P<device>[^"]+)"', _device),
    (r"error setting rlimit type (?P<number>\d+): operation not permitted", _limit),
    (r"listen tcp\d? \S*:(?P<port>\d+): bind: address already in use", _port),
    (r"Bind for \S*:(?P<port>\d+) failed: port is already allocated", _port),
    (r"bind source path does not exist: (?P<path>\S+)", _bind),
    (r"Unable to find group (?P<group>\S+?):", _group),
    (r'container name "/(?P<name>[^"]+)" is already in use', _name),
    (r"no such image", _image),
    (r"could not select device driver", _gpus),
    (r"unable to apply caps", _capabilities),
    (r"no space left on device", _disk),
)
