"""Servers in Docker containers on this or a remote host. Labels on the containers are their record."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.console import warn
from orchestrator.core.errors import HostError, naming_host
from orchestrator.core.files import private_dir
from orchestrator.core.imported import Imported
from orchestrator.core.paths import Home
from orchestrator.core.polling import poll_until
from orchestrator.core.procfs import process_identity
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret, redact
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.engine.launch import split_secrets
from orchestrator.hosts.daemon import remote_host
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import NOT_FOUND, Cache, Runtime, ServerState, Status, Unit
from orchestrator.runtimes.docker.container import container_labels, container_name, ranked, spec_of
from orchestrator.runtimes.docker.creation import discard, remove, start_on
from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.runtimes.docker.logs import ContainerTail, container_log, save_log
from orchestrator.runtimes.docker.options import ARCH_LABEL, CACHE_LABEL
from orchestrator.runtimes.docker.sdk import docker
from orchestrator.runtimes.docker.state import server_state, state_of_ranks
from orchestrator.runtimes.labels import (
    HEAD,
    NAME,
    PLAN,
    PROFILE,
    RANK,
    RANK_HOSTS,
    RECORD,
    RUN_DIR,
    STARTER,
    UNIT,
    URL,
    is_record,
)
from orchestrator.runtimes.replicas import (
    rank_dir,
    rank_name,
    rank_of,
    replica_name,
    require_name_free,
    role_of,
)
from orchestrator.runtimes.saved_logs import followed_log, keep_log, saved_log

if TYPE_CHECKING:
    from docker.models.containers import Container

_INTERVAL: Final = 0.2  # seconds between two polls of containers that are stopping
_MAX_STOP_GAP: Final = 20.0  # seconds between the ends of two ranks


class DockerRuntime(Runtime):
    """Servers in containers of the Docker host: `host`, else DOCKER_HOST, else this host."""

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
        super().__init__(home, host)
        self._host = DockerHost(home, host)
        self._hosts_by_url: dict[str, DockerHost] = {}  # of further ranks, by URL
        self.host_given = self._host.is_explicit

    @classmethod
    def resolve_host(cls, host: str | None, environ: Mapping[str, str]) -> str | None:
        return remote_host(host, environ)

    def caches(self) -> Sequence[Cache]:
        """See `Runtime.caches`. Volumes keep compiled kernels: one set per image and gfx."""
        with self._host.errors():
            volumes = [
                Cache(
                    kind="compiled kernels",
                    location=volume["Name"],
                    requirements={"image": volume["Labels"][CACHE_LABEL], "gfx": volume["Labels"][ARCH_LABEL]},
                    size=volume["UsageData"]["Size"],
                    used_by=self._users_of(volume["Name"]),
                    remove=partial(self._remove_volume, volume["Name"]),
                )
                for volume in self._host.client.df()["Volumes"] or ()
                if CACHE_LABEL in (volume["Labels"] or {})
            ]
        return sorted(volumes, key=lambda cache: (cache.requirements["image"], cache.location))

    def _users_of(self, volume: str) -> tuple[str, ...]:
        """Return the containers, running or not, that use a volume."""
        containers = self._host.client.containers.list(all=True, filters={"volume": volume}, ignore_removed=True)
        return tuple(sorted(str(container.name) for container in containers))

    def _remove_volume(self, volume: str) -> bool:
        ignore_sigpipe()
        with self._host.errors():
            try:
                self._host.client.api.remove_volume(volume)
            except docker.errors.APIError as error:
                if error.status_code == HTTPStatus.CONFLICT:
                    return False
                if error.status_code != HTTPStatus.NOT_FOUND:
                    raise
        return True

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Unit:
        """See `Runtime.start`. Removes all containers before it raises. Of several ranks the first starts last."""
        spec, run_dir = spec_of(artifacts), run_dir.absolute()
        unit_name = replica_name(run_dir)
        if unit_name or artifacts.plan.gateway is not None:
            require_name_free(run_dir, self.find(name))
        delivery = split_secrets(secrets, api_key_env=artifacts.plan.server.api_key_env)
        starter = f"{process_identity(os.getpid())}/{uuid.uuid4()}"
        common, hosts = {STARTER: starter, RUN_DIR: str(run_dir)}, (self._host, *map(self._host_at, spec.rank_hosts))
        labels = container_labels(artifacts.plan, name, unit_name) | common
        labels |= {RANK_HOSTS: " ".join(spec.rank_hosts)} if spec.rank_hosts else {}
        try:
            for rank in range(len(hosts) - 1, 0, -1):
                private_dir(rank_dir(run_dir, rank))
                called = container_name(name, rank_name(rank))
                rank_labels = {RANK: f"{name}/{rank}", HEAD: self._host.url} | common
                with naming_host(hosts[rank].url):
                    start_on(hosts[rank], ranked(artifacts, rank), called, rank_labels, delivery)
            with naming_host(self._host.url if spec.rank_hosts else ""):
                container = start_on(
                    self._host, ranked(artifacts, 0), container_name(name, unit_name), labels, delivery
                )
            with self._host.errors():
                return self._unit(container, labels)
        except BaseException:  # also Ctrl-C: no record would mention these containers
            for host in hosts:
                discard(host, starter)
            raise

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        """See `Runtime.find`. For servers of other homes, a list does not contact the hosts of further ranks."""
        label = NAME if name is None else f"{NAME}={name}"
        with self._host.errors():
            containers = self._host.client.containers.list(all=True, filters={"label": [label, *RECORD]}, sparse=True)
            labeled = [(container, container.attrs["Labels"]) for container in containers]
            units = [self._unit(container, labels) for container, labels in labeled if is_record(labels)]

        def state(unit: Unit) -> ServerState:
            is_ours = name is not None or self._home.holds(Path(unit.run_dir), unit.name)
            return self.state(unit if is_ours else replace(unit, rank_hosts=()))

        return tuple(replace(unit, state=state(unit)) for unit in units)

    def state(self, unit: Unit) -> ServerState:
        """See `Runtime.state`. Raises HostError if the daemon does not answer, which does not mean NOT_FOUND."""
        container = self._get(unit)
        if container is None or not unit.rank_hosts or rank_of(Path(unit.run_dir)):
            return NOT_FOUND if container is None else server_state(container.attrs)
        states = [(self._host.url, self._state_of_rank(unit, 0))]
        states += [(host, self._state_of_rank(unit, rank)) for rank, host in enumerate(unit.rank_hosts, 1)]
        return state_of_ranks(states, lambda rank: self.logs(_rank(unit, rank), follow=False))

    def _state_of_rank(self, unit: Unit, rank: int) -> ServerState:
        """Return the state of a rank on a host that may not answer, with its stopped processes."""
        rank_unit = _rank(unit, rank)
        try:
            if (container := self._get(rank_unit)) is None:
                return NOT_FOUND
            state = server_state(container.attrs)
            stopped = [title for stat, title in self._processes(rank_unit) if stat.startswith("T")]
        except HostError as error:
            return ServerState(status=Status.UNKNOWN, detail=error.message)
        return replace(state, detail=f"a process is stopped (SIGSTOP): {stopped[0]}") if stopped else state

    def process_cmdlines(self, unit: Unit) -> tuple[str, ...]:
        """See `Runtime.process_cmdlines`. Of several ranks, only the processes of the first; see `state` for others."""
        return tuple(title for _, title in self._processes(unit))

    def _processes(self, unit: Unit) -> tuple[tuple[str, str], ...]:
        """Return state and title of the processes. `ps` runs on the daemon's host, whatever the image contains."""
        container = self._get(unit)
        if container is None:
            return ()
        try:
            with self._host_of(unit).errors():
                processes = container.top(ps_args="-eo pid,stat,args")["Processes"] or ()
        except docker.errors.APIError:  # the container is not running, or the host has no such `ps`
            return ()
        return tuple((stat, title) for _, stat, title in processes if not stat.startswith("Z"))

    def host_memory(self, unit: Unit) -> int | None:
        """See `Runtime.host_memory`. Reads the container's control group (Linux, cgroup-v2.rst; memory.rst)."""
        container = self._get(unit)
        if container is None:
            return None
        try:
            with self._host.errors():
                stats: Any = container.stats(stream=False, one_shot=True)
        except docker.errors.APIError:  # the container is not running
            return None
        counters = stats["memory_stats"].get("stats", {})
        anonymous = counters.get("anon", counters.get("total_rss", 0))
        return anonymous + counters.get("shmem", counters.get("total_shmem", 0)) or None

    def logs(self, unit: Unit, *, follow: bool) -> Iterator[str]:
        """See `Runtime.logs`. Reads the saved log if the container is removed."""
        container = self._get(unit)
        if container is None:
            yield from saved_log(unit)
        elif follow:
            yield from map(redact, followed_log(self, unit))
        else:
            with self._host_of(unit).errors_except_missing():
                yield from container_log(container)

    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        """See `Runtime.tail`. A call raises HostError if the daemon does not answer."""
        tail = ContainerTail(lambda: self._get(unit))

        def new_lines() -> Iterator[str]:
            with self._host_of(unit).errors_except_missing():
                yield from tail()

        return new_lines

    def request_stop(self, unit: Unit) -> None:
        if (container := self._get(unit)) is not None:
            with self._host.errors_except_missing():
                container.kill("SIGTERM")  # Docker treats SIGTERM as a stop: no restart

    def stop(self, unit: Unit, *, grace: float) -> None:
        """Stop the container: wait `grace` seconds for running requests to drain, and save the log.

        Of several ranks, only the first gets the signal and stops the others: sglang crashes if another rank exits
        first (0.5.14). An unreachable further host does not prevent stopping the other ranks.
        """
        container = self._get(unit)
        if container is None:
            return
        with self._host.errors_except_missing():
            container.stop(timeout=math.ceil(grace))
        for rank in range(1, len(unit.rank_hosts) + 1):
            try:
                self._stop_rank(_rank(unit, rank), timeout=min(grace, _MAX_STOP_GAP))
            except HostError as error:
                host, called = unit.rank_hosts[rank - 1], container_name(unit.name, rank_name(rank))
                hint = f"`docker --host {host} rm --force {called}` removes it"
                warn(f"rank {rank} may still run: {error.message}", hint=hint)
        with self._host.errors_except_missing():
            keep_log(self._home, unit, partial(save_log, container))
            remove(container)

    def _stop_rank(self, rank: Unit, *, timeout: float) -> None:
        """Wait until a rank has followed the first, kill it if it does not, save its log and remove its container."""
        host, container = self._host_of(rank), self._get(rank)
        if container is None:
            return
        with host.errors_except_missing():
            poll_until(
                lambda state: state.status is not Status.RUNNING,
                lambda: self.state(rank),
                timeout=timeout,
                interval=_INTERVAL,
            )
            container.stop(timeout=0)
            keep_log(self._home, rank, partial(save_log, container))
            remove(container)

    def close(self) -> None:
        for host in (self._host, *self._hosts_by_url.values()):
            host.close()

    def _host_at(self, url: str) -> DockerHost:
        return self._hosts_by_url.setdefault(url, DockerHost(self._home, url))

    def _host_of(self, unit: Unit) -> DockerHost:
        """Return the host of a unit; another rank of a server on several nodes has its own."""
        rank = rank_of(Path(unit.run_dir))
        return self._host_at(unit.rank_hosts[rank - 1]) if rank else self._host

    def _get(self, unit: Unit) -> Container | None:
        host, rank = self._host_of(unit), rank_of(Path(unit.run_dir))
        id_or_name = container_name(unit.name, rank_name(rank)) if rank else unit.runtime_id
        with host.errors(), suppress(docker.errors.NotFound):
            return host.client.containers.get(id_or_name) if id_or_name else None
        return None

    def _unit(self, container: Container, labels: Mapping[str, str]) -> Unit:
        way = self._host.forward_command(labels[URL])
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
            role=role_of(labels.get(UNIT, "")),
            rank_hosts=tuple(labels.get(RANK_HOSTS, "").split()),
        )


def _rank(unit: Unit, rank: int) -> Unit:
    """Return a rank of a unit as a unit with its own log and state."""
    return replace(unit, run_dir=str(rank_dir(Path(unit.run_dir), rank)))
