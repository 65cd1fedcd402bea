"""All servers of all runtimes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.console import warn
from orchestrator.core.errors import HostError, Problem, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import SAFE_LENGTH, Secret, register_env_secret
from orchestrator.core.suggest import did_you_mean
from orchestrator.engine.endpoints import read_key
from orchestrator.engine.launch import process_names
from orchestrator.plan.plan import NAME, Plan
from orchestrator.runs.run_dir import (
    REQUEST_FILE,
    RunDir,
    latest_run,
    latest_runs,
    no_plan,
    note_request,
    read_plan,
    require_name,
    runs_of,
    runs_with_smoke,
)
from orchestrator.runtimes import REGISTRY, open_runtime, runtime_class
from orchestrator.runtimes.base import EXIT_FILE, PartialResultError, ServerState, Status
from orchestrator.servers.exit_record import REMOVED
from orchestrator.servers.group import RunningServer, ServerGroup, servers_of

if TYPE_CHECKING:
    from orchestrator.engine.client import EngineClient, Timeouts

RESTART_HINT: Final = "`deploy diagnose {name}` and `deploy logs {name}` show why; `deploy restart {name}` restarts it"
PROCESSES_FILE: Final = "processes.json"  # the processes of a server, recorded when it is ready


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server with its runtime, run directory, plan and API key."""

    handle: RunningServer
    runtime: ServerGroup
    run: RunDir | None  # None for a server of another home: its labels could name any directory

    @property
    def engines(self) -> tuple[RunningServer, ...]:
        """The sglang servers: the replicas, or the server itself."""
        return self.handle.replicas or (self.handle,)

    @cached_property
    def plan(self) -> Plan | None:
        """The plan of the server; None if it is missing or unreadable."""
        return self.handle.plan

    @property
    def key(self) -> Secret | None:
        """The API key, from the variable in the plan. Raises UsageError if it is not set."""
        return api_key(self.plan.server.api_key_env) if self.plan else None

    @property
    def model(self) -> str:
        """Served model name; sglang's `default` without a plan."""
        return self.plan.model.served_name if self.plan else "default"

    def require_own_run(self) -> RunDir:
        """Return the run directory. Raises StartError if it is not in this home."""
        if self.run is None:
            raise no_plan(None, self.handle.name)
        return self.run

    def require_running(self) -> ServerState:
        """Return the state. Raises StartError with the exit reason if the server is not running."""
        state = self.runtime.state(self.handle)
        if (ended := exit_problem(self.handle.name, state)) is not None:
            raise StartError(ended.message, hint=ended.hint)
        return state

    def client(self, limits: "Timeouts | None" = None, *, engine: RunningServer | None = None) -> "EngineClient":
        """Return a client with the API key, for the server or one of its `engines`."""
        from orchestrator.engine import client  # noqa: PLC0415 - an HTTP client takes 0.2 s to import

        return client.EngineClient((engine or self.handle).url, key=self.key, limits=limits or client.DEFAULT_TIMEOUTS)


