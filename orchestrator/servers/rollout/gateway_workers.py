"""Workers of a running gateway: cordon, drain and uncordon a replica.

A gateway accepts these changes only with its control key. `up` creates the key and saves it in the gateway's run
directory, readable only by its user, because later commands need it. On Kubernetes, the gateway discovers its replicas
by a label of their pods.
"""

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.console import warn
from orchestrator.core.errors import HostError, NotReadyError, StartError
from orchestrator.core.files import atomic_write, read_private
from orchestrator.core.paths import Home
from orchestrator.core.polling import poll_until
from orchestrator.core.secrets import Secret
from orchestrator.engine.client import EngineClient
from orchestrator.engine.disaggregation import worker_fields
from orchestrator.engine.gateway import WORKERS, GatewayWorker, parse_workers
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.plan.plan import Plan
from orchestrator.plan.units import Role
from orchestrator.runs.run_dir import write_error
from orchestrator.runtimes.base import Runtime
from orchestrator.servers.group import Server
from orchestrator.verify.gateway import count_workers

_FILE: Final = "gateway.key"
_ACCEPTED: Final = 202
_SEE_LOG: Final = "`deploy logs NAME` shows the log of the gateway"
_MAX_DRAIN_SECONDS: Final = 30  # then the gateway unlists a worker; `servers.drain` waits for longer requests
_CHANGE_TIMEOUT: Final = 10.0  # seconds for the gateway to apply a change, on a busy host
_ROUTE_TIMEOUT: Final = 60.0  # seconds; smg 1.13.0 adds a healthy worker within 0.2 s
_POLL_INTERVAL: Final = 0.1


def make_control_key(run_dir: Path, home: Home) -> Secret:
    """Create and save the control key of a new gateway. Raises HostError."""
    key = secrets.token_hex(32)
    try:
        atomic_write(run_dir / _FILE, key, mode=0o600)
    except OSError as error:
        raise write_error(home, error) from error
    return Secret(key)


def require_own_gateway(url: str, control_key: Secret) -> None:
    """Raise NotReadyError if another gateway answers at the URL: it rejects our control key.

    On a cluster's node, another gateway may already use the port, because `deploy` does not choose a free one there.
    """
    try:
        GatewayWorkers(url=url, control_key=control_key, key=None, drain_seconds=0).workers()
    except HostError as error:
        hint = "choose another port: `--set server.port=PORT`"
        raise NotReadyError(f"another gateway answers at {url}", hint=hint, details=error.message) from error


def open_gateway_workers(
    gateway: Server, *, plan: Plan, key: Secret | None, grace: float
) -> "GatewayWorkers | DiscoveredWorkers":
    """Return the workers of a running gateway, even if some have exited.

    `key` is the API key of the replicas, `grace` the time limit for their requests in seconds. Raises StartError if the
    gateway accepts no changes.
    """
    if gateway.backend.gateway_discovery:
        return DiscoveredWorkers(url=gateway.url, runtime=gateway.backend)
    try:
        workers = saved_workers(gateway, key=key, seconds=grace)
        workers.workers()
    except HostError as error:
        message = f"cannot change the workers of the gateway of `{gateway.name}`: {error.message}"
        hint = f"`deploy down {gateway.name}`, then repeat this command: it starts all replicas"
        raise StartError(message, hint=hint) from error
    return replace(workers, roles=_roles(plan))


def saved_workers(
    gateway: Server, *, key: Secret | None = None, seconds: float = _MAX_DRAIN_SECONDS
) -> "GatewayWorkers":
    """Return the workers of a gateway whose control key is saved in its run directory. Raises HostError.

    `key` is the API key of new workers; `seconds` is the time limit for the requests of a removed worker.
    """
    file = Path(gateway.log_dir) / _FILE
    try:
        control_key = Secret(read_private(file).decode())
    except (OSError, UnicodeDecodeError) as error:
        hint = f"restart the server: `deploy restart {gateway.name}`"
        raise HostError(f"cannot read `{file}`", hint=hint) from error
    drain_seconds = min(int(seconds), _MAX_DRAIN_SECONDS)
    return GatewayWorkers(url=gateway.url, control_key=control_key, key=key, drain_seconds=drain_seconds)


def count_other_models(gateway: Server) -> int:
    """Return the number of ready workers of a gateway that serve a different model than its replicas; 0 if unknown."""
    if (plan := gateway.plan) is None or not (Path(gateway.log_dir) / _FILE).is_file():
        return 0
    with suppress(HostError):
        workers = saved_workers(gateway).workers()
        return sum(item.ready and item.model not in {"", plan.model.served_name} for item in workers)
    return 0


def _roles(plan: Plan) -> dict[int | None, Mapping[str, object]]:
    ports = iter([port for role in plan.roles for port in role.bootstrap_ports])
    servers = plan.servers.values() if plan.roles else ()
    return {
        server.server.port: worker_fields(server.role, next(ports) if server.role is Role.PREFILL else None)
        for server in servers
    }


