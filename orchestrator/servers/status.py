"""`deploy status`: what runs, as the runtimes and the servers themselves tell it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

from orchestrator.core.console import table
from orchestrator.core.errors import HostError, SmokeError
from orchestrator.runs.run_dir import RunDir, warn_of_version
from orchestrator.runtimes.base import ServerState, Status
from orchestrator.servers.group import RunningServer, run_dir_of
from orchestrator.servers.servers import RESTART_HINT, Servers, dead_processes

_ASKED_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """One server. `health` is `healthy`, `unhealthy`, or empty where it was not asked to generate a token."""

    name: str
    profile: str
    runtime: str
    status: str
    health: str
    url: str
    plan: str  # digest
    started_at: str | None
    ended_at: str | None
    age: str  # how long it has run, or how long ago it ended
    restarts: int
    exit_code: int | None
    detail: str
    run_dir: str
    replicas: "tuple[ServerStatus, ...]" = ()  # of several servers each; its plan is that of the start it is of

    @property
    def rows(self) -> "tuple[ServerStatus, ...]":
        """It, and below it the servers behind it while not all of them are of one plan."""
        return (self, *(self.replicas if len({each.plan for each in self.replicas}) > 1 else ()))

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)


def statuses(servers: Servers, name: str | None, *, check_health: bool) -> tuple[ServerStatus, ...]:
    """The servers (of that name); with `ask` each running one is asked for its health.

    That takes about a second, at most 54: two requests to which sglang has an answer within 20 s each. One that has
    lost a process is not asked.
    """
    handles = servers.find(name)
    for handle in handles:
        warn_of_version(handle.run)
    with ThreadPool(_ASKED_AT_ONCE) as pool:  # Ctrl-C ends the waiting at once; an executor waits for its threads
        return tuple(pool.map(lambda handle: _status(servers, handle, ask=check_health), handles, chunksize=1))


def require_healthy(servers: Servers, found: Iterable[ServerStatus], *, named: bool) -> None:
    """Raises HostError where a runtime was not to be asked; where one server is meant, StartError or SmokeError for it.

    StartError is for one that has ended, SmokeError for one that runs and does not serve.
    """
    if servers.unreachable and not (named and found):  # of one that was found, the others have nothing to say
        raise HostError("; ".join(f"cannot query {kind}: {why}" for kind, why in servers.unreachable.items()))
    if not named:
        return
    for server in found:
        servers.open(server.name).require_running()
        if server.health == "unhealthy":
            why = server.detail or _unanswered(len(server.replicas))
            raise SmokeError(
                f"`{server.name}` runs and does not serve: {why}", hint=RESTART_HINT.format(name=server.name)
            )


def _unanswered(replicas: int) -> str:
    """What is known of a server that has lost nothing, and gave no token when it was asked."""
    return f"its gateway does not count all {replicas} servers as healthy" if replicas else "it does not answer"


def status_table(found: Iterable[ServerStatus], *, width: int | None = None) -> str:
    """The servers for people; their health where any of them was asked."""
    found = tuple(found)
    asked = any(server.health for server in found)
    rows = [
        (
            *(server.name, server.profile, server.runtime, _state(server)),
            *([server.health] if asked else []),
            *(server.url, server.plan[:12]),
        )
        for whole in found
        for server in whole.rows
    ]
    health = ["health"] if asked else []
    return table(
        ("name", "profile", "runtime", "status", *health, "url", "plan"),
        rows,
        width=width,
    )


def _status(servers: Servers, handle: RunningServer, *, ask: bool) -> ServerStatus:
    state = handle.state
    asked = ask and state.status is Status.RUNNING
    looked = asked or (handle.replicas and state.status is Status.RUNNING)  # an ended replica costs no question
    lost = dead_processes(servers.runtime(handle), handle) if looked else ""
    health = "unhealthy" if lost else _health(handle) if asked else ""
    whole = _told(handle, state, health=health, detail=lost or state.detail)
    return replace(whole, replicas=tuple(_of_replica(server, server.state) for server in handle.replicas))


def _of_replica(server: RunningServer, state: ServerState) -> ServerStatus:
    start, folder = RunDir(run_dir_of(server)), Path(server.run_dir).name
    told = _told(server, state, health="", detail=state.detail)
    return replace(told, name=f"{server.name}/{folder}", plan=start.digest or server.plan_digest)


def _told(handle: RunningServer, state: ServerState, *, health: str, detail: str) -> ServerStatus:
    return ServerStatus(
        name=handle.name,
        profile=handle.profile,
        runtime=handle.runtime,
        status=state.status,
        health=health,
        url=handle.service_url or handle.url,  # a way there that this command has opened ends with it
        plan=handle.plan_digest,
        started_at=state.started_at,
        ended_at=state.ended_at,
        age=state.age(),
        restarts=state.restarts,
        exit_code=state.exit_code,
        detail=detail,
        run_dir=handle.run_dir,
    )


def _health(handle: RunningServer) -> str:
    from orchestrator.servers.start.verify import is_healthy  # noqa: PLC0415 - an HTTP client takes 0.2 s to import

    return "healthy" if is_healthy(handle) else "unhealthy"


def _state(server: ServerStatus) -> str:
    code = f" ({server.exit_code})" if server.exit_code is not None else ""
    age = server.age and (f" for {server.age}" if server.status == Status.RUNNING else f" {server.age} ago")
    return f"{server.status}{code}{age}" + (f", restarted {server.restarts}x" if server.restarts else "")
