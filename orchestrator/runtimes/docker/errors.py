"""Errors of the Docker daemon when it creates or starts a container, translated to errors that name the cause."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from orchestrator.core.errors import DeployError, HostError, NameTakenError, StartError
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.docker.container import spec_of
from orchestrator.runtimes.docker.sdk import docker, requests, urllib3


@contextmanager
def ignore_missing() -> Iterator[None]:
    """Ignore errors because another process has removed (404) or is removing (409) the container."""
    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            raise


@contextmanager
def daemon_errors(host: str) -> Iterator[None]:
    """Raise HostError if the daemon at `host` fails or does not answer in the block; pass on rejected requests."""
    try:
        yield
    except docker.errors.APIError as error:
        if not error.is_server_error():
            raise
        message = f"the Docker daemon at `{host}` failed"
        hint = "see its log: `journalctl -u docker` on that host"
        raise HostError(message, hint=hint, details=f"  {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        hint = "`docker version` shows whether you can use it; DOCKER_HOST or `--host` selects another"
        raise HostError(f"the Docker daemon at `{host}` does not answer", hint=hint, details=f"  {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Cause:
    """A pattern of a daemon message, and the error for it. `{...}` are groups of the pattern, or keys of `facts`."""

    pattern: str
    message: str
    location: str = ""
    hint: str = ""
    error_class: type[DeployError] = HostError


# The wording of Docker 20.10 and runc 1.1.
_CAUSES: Final = (
    _Cause(
        pattern=r'gathering device information while adding custom device "(?P<device>[^"]+)"',
        message="this host has no device `{device}`",
        location="{hardware}: container.devices",
        hint="load the GPU driver, or choose a profile for this host's hardware: `deploy profiles`",
    ),
    _Cause(
        pattern=r"listen tcp\d? \S*:(?P<port>\d+): bind: address already in use"
        r"|Bind for \S*:(?P<allocated>\d+) failed: port is already allocated",
        message="port {taken} is in use{by}",
        location="server.port",
        hint="stop that program, or choose another port with `--set server.port=PORT`",
    ),
    _Cause(
        pattern=r'container name "/(?P<name>deploy-[^"]+--rank-\d+)" is already in use',
        message="container `{name}` exists",
        hint="`docker --host {host} rm --force {name}` removes it, if its server no longer runs",
        error_class=NameTakenError,
    ),
    _Cause(
        pattern=r'container name "/(?P<name>[^"]+)" is already in use',
        message="container `{name}` exists",
        hint="`deploy status` shows it; `deploy down {server}` stops it",
        error_class=NameTakenError,
    ),
    _Cause(
        pattern=r"no such image",
        message="the Docker host has no image `{image}`",
        hint="`deploy build PROFILE` builds it",
        error_class=StartError,
    ),
    _Cause(
        pattern=r"could not select device driver",
        message="the Docker daemon cannot provide NVIDIA GPUs",
        location="{hardware}: container.all_gpus",
        hint="install the NVIDIA container toolkit and restart the daemon",
    ),
)


def start_error(text: str, artifacts: Artifacts, *, host: str, port_holder: Callable[[int], str | None]) -> DeployError:
    """Return the error for the daemon's message `text` about a container, by the first cause that matches it.

    `host` is the URL of the daemon; `port_holder` returns the program that listens on a port of its host, if any.
    """
    for cause in _CAUSES:
        if match := re.search(cause.pattern, text, re.IGNORECASE):
            groups = match.groupdict()
            port = groups.get("port") or groups.get("allocated")
            holder = port_holder(int(port)) if port else None
            facts = groups | {
                "hardware": f"profiles/hardware/{artifacts.plan.hardware.name}.yaml",
                "image": spec_of(artifacts).image,
                "host": host,
                "taken": port,
                "by": f" by {holder}" if holder else "",
                "server": (groups.get("name") or "").removeprefix("deploy-").partition("--")[0],
            }
            location, hint = cause.location.format_map(facts), cause.hint.format_map(facts)
            return cause.error_class(cause.message.format_map(facts), location=location, hint=hint)
    return StartError("cannot start the container", details=f"  {text}")
