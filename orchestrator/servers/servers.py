"""All servers of all runtimes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.core.errors import HostError, StartError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import register_env_secret
from orchestrator.core.suggest import did_you_mean
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
from orchestrator.runtimes.base import EXIT_FILE, PartialResultError, Runtime, ServerState, Status
from orchestrator.servers.exit_record import REMOVED
from orchestrator.servers.group import Server, servers_of

PROCESSES_FILE: Final = "processes.json"  # the processes of a server, recorded when it is ready


@dataclass(frozen=True)
class Servers:
    """The servers of all runtimes on this host or a remote one."""

    home: Home
    runtimes: Mapping[str, Runtime]
    explicit_hosts: frozenset[str] = frozenset()  # runtimes whose host the user named
    unreachable: dict[str, str] = field(default_factory=dict)  # runtimes that did not respond, with the reason
    host: str | None = None  # the remote host, `ssh://user@node`

    def find(self, name: str | None = None) -> tuple[Server, ...]:
        """Return all servers, or those called `name`, sorted by name; record in `unreachable` each silent runtime.

        Raises UsageError for an invalid name.
        """
        if name is not None:
            require_name(name)
        servers = tuple(sorted(self._find(name), key=lambda server: server.name))
        for server in servers if name is not None else ():
            note_request(server.run)  # for hints
            if (plan := server.plan) is not None:
                register_env_secret(plan.server.api_key_env)
        return servers

    def open(self, name: str) -> Server:
        """Return the server `name`.

        If there is none, raises StartError with the closest name, or HostError if a runtime does not respond.
        """
        if servers := self.find(name):
            return servers[0]
        host = None if self.explicit_hosts else requested_host(self.home, name)
        if host is not None:
            suggestion = f"`deploy status {name} --host {host}` queries the host of its last start"
        else:
            suggestion = did_you_mean(name, [server.name for server in self.find()])
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

    def gateway_of(self, server: Server, listed: Sequence[Server] | None = None) -> Server | None:
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

    def run_of(self, server: Server) -> RunDir | None:
        """Return the run directory of a server; None for another home's server, whose labels could name any path."""
        return server.run if self.home.holds(server.run.path, server.name) else None

    def require_run(self, server: Server) -> RunDir:
        """Return the run directory of a server. Raises StartError if it is not in this home."""
        if (run := self.run_of(server)) is None:
            raise no_plan(None, server.name)
        return run

    def _find(self, name: str | None) -> Iterator[Server]:
        for kind, runtime in self.runtimes.items():
            try:
                yield from servers_of(runtime, runtime.find(name))
            except HostError as error:  # list the processes even without a Docker daemon
                yield from servers_of(runtime, error.units) if isinstance(error, PartialResultError) else ()
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
        yield Servers(home, runtimes, explicit_hosts, host=host)
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
        return next((server.name for server in servers.find() if server.has_roles and server.url == url), target)


def record_processes(server: Server, seconds: float, stages: Mapping[str, float] | None = None) -> None:
    """Record the processes of a ready server, and the seconds until it was ready, in total and by stage."""
    data = {
        "processes": process_names(server.process_cmdlines()),
        "ready_seconds": round(seconds, 1),
        "stages": {stage: round(duration, 1) for stage, duration in (stages or {}).items()},
    }
    server.run.save_state(PROCESSES_FILE, data)


def note_gateway(run: RunDir, seconds: float) -> None:
    """Record the seconds until all replicas were ready. The directory of each replica records its processes."""
    run.save_state(PROCESSES_FILE, {"processes": [], "ready_seconds": round(seconds, 1)})


def exited_processes(server: Server, *, ask: bool = True) -> str:
    """Return the exited processes of a ready server, as `rank DP1 has exited`; "" if none is known to have exited.

    Without `ask`, it names only the replicas that did not run when they were listed.
    The process table shows a death sooner than sglang does. sglang notices a dead data-parallel rank only at the next
    health request, after 20 s, and a dead tensor-parallel rank only when the others wait for it.
    """
    if server.replicas:
        return "; ".join(_missing_servers(server, ask=ask))
    recorded = server.run.read(PROCESSES_FILE).get("processes")
    cmdlines = server.process_cmdlines() if recorded and ask else ()
    if not cmdlines or not isinstance(recorded, Sequence):
        return ""
    running = process_names(cmdlines)
    dead = [str(process) for process in recorded if process not in running]
    if not running and (restarted := _started_again(server.current_state(), server.run)):
        return restarted
    return f"{', '.join(dead)} {'has' if len(dead) == 1 else 'have'} exited while the server runs" if dead else ""


def _started_again(state: ServerState, run: RunDir) -> str:
    """Return a message with the server's age if the runtime restarted a ready server, otherwise ""."""
    if state.started_at is None:
        return ""
    recorded_at = datetime.fromtimestamp((run.path / PROCESSES_FILE).stat().st_mtime, UTC)
    if datetime.fromisoformat(state.started_at) <= recorded_at:
        return ""
    began = f"restarted {state.age()} ago, not ready yet"
    return "; ".join(filter(None, [began, state.detail]))


def replicas_on_other_plan(server: Server, plan: Plan) -> str:
    """Return the replicas with another plan, as `replica 2 of 2 has another`; "" if there are none."""
    planned = {
        name: (plan.label_of(number), server.digest) for number, (name, server) in enumerate(plan.servers.items(), 1)
    }

    def differing_replicas() -> Iterator[str]:
        for replica in server.replicas:
            name = Path(replica.run_dir).name
            label, digest = planned.get(name, ("", ""))
            if not label:
                yield f"{name.replace('-', ' ')} is to be removed"
            elif replica.plan_digest != digest:
                yield f"{label} has another"

    return ", ".join(differing_replicas())


def _missing_servers(server: Server, *, ask: bool) -> Iterator[str]:
    """Yield the exited replicas of a gateway, and the exited processes of running replicas."""
    by_name = {Path(replica.run_dir).name: replica for replica in server.replicas}
    plan = server.plan
    for number, name in enumerate(plan.server_names if plan else sorted(by_name), start=1):
        label, replica = plan.label_of(number) if plan else name.replace("-", " "), by_name.get(name)
        if replica is None:
            yield f"{label} {'has no readable record' if _was_started(server, name) else 'is not started yet'}"
        elif (state := replica.current_state() if ask else replica.state).status is not Status.RUNNING:
            reason = "it was stopped" if state.status is Status.NOT_FOUND else state.exit_reason
            yield f"{label} is not running: {reason}"
        elif dead := exited_processes(replica, ask=ask):
            yield f"{label}: {dead}"


def _was_started(server: Server, folder: str) -> bool:
    """Return whether a run has started the replica and no later run has removed it."""
    runs = sorted(Path(server.run_dir).parent.glob(f"*/{folder}"))
    return bool(runs) and RunDir(runs[-1]).read(EXIT_FILE).get("asked") != REMOVED