@dataclass(frozen=True)
class Servers:
    """The servers of all runtimes on this host or a remote one."""

    home: Home
    runtimes: Mapping[str, ServerGroup]
    explicit_hosts: frozenset[str] = frozenset()  # runtimes whose host the user named
    unreachable: dict[str, str] = field(default_factory=dict)  # runtimes that did not respond, with the reason
    host: str | None = None  # the remote host, `ssh://user@node`

    def find(self, name: str | None = None) -> tuple[RunningServer, ...]:
        """Return all servers, or those called `name`, sorted by name; record in `unreachable` each silent runtime.

        Raises UsageError for an invalid name.
        """
        if name is not None:
            require_name(name)
        handles = tuple(sorted(self._find(name), key=lambda handle: handle.name))
        for handle in handles if name is not None else ():
            note_request(handle.run)  # for hints
            if (plan := handle.plan) is not None:
                register_env_secret(plan.server.api_key_env)
        return handles

    def open(self, name: str) -> Server:
        """Return the server `name`.

        If there is none, raises StartError with the closest name, or HostError if a runtime does not respond.
        """
        if handles := self.find(name):
            return self.server(handles[0])
        host = None if self.explicit_hosts else requested_host(self.home, name)
        if host is not None:
            suggestion = f"`deploy status {name} --host {host}` queries the host of its last start"
        else:
            suggestion = did_you_mean(name, [handle.name for handle in self.find()])
        if self.unreachable:
            raise HostError(f"no server `{name}` was found, and {'; '.join(self.unanswered())}", hint=suggestion)
        if host is not None:
            raise StartError(f"no server `{name}` found on this host", hint=suggestion)
        if any(runs_with_smoke(self.home, name)):
            suggestion = f"`deploy restart {name}` starts its last ready run"
        elif latest_run(self.home, name) is not None:
            suggestion = f"`deploy diagnose {name}` shows why its last start failed"
        hint = suggestion or "`deploy status` lists servers, `deploy profiles` lists profiles to start"
        raise StartError(f"no server `{name}` found", hint=hint)

    def unanswered(self) -> list[str]:
        """Return a message for each runtime that did not respond."""
        return [f"cannot query {kind}: {reason}" for kind, reason in self.unreachable.items()]

    def server(self, handle: RunningServer) -> Server:
        """Return a listed server with its runtime and run directory."""
        return Server(handle=handle, runtime=self.runtime(handle), run=self.run_of(handle))

    def gateway_of(self, server: RunningServer, listed: Sequence[RunningServer] | None = None) -> RunningServer | None:
        """Return the running server whose gateway the plan of `server` names; None if there is none.

        `listed` are all servers, if the caller has just listed them. This reads only the name from the plan, because
        validating a whole plan takes 0.25 s.
        """
        section = server.run.read("plan.json").get("server")
        name = section.get("gateway") if isinstance(section, Mapping) else None
        if not isinstance(name, str) or not NAME.match(name):  # none, or an edited plan
            return None
        candidates = self.find(name) if listed is None else (item for item in listed if item.name == name)
        return next((item for item in candidates if item.replicas and item.state.status is Status.RUNNING), None)

    def runtime(self, handle: RunningServer) -> ServerGroup:
        """Return the runtime of a server."""
        return self.runtimes[handle.runtime]

    def run_of(self, handle: RunningServer) -> RunDir | None:
        """Return the run directory of a server; None if the server belongs to another home."""
        run_dir = Path(handle.run_dir)
        return RunDir(run_dir) if self.home.holds(run_dir, handle.name) else None

    def _find(self, name: str | None) -> Iterator[RunningServer]:
        for kind, runtime in self.runtimes.items():
            try:
                yield from runtime.find(name)
            except HostError as error:  # list the processes even without a Docker daemon
                yield from servers_of(error.units) if isinstance(error, PartialResultError) else ()
                if kind in self.explicit_hosts or self._started_with(kind):
                    self.unreachable[kind] = error.message

    def _started_with(self, kind: str) -> bool:
        """Return whether the newest run of any name was started with the runtime `kind` on this host."""
        runs = (run for run in latest_runs(self.home) if self.host is not None or requested(run, "host") is None)
        return any(run.read("plan.json").get("runtime") == kind for run in runs)


@contextmanager
def open_servers(home: Home, host: str | None = None, *, name: str | None = None) -> Iterator[Servers]:
    """Open the runtimes and close them at the end; with `host` (`ssh://user@node`), open only those that support ssh.

    Without `host`, open the runtimes on the remote host where all runs of `name` were started, if there is one.
    """
    if host is None and name is not None:
        hosts = {requested(run, "host") for run in runs_of(home, name)}
        only_host = hosts.pop() if len(hosts) == 1 else None
        host = only_host if isinstance(only_host, str) else None
    kinds = (kind for kind in REGISTRY if host is None or runtime_class(kind).supports_ssh)
    runtimes = {kind: open_runtime(kind, home, host) for kind in kinds}
    try:
        explicit_hosts = frozenset(kind for kind, runtime in runtimes.items() if runtime.host_given)
        yield Servers(
            home, {kind: ServerGroup(runtime) for kind, runtime in runtimes.items()}, explicit_hosts, host=host
        )
    finally:
        for runtime in runtimes.values():
            runtime.close()


def requested_host(home: Home, name: str) -> str | None:
    """Return the remote host on which the newest run of a name was started with `--host`; None if there is none."""
    host = requested(run, "host") if (run := latest_run(home, name)) else None
    return host if isinstance(host, str) else None


def requested(run: RunDir, key: str) -> object:
    """Return a value from the request of a run, without the imports of `read_request`; None if it is missing."""
    request = run.read(REQUEST_FILE).get("request")
    return request.get(key) if isinstance(request, dict) else None


def resolve_server_name(target: str, home: Home, *options: object) -> str:
    """Return the name of the server with prefill and decode servers at the URL `target`; otherwise `target`.

    The gateway of such a server lists its workers only with the control key, which is found by name. `options` are
    options that need a URL; with any of them, return `target`.
    """
    if "://" not in target or any(options):
        return target
    plans = map(read_plan, latest_runs(home))
    if not any(plan is not None and plan.roles for plan in plans):
        return target  # most URLs: no runtime is queried
    url = target.rstrip("/").removesuffix("/v1").replace("//localhost", "//127.0.0.1")
    with open_servers(home) as servers:
        return next((handle.name for handle in servers.find() if handle.has_roles and handle.url == url), target)


def api_key(variable: str | None) -> Secret | None:
    """Return the API key from the environment variable that a plan names.

    Raises UsageError if the variable is not set or its key is invalid.
    """
    if variable is None:
        return None
    if not (value := os.environ.get(variable)):
        message = f"`{variable}` is not set: the plan reads the API key from this variable"
        raise UsageError(message, hint=f"export {variable}=…")
    key = read_key(value, location=variable)
    if len(key.reveal()) < SAFE_LENGTH:
        problem = f"the API key in `{variable}` has fewer than {SAFE_LENGTH} characters"
        warn(f"{problem}: a short key can be guessed, and output redacts it only as a whole word")
    return key


