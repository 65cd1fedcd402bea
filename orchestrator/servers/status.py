"""`deploy status`: the servers that the runtimes list, with their health."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

from orchestrator.core.console import table, warn
from orchestrator.core.errors import HostError, SmokeError
from orchestrator.runs.run_dir import SMOKE_FILE, STARTUP, RunDir, version_error
from orchestrator.runtimes.base import ServerState, Status
from orchestrator.servers.group import RESTART_HINT, Server, run_dir_of
from orchestrator.servers.servers import PROCESSES_FILE, Servers, exited_processes

_MAX_PARALLEL = 16
_MIN_STAGE_SECONDS = 0.1  # seconds; shorter stages are not shown


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """The status of a server. `health` is `healthy`, `unhealthy`, or empty if it was not checked."""

    name: str
    profile: str
    runtime: str
    status: str
    health: str
    url: str
    plan: str  # digest
    started_at: str | None
    ended_at: str | None
    age: str  # time since its start, or since its end
    restarts: int
    exit_code: int | None
    detail: str
    run_dir: str
    startup: "dict[str, float]"  # seconds by stage, up to the end of the smoke test
    replicas: "tuple[ServerStatus, ...]" = ()  # each with the plan of its own run

    @property
    def rows(self) -> "tuple[ServerStatus, ...]":
        """The server, followed by its replicas if these have different plans."""
        return (self, *(self.replicas if len({replica.plan for replica in self.replicas}) > 1 else ()))


def statuses(servers: Servers, name: str | None, *, check_health: bool) -> tuple[ServerStatus, ...]:
    """Return the status of all servers, or of those called `name`; `check_health` adds the health of running ones.

    A health check takes about 1 s and at most 54 s: two requests, each of which sglang answers within 20 s. A server
    with a dead process needs no health check.
    """
    found = servers.find(name)
    for server in found:
        if server.run.other_version:
            error = version_error(server.run)
            warn(error.message, hint=error.hint)
    listed = found if name is None and not check_health else None  # a check needs a URL that this host reaches
    pairs = [(server, servers.gateway_of(server, listed)) for server in found]
    with ThreadPool(_MAX_PARALLEL) as pool:  # Ctrl-C ends the wait at once; an executor would wait for its threads
        return tuple(pool.map(lambda item: _status(*item, ask=check_health), pairs, chunksize=1))


def require_healthy(servers: Servers, listed: Iterable[ServerStatus], *, explicit: bool) -> None:
    """Raise HostError if a runtime does not respond, and with `explicit` an error for the server.

    StartError means that the server has exited, SmokeError that it is running but unhealthy.
    """
    if servers.unreachable and not (explicit and listed):  # if the server was found, other runtimes do not matter
        raise HostError("; ".join(servers.unanswered()))
    if not explicit:
        return
    for server in listed:
        opened = servers.open(server.name)
        opened.require_running()
        if server.health == "unhealthy":
            count = len(server.replicas)
            default = f"not all {count} replicas are healthy at its gateway" if count else "no response"
            reason = server.detail or default
            without_gateway = opened.plan is not None and reason == _unrouted(opened, None)
            cause = opened.plan.server.gateway if opened.plan and without_gateway else server.name
            hint = RESTART_HINT.format(name=cause)
            raise SmokeError(f"`{server.name}` is running but unhealthy: {reason}", hint=hint)


def status_table(listed: Iterable[ServerStatus], *, width: int | None = None) -> str:
    """Return a table of servers, with a health column if any was checked."""
    listed = tuple(listed)
    probed = any(server.health for server in listed)
    rows = [
        (
            *(server.name, server.profile, server.runtime, _state(server)),
            *([server.health] if probed else []),
            *(server.url, server.plan[:12]),
        )
        for status in listed
        for server in status.rows
    ]
    health = ["health"] if probed else []
    return table(("name", "profile", "runtime", "status", *health, "url", "plan"), rows, width=width)


def _status(server: Server, gateway: Server | None, *, ask: bool) -> ServerStatus:
    state, runs = server.state, server.state.status is Status.RUNNING
    probed = ask and runs
    problem = exited_processes(server, ask=ask) if runs else ""
    unrouted = _unrouted(server, gateway) if probed else ""
    problem = problem or unrouted
    health = "unhealthy" if problem else _health(server) if probed else ""
    reached = server if gateway is None or unrouted else gateway
    status = _report(server, state, health=health, detail=problem or state.detail, reached=reached)
    return replace(status, replicas=tuple(_of_replica(replica, replica.state) for replica in server.replicas))


def _of_replica(server: Server, state: ServerState) -> ServerStatus:
    start, folder = RunDir(run_dir_of(server)), Path(server.run_dir).name
    row = _report(server, state, health="", detail=state.detail, reached=server)
    return replace(row, name=f"{server.name}/{folder}", plan=start.digest or server.plan_digest)


def _report(server: Server, state: ServerState, *, health: str, detail: str, reached: Server) -> ServerStatus:
    """Return the status of a server; `reached` is the server that gets its requests: itself, or one with its
    gateway."""
    return ServerStatus(
        name=server.name,
        profile=server.profile,
        runtime=server.runtime,
        status=state.status,
        health=health,
        url=reached.service_url or reached.url,  # a tunnel closes with this command
        plan=server.plan_digest,
        started_at=state.started_at,
        ended_at=state.ended_at,
        age=state.age(),
        restarts=state.restarts,
        exit_code=state.exit_code,
        detail=detail,
        run_dir=server.run_dir,
        startup=startup_seconds(server.run),
    )


def startup_seconds(run: RunDir) -> dict[str, float]:
    """Return the seconds of each stage of the start, in order; empty if they were not recorded."""
    stages, checked = run.read(PROCESSES_FILE).get("stages"), run.read(SMOKE_FILE).get(STARTUP)
    if not isinstance(stages, Mapping):
        return {}
    total = Counter[str]()  # both records contain the first sampled request of a pod
    for item in (stages, checked if isinstance(checked, Mapping) else {}):
        total.update({str(stage): seconds for stage, seconds in item.items() if isinstance(seconds, int | float)})
    return {stage: round(seconds, 1) for stage, seconds in total.items() if seconds >= _MIN_STAGE_SECONDS}


def startup_text(server: ServerStatus) -> str:
    """Return the stages of the start with their shares; "" if they are unknown."""
    total = sum(server.startup.values())
    shares = (f"{stage} {seconds:.1f} s ({seconds / total:.0%})" for stage, seconds in server.startup.items())
    return f"`{server.name}` took {total:.0f} s to start: {', '.join(shares)}" if total else ""


def _unrouted(server: Server, gateway: Server | None) -> str:
    from orchestrator.servers.rollout.join import unrouted  # noqa: PLC0415 - as in `_health`

    return unrouted(server, gateway)


def _health(server: Server) -> str:
    from orchestrator.servers.start.verify import is_healthy  # noqa: PLC0415 - an HTTP client takes 0.2 s to import

    return "healthy" if is_healthy(server) else "unhealthy"


def _state(server: ServerStatus) -> str:
    code = f" ({server.exit_code})" if server.exit_code is not None else ""
    age = server.age and (f" for {server.age}" if server.status == Status.RUNNING else f" {server.age} ago")
    return f"{server.status}{code}{age}" + (f", restarted {server.restarts}x" if server.restarts else "")