@dataclass(frozen=True, kw_only=True)
class GatewayWorkers:
    """The registered workers of a gateway. Each call raises HostError if the gateway does not answer as expected.

    The port identifies a worker: each replica has its own, and a moved or dead replica stays listed under it.
    """

    url: str
    control_key: Secret
    key: Secret | None  # of the replicas
    drain_seconds: int  # how long a worker without new requests stays listed
    roles: Mapping[int | None, Mapping[str, object]] = field(default_factory=dict)  # fields of a new worker, by port

    def workers(self) -> tuple[GatewayWorker, ...]:
        """List the workers."""
        try:
            with EngineClient(self.url, key=self.control_key) as gateway:
                return parse_workers(gateway.get(WORKERS))
        except (NoResponseError, UnexpectedResponseError) as error:
            raise HostError(f"the gateway does not list its workers: {error}", hint=_SEE_LOG) from error

    def cordon(self, new: Server) -> None:
        """Do nothing: a new replica gets no requests until it is registered."""

    def drain(self, url: str, _: Server | None, __: int = 0) -> None:
        """Stop sending requests to a replica, wait for its running ones and remove it."""
        for server in self._of(url):
            path = f"{WORKERS}/{server.identity}"
            self._change("PATCH", path, {"health": {"drain_settle_secs": self.drain_seconds}})
            self._change("DELETE", path)
        idle_polls = 0  # consecutive: a request may be in transit from the gateway to the replica

        def poll() -> bool:
            nonlocal idle_polls
            workers = self._of(url)
            idle_polls = 0 if any(item.ready or item.requests for item in workers) else idle_polls + 1
            return not workers or idle_polls > 1

        poll_until(bool, poll, timeout=self.drain_seconds + _CHANGE_TIMEOUT, interval=_POLL_INTERVAL)

    def uncordon(self, url: str, new: Server, _: int = 0) -> None:
        """Register a healthy replica and wait until it is routed. Raises NotReadyError."""
        poll_until(
            lambda workers: all(server.ready for server in workers),  # no earlier worker on this port is still draining
            lambda: self._of(url),
            timeout=self.drain_seconds + _CHANGE_TIMEOUT,
            interval=_POLL_INTERVAL,
        )
        if not self._of(url):
            key = {"api_key": self.key.reveal()} if self.key else {}
            self._change("POST", WORKERS, {"url": url, **key, **self.roles.get(urlsplit(url).port, {})})
        if not poll_until(bool, lambda: self.is_routed(url, new), timeout=_ROUTE_TIMEOUT, interval=_POLL_INTERVAL):
            message = f"the gateway does not route to `{url}` after {_ROUTE_TIMEOUT:.0f} s"
            raise NotReadyError(message, hint=_SEE_LOG)

    def is_routed(self, url: str, _: Server) -> bool:
        """Return whether the gateway sends requests to the replica."""
        return any(server.ready for server in self._of(url))

    def _of(self, url: str) -> tuple[GatewayWorker, ...]:
        port = urlsplit(url).port
        return tuple(server for server in self.workers() if urlsplit(server.url).port == port)

    def _change(self, method: str, path: str, body: dict[str, object] | None = None) -> None:
        try:
            with EngineClient(self.url, key=self.control_key) as gateway:
                status = gateway.status(method, path, body)
        except NoResponseError as error:
            raise HostError(f"the gateway does not answer: {error}", hint=_SEE_LOG) from error
        if status != _ACCEPTED:
            message = f"`{method} {path}` of the gateway returned HTTP {status}"
            raise HostError(message, location=self.url, hint=_SEE_LOG)


@dataclass(frozen=True, kw_only=True)
class DiscoveredWorkers:
    """The workers of a gateway that discovers its replicas; `other_replicas` is the number of the other replicas.

    Each call raises HostError if the cluster does not answer.
    """

    url: str
    runtime: Runtime

    def cordon(self, new: Server) -> None:
        """Hide a new replica until it is verified."""
        self.runtime.set_routable(new, routable=False)

    def drain(self, _: str, old: Server | None, other_replicas: int) -> None:
        """Hide a replica and wait until it gets no new requests."""
        if old is None or not self.runtime.is_routable(old):
            return
        before, ready = count_workers(self.url), self.runtime.is_ready(old)
        self.runtime.set_routable(old, routable=False)
        was_counted = before > other_replicas
        if not was_counted and not ready:
            return
        poll = partial(count_workers, self.url)
        remaining = poll_until(lambda count: count < before, poll, timeout=_CHANGE_TIMEOUT, interval=_POLL_INTERVAL)
        if was_counted and remaining >= before:
            description = f"`{Path(old.run_dir).name}` after {_CHANGE_TIMEOUT:.0f} s"
            warn(f"the gateway still routes to {description}; requests may fail")

    def uncordon(self, _: str, new: Server, other_replicas: int) -> None:
        """Show a healthy replica and wait until it is routed. Raises NotReadyError."""
        poll = partial(count_workers, self.url)
        before = poll_until(bool, poll, timeout=_CHANGE_TIMEOUT, interval=_POLL_INTERVAL)  # 0 without an answer
        self.runtime.set_routable(new, routable=True)
        expected = min(before, other_replicas) + 1
        if (
            poll_until(lambda count: count >= expected, poll, timeout=_ROUTE_TIMEOUT, interval=_POLL_INTERVAL)
            < expected
        ):
            message = f"the gateway does not route to `{Path(new.run_dir).name}` after {_ROUTE_TIMEOUT:.0f} s"
            raise NotReadyError(message, hint=_SEE_LOG)

    def is_routed(self, _: str, server: Server) -> bool:
        """Return whether the gateway may send requests to the replica."""
        return self.runtime.is_routable(server)
