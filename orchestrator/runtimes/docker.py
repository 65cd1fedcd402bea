"""Servers in Docker containers, here or on a far host. What runs is recorded on the containers, as labels."""

import math
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from requests import codes

from orchestrator.artifacts import Artifacts, ContainerSpec
from orchestrator.errors import StartError
from orchestrator.paths import Home
from orchestrator.render.container import container_labels, container_name
from orchestrator.runtimes.base import Handle, ServerState
from orchestrator.runtimes.docker_errors import Refusal, daemon_errors, start_error
from orchestrator.runtimes.docker_logs import container_log, follow_log, read_log, save_log
from orchestrator.runtimes.docker_options import archive, container_options, host_options, secret_files
from orchestrator.runtimes.docker_state import ABSENT, server_state
from orchestrator.runtimes.procfs import find_process, identity
from orchestrator.runtimes.server_config import Delivery, delivery
from orchestrator.runtimes.tunnel import FarHost, Tunnel, local_run
from orchestrator.secret import Secret
from orchestrator.shell import Result

_STARTER: Final = "deploy.starter"
_RUN_DIR: Final = "deploy.run-dir"


class DockerRuntime:
    """The `docker` runtime. The daemon is the one `host` names, else DOCKER_HOST, else this machine's.

    It is reached at the first use, and an `ssh://` daemon through one connection that ends with this process.
    """

    def __init__(self, home: Home, host: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._home = home
        self._environ = environ
        self._host = host or environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Handle:
        """See `Runtime.start`. A container that could not be started is removed before the error leaves."""
        spec = artifacts.container
        if spec is None:
            raise StartError(f"the plan of `{artifacts.plan.profile}` is not for docker")
        starter = f"{identity(os.getpid())}/{uuid.uuid4()}"
        labels = container_labels(artifacts.plan, name) | {_STARTER: starter, _RUN_DIR: str(run_dir.absolute())}
        with daemon_errors(self._host):
            self._carry_overlays(spec)
            try:
                container = self._create(artifacts, spec, labels=labels, secrets=delivery(artifacts.plan, secrets))
                container.start()
            except APIError as error:
                self._discard(starter)
                said = str(error.explanation or error)
                raise start_error(Refusal(said=said, artifacts=artifacts, spec=spec, holder=self._holder)) from error
            except BaseException:
                self._discard(starter)
                raise
            return self._handle(container, labels)

    def find(self, name: str | None = None) -> tuple[Handle, ...]:
        """See `Runtime.find`."""
        label = "deploy.name" if name is None else f"deploy.name={name}"
        with daemon_errors(self._host):
            found = self._client.containers.list(all=True, filters={"label": label}, sparse=True, ignore_removed=True)
            handles = [self._handle(container, container.attrs["Labels"]) for container in found]
        return tuple(sorted(handles, key=lambda handle: handle.name))

    def state(self, handle: Handle) -> ServerState:
        """See `Runtime.state`. Raises HostError where the daemon does not answer: that is not the same as "gone"."""
        container = self._get(handle)
        return ABSENT if container is None else server_state(container.attrs)

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[str]:
        """See `Runtime.logs`. Follows through restarts; for a container that is gone, what was saved at its stop."""
        container = self._get(handle)
        if container is None:
            yield from read_log(Path(handle.run_dir))
            return
        with daemon_errors(self._host):
            yield from follow_log(container) if follow else container_log(container)

    def stop(self, handle: Handle, *, grace: float) -> None:
        """See `Runtime.stop`. Waits `grace` seconds for running requests to drain; keeps the log."""
        container = self._get(handle)
        if container is None:
            return
        with daemon_errors(self._host), suppress(NotFound):
            container.stop(timeout=math.ceil(grace))
            save_log(container, Path(handle.run_dir))
            self._remove(container)

    def close(self) -> None:
        """End the connection to a far host."""
        if self._tunnel is not None:
            self._tunnel.close()

    @cached_property
    def _tunnel(self) -> Tunnel | None:
        return Tunnel.open(FarHost.parse(self._host)) if self._host.startswith("ssh://") else None

    @cached_property
    def _client(self) -> docker.DockerClient:
        url = self._tunnel.docker_url if self._tunnel is not None else self._host
        return docker.from_env(environment={**self._environ, "DOCKER_HOST": url})

    @property
    def _run_there(self) -> Callable[[Sequence[str]], Result]:
        return self._tunnel.run if self._tunnel is not None else local_run

    def _get(self, handle: Handle) -> Container | None:
        with daemon_errors(self._host), suppress(NotFound):
            return self._client.containers.get(handle.identity)
        return None

    def _handle(self, container: Container, labels: Mapping[str, str]) -> Handle:
        url = labels["deploy.url"]
        if self._tunnel is not None:
            url = f"http://127.0.0.1:{self._tunnel.forward(int(url.rpartition(':')[2]))}"
        return Handle(
            runtime="docker",
            name=labels["deploy.name"],
            profile=labels["deploy.profile"],
            plan_digest=labels["deploy.plan"],
            url=url,
            run_dir=labels[_RUN_DIR],
            identity=str(container.id),
        )

    def _create(
        self, artifacts: Artifacts, spec: ContainerSpec, *, labels: Mapping[str, str], secrets: Delivery
    ) -> Container:
        """A container with its secrets inside, ready to be started."""
        api, name = self._client.api, container_name(labels["deploy.name"])
        home = self._tunnel.home if self._tunnel is not None else str(self._home.root)
        options = container_options(artifacts, spec, secrets) | {"name": name, "labels": dict(labels)}
        options["host_config"] = api.create_host_config(**host_options(artifacts, spec, home=home, gid=self._gid))
        try:
            created = api.create_container(**options)
        except APIError as error:
            if error.status_code != codes.conflict or not self._clear_leftover(name):
                raise
            created = api.create_container(**options)
        container = self._client.containers.get(created["Id"])
        container.put_archive("/", archive(secret_files(secrets)))
        return container

    def _clear_leftover(self, name: str) -> bool:
        """Remove the container of a start that was killed half-way, and say whether there was one."""
        with suppress(NotFound):
            container = self._client.containers.get(name)
            if container.status != "created" or not _abandoned(container.labels.get(_STARTER, "")):
                return False
            self._remove(container)
        return True

    def _discard(self, starter: str) -> None:
        """Remove what this very start has created."""
        for container in self._client.containers.list(all=True, filters={"label": f"{_STARTER}={starter}"}):
            self._remove(container)

    def _remove(self, container: Container) -> None:
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code not in {codes.not_found, codes.conflict}:  # somebody else has removed it, or is at it
                raise

    def _carry_overlays(self, spec: ContainerSpec) -> None:
        """Bring files that were rendered here to the far host; checkpoints are staged there."""
        if self._tunnel is None:
            return
        for mount in spec.mounts:
            if (local := self._home.root / mount.source).is_file():
                self._tunnel.write(f"{self._tunnel.home}/{mount.source}", local.read_text())

    def _gid(self, group: str) -> str | None:
        result = self._run_there(["getent", "group", group])
        return result.stdout.split(":")[2] if result.ok else None

    def _holder(self, port: int) -> str | None:
        """Who listens on a port of the Docker host: a container, else a process as far as we may see it."""
        for container in self._client.containers.list(filters={"publish": str(port)}):
            return f"container `{container.name}`"
        result = self._run_there(["ss", "-Hltnp", f"sport = :{port}"])
        found = re.search(r'users:\(\("(?P<name>[^"]+)",pid=(?P<pid>\d+)', result.stdout)
        return f"`{found['name']}`, pid {found['pid']}" if found else None


def _abandoned(starter: str) -> bool:
    """Whether a start was begun by a process of this machine that runs no more."""
    process = starter.rpartition("/")[0]
    boot = identity(os.getpid()).partition("/")[0]
    return process.partition("/")[0] == boot and find_process(process) is None
