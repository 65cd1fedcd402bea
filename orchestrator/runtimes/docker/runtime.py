"""Servers in Docker containers on this or a remote host. Labels on the containers are their record."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import HostError, NameTakenError
from orchestrator.core.imported import Imported
from orchestrator.core.paths import Home
from orchestrator.core.procfs import find_process, process_identity
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret
from orchestrator.engine.launch import SecretDelivery, split_secrets
from orchestrator.hosts.daemon import remote_host
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import (
    Cache,
    Runtime,
    ServerState,
    Unit,
)
from orchestrator.runtimes.docker.container import (
    ContainerSpec,
    container_labels,
    container_name,
    spec_of,
)
from orchestrator.runtimes.docker.state import NOT_FOUND, server_state
from orchestrator.runtimes.labels import NAME, PART, PLAN, PROFILE, RECORD, RUN_DIR, STARTER, URL, is_record
from orchestrator.runtimes.replicas import may_coexist, replica_name, replica_number, with_roles
from orchestrator.runtimes.saved_logs import kept_log

if TYPE_CHECKING:
    from docker.models.containers import Container


_PAUSE: Final = 0.2  # seconds between two polls of containers that are stopping


class DockerRuntime(Runtime):
    """Servers in containers of the Docker host: `host`, else DOCKER_HOST, else this host.

    The SDK takes 0.1 s to import. Only methods that call the daemon import it.
    """

    name = "docker"
    in_container = True
    supports_ssh = True
    rules = Imported("orchestrator.runtimes.docker.spec:RULES")
    checks = Imported("orchestrator.runtimes.docker.checks:CHECKS")
    engine_python = Imported("orchestrator.runtimes.docker.checks:engine_python")
    disk_needs = Imported("orchestrator.runtimes.docker.checks:image_space")
    render = Imported("orchestrator.runtimes.docker.spec:rendered")
    files = Imported("orchestrator.runtimes.docker.container:docker_run_files")
    prepare = Imported("orchestrator.runtimes.docker.spec:prepare")
    kernel_store = Imported("orchestrator.runtimes.docker.kernels:kernel_store")

    def __init__(self, home: Home, host: str | None = None) -> None:
        from orchestrator.runtimes.docker.host import DockerHost

        super().__init__(home, host)
        self._host = DockerHost(home, host)
        self.host_given = self._host.named

    @classmethod
    def resolve_host(cls, host: str | None, environ: Mapping[str, str]) -> str | None:
        return remote_host(host, environ)

    def caches(self) -> Sequence[Cache]:
        from orchestrator.runtimes.docker.caches import caches

        return caches(self._home, self.host_name)

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Unit:
        """See `Runtime.start`. Removes a container that cannot be started before it raises."""
        from docker.errors import APIError

        from orchestrator.runtimes.docker.errors import DaemonError, start_error

        spec, run_dir = spec_of(artifacts), run_dir.absolute()
        part = replica_name(run_dir)
        if part or artifacts.plan.gateway is not None:
            self._require_own(name, run_dir)
        given = split_secrets(secrets, api_key_env=artifacts.plan.server.api_key_env)
        starter = f"{process_identity(os.getpid())}/{uuid.uuid4()}"
        labels = container_labels(artifacts.plan, name, part) | {STARTER: starter, RUN_DIR: str(run_dir)}
        with self._host.errors():
            self._host.copy_files(spec)
            try:
                container = self._create(artifacts, spec, labels=labels, secrets=given)
                container.start()
                return self._unit(container, labels)
            except APIError as error:
                self._discard(starter)
                said, holder = str(error.explanation or error), self._host.port_holder
                raise start_error(DaemonError(said=said, artifacts=artifacts, spec=spec, holder=holder)) from error
            except BaseException:  # mainly Ctrl-C: no record would mention this container
                self._discard(starter)
                raise

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        label = NAME if name is None else f"{NAME}={name}"
        with self._host.errors():
            listed = self._host.client.containers.list(all=True, filters={"label": [label, *RECORD]}, sparse=True)
            known = [(container, container.attrs["Labels"]) for container in listed]
            units = [self._unit(container, labels) for container, labels in known if is_record(labels)]
        return with_roles(replace(unit, state=self.state(unit)) for unit in units)

    def state(self, unit: Unit) -> ServerState:
        """See `Runtime.state`. Raises HostError if the daemon does not answer, which does not mean NOT_FOUND."""
        container = self._get(unit)
        return NOT_FOUND if container is None else server_state(container.attrs)

    def process_cmdlines(self, unit: Unit) -> tuple[str, ...]:
        """See `Runtime.process_cmdlines`. `ps` runs on the daemon's host, whatever the image contains."""
        from docker.errors import APIError

        container = self._get(unit)
        if container is None:
            return ()
        try:
            with self._host.errors():
                listed = container.top(ps_args="-eo pid,stat,args")["Processes"] or ()
        except APIError:  # the container is not running, or the host has no such `ps`
            return ()
        return tuple(title for _, stat, title in listed if not stat.startswith("Z"))

    def host_memory(self, unit: Unit) -> int | None:
        """See `Runtime.host_memory`. The container's control group tells (Linux, cgroup-v2.rst; memory.rst)."""
        from docker.errors import APIError

        container = self._get(unit)
        if container is None:
            return None
        try:
            with self._host.errors():
                told: Any = container.stats(stream=False, one_shot=True)
        except APIError:  # the container is not running
            return None
        counted = told["memory_stats"].get("stats", {})
        anonymous = counted.get("anon", counted.get("total_rss", 0))
        return anonymous + counted.get("shmem", counted.get("total_shmem", 0)) or None

    def logs(self, unit: Unit, *, follow: bool, since: datetime | None = None) -> Iterator[str]:
        """See `Runtime.logs`. Follows through restarts; reads the saved log if the container is removed."""
        from orchestrator.runtimes.docker.logs import container_log, follow_log

        container = self._get(unit)
        if container is None:
            yield from kept_log(unit, since)
            return
        moment = since.timestamp() if since else None
        with self._host.errors(), _unless_gone():
            yield from follow_log(container, moment) if follow else container_log(container, moment)

    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        """See `Runtime.tail`. A call raises HostError if the daemon does not answer."""
        from orchestrator.runtimes.docker.logs import ContainerTail

        tail = ContainerTail(lambda: self._get(unit))

        def new_lines() -> Iterator[str]:
            with self._host.errors(), _unless_gone():
                yield from tail()

        return new_lines

    def ask_to_end(self, unit: Unit) -> None:
        if (container := self._get(unit)) is not None:
            with self._host.errors(), _unless_gone():
                container.kill("SIGTERM")  # Docker treats SIGTERM as a stop: no restart

    def stop(self, unit: Unit, *, grace: float) -> None:
        """Stop the container: wait `grace` seconds for running requests to drain, and save the log."""
        container = self._get(unit)
        if container is None:
            return
        with self._host.errors(), _unless_gone():
            container.stop(timeout=math.ceil(grace))
            self._keep_log(container, unit)
            _remove(container)

    def close(self) -> None:
        self._host.close()

    def _require_own(self, name: str, run_dir: Path) -> None:
        """Raise NameTakenError if a container of another start has the name of a replica."""
        if not may_coexist(run_dir, self.find(name)):
            raise NameTakenError(f"a server `{name}` exists", hint=f"`deploy down {name}` stops it")

    def _keep_log(self, container: Container, unit: Unit) -> None:
        """Save the log if this home has the run directory; never write to another home's directory."""
        from orchestrator.runtimes.docker.logs import save_log

        run_dir = Path(unit.run_dir)
        if not self._home.holds(run_dir, unit.name):
            note(f"cannot save the log: `{run_dir}` is not a run directory of this home")
            return
        try:
            save_log(container, run_dir)
        except OSError as error:
            if error.errno is None:  # the connection to the daemon failed
                raise
            warn(f"cannot save the log: {error.strerror}: `{run_dir}`")

    def _get(self, unit: Unit) -> Container | None:
        from docker.errors import NotFound

        with self._host.errors(), suppress(NotFound):
            return self._host.client.containers.get(unit.runtime_id) if unit.runtime_id else None
        return None

    def _unit(self, container: Container, labels: Mapping[str, str]) -> Unit:
        way = self._host.way_to(labels[URL])
        return Unit(
            runtime="docker",
            name=labels[NAME],
            profile=labels[PROFILE],
            plan_digest=labels[PLAN],
            url=self._host.reach(labels[URL]),
            service_url=labels[URL] if way else "",
            forward_command=way,
            run_dir=labels.get(RUN_DIR) or str(self._home.runs / FileName(labels[NAME]) / "unknown"),
            runtime_id=str(container.id),
            number=replica_number(labels.get(PART, "")) or 1,
        )

    def _create(
        self, artifacts: Artifacts, spec: ContainerSpec, *, labels: Mapping[str, str], secrets: SecretDelivery
    ) -> Container:
        """Return a new container with its secrets inside, ready to start."""
        from docker.errors import APIError
        from requests import codes

        from orchestrator.runtimes.docker.options import archive, container_options, host_options, secret_files

        api, name = self._host.client.api, container_name(labels[NAME], labels.get(PART, ""))
        options = container_options(artifacts, spec, secrets) | {"name": name, "labels": dict(labels)}
        machine = host_options(artifacts, spec, home=self._host.home, gid=self._host.group_id)
        options["host_config"] = api.create_host_config(**machine)
        try:
            created = api.create_container(**options)
        except APIError as error:
            if error.status_code != codes.conflict or not self._clear_leftover(name, labels[RUN_DIR]):
                raise
            created = api.create_container(**options)
        container = self._host.client.containers.get(created["Id"])
        container.put_archive("/", archive(secret_files(secrets)))
        return container

    def _clear_leftover(self, name: str, run_dir: str) -> bool:
        """Remove the container of a start that was killed midway. Return whether there was one.

        The container of an exited replica is removed too, so that the replica can start again at the same gateway.
        """
        from docker.errors import NotFound

        with suppress(NotFound):
            container = self._host.client.containers.get(name)
            again = container.status == "exited" and container.labels.get(RUN_DIR) == run_dir
            killed = container.status == "created" and _abandoned(container.labels.get(STARTER, ""))
            if not again and not killed:
                return False
            _remove(container)
        return True

    def _discard(self, starter: str) -> None:
        """Remove what this start has created. If that fails, only report it: the start's own error is raised."""
        from docker.errors import APIError

        label = f"{STARTER}={starter}"
        try:
            with self._host.errors():
                for container in self._host.client.containers.list(all=True, filters={"label": label}):
                    _remove(container)
        except (APIError, HostError) as error:
            warn(f"cannot remove the container: {error}", hint=f"`docker ps --all --filter label={label}` finds it")


def _remove(container: Container) -> None:
    with _unless_gone():
        container.remove(force=True, v=True)


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Ignore that another process has removed (404) or is removing (409) the container: the goal is reached."""
    from docker.errors import APIError
    from requests import codes

    try:
        yield
    except APIError as error:
        if error.status_code not in {codes.not_found, codes.conflict}:
            raise


def _abandoned(starter: str) -> bool:
    """Return whether the process of this host that began a start has ended."""
    process = starter.rpartition("/")[0]
    boot = process_identity(os.getpid()).partition("/")[0]
    return process.partition("/")[0] == boot and find_process(process) is None