def exit_problem(name: str, state: ServerState) -> Problem | None:
    """Return how a server exited, with a hint; None if it is running."""
    if state.status is Status.RUNNING:
        return None
    if state.status is Status.PENDING:
        hint = f"wait, or `deploy down {name}`"
        return Problem(f"`{name}` is pending: {state.detail}", hint=hint)
    if state.status is Status.UNKNOWN:
        return Problem(f"`{name}`: {state.detail}", hint=f"`deploy down {name}` stops the processes that it can reach")
    return Problem(f"`{name}` is not running: {state.exit_summary}", hint=RESTART_HINT.format(name=name))


def record_processes(
    runtime: ServerGroup, handle: RunningServer, seconds: float, stages: Mapping[str, float] | None = None
) -> None:
    """Record the processes of a ready server, and the seconds until it was ready, in total and by stage."""
    data = {
        "processes": process_names(runtime.process_cmdlines(handle)),
        "ready_seconds": round(seconds, 1),
        "stages": {stage: round(duration, 1) for stage, duration in (stages or {}).items()},
    }
    handle.run.save_state(PROCESSES_FILE, data)


def note_gateway(run: RunDir, seconds: float) -> None:
    """Record the seconds until all replicas were ready. The directory of each replica records its processes."""
    run.save_state(PROCESSES_FILE, {"processes": [], "ready_seconds": round(seconds, 1)})


def dead_processes(runtime: ServerGroup, handle: RunningServer) -> str:
    """Return the dead processes of a ready server, as `rank DP1 has ended`; "" if none is known to be dead.

    The process table shows a death sooner than sglang does. sglang notices a dead data-parallel rank only at the next
    health request, after 20 s, and a dead tensor-parallel rank only when the others wait for it.
    """
    if handle.replicas:
        return "; ".join(_missing_servers(runtime, handle))
    recorded = handle.run.read(PROCESSES_FILE).get("processes")
    process_titles = runtime.process_cmdlines(handle) if recorded else ()
    if not process_titles or not isinstance(recorded, Sequence):
        return ""
    running = process_names(process_titles)
    dead = [str(process) for process in recorded if process not in running]
    if not running and (restarted := _started_again(runtime.state(handle), handle.run)):
        return restarted
    return f"{', '.join(dead)} {'has' if len(dead) == 1 else 'have'} ended while the server runs" if dead else ""


def _started_again(state: ServerState, run: RunDir) -> str:
    """Return a message with the server's age if the runtime restarted a ready server, otherwise ""."""
    if state.started_at is None:
        return ""
    recorded_at = datetime.fromtimestamp((run.path / PROCESSES_FILE).stat().st_mtime, UTC)
    if datetime.fromisoformat(state.started_at) <= recorded_at:
        return ""
    began = f"restarted {state.age()} ago, not ready yet"
    return "; ".join(filter(None, [began, state.detail]))


def replicas_on_other_plan(handle: RunningServer, plan: Plan) -> str:
    """Return the replicas with another plan, as `replica 2 of 2 has another`; "" if there are none."""
    planned = {
        name: (plan.label_of(number), server.digest) for number, (name, server) in enumerate(plan.servers.items(), 1)
    }

    def differing_replicas() -> Iterator[str]:
        for server in handle.replicas:
            name = Path(server.run_dir).name
            label, digest = planned.get(name, ("", ""))
            if not label:
                yield f"{name.replace('-', ' ')} is to be removed"
            elif server.plan_digest != digest:
                yield f"{label} has another"

    return ", ".join(differing_replicas())


def _missing_servers(runtime: ServerGroup, handle: RunningServer) -> Iterator[str]:
    """Yield the dead replicas of a gateway, and the dead processes of running replicas."""
    by_name = {Path(server.run_dir).name: server for server in handle.replicas}
    plan = handle.plan
    for number, name in enumerate(plan.server_names if plan else sorted(by_name), start=1):
        label, server = plan.label_of(number) if plan else name.replace("-", " "), by_name.get(name)
        if server is None:
            yield f"{label} {'has no readable record' if _was_started(handle, name) else 'is not started yet'}"
        elif (state := runtime.state(server)).status is not Status.RUNNING:
            reason = "it was stopped" if state.status is Status.NOT_FOUND else state.exit_reason
            yield f"{label} is not running: {reason}"
        elif dead := dead_processes(runtime, server):
            yield f"{label}: {dead}"


def _was_started(handle: RunningServer, replica: str) -> bool:
    """Return whether a run has started the replica and no later run has removed it."""
    runs = sorted(Path(handle.run_dir).parent.glob(f"*/{replica}"))
    return bool(runs) and RunDir(runs[-1]).read(EXIT_FILE).get("asked") != REMOVED
