"""A look at a server for `deploy watch`, and its healing.

What `watch` needs to know across its own death stands in the run directories alone: who ended a start (`ending.json`),
who asked for one (`up.json`), and when a server was healed (`healing.json`, in the run that had died).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.core.errors import DeployError, HostError, Interrupted, NameTakenError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.procfs import is_identity
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import redact
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.render.scripts import replica_folder
from orchestrator.runs.run_dir import (
    RunDir,
    is_locked,
    latest_run,
    no_plan,
    not_started,
    read_plan,
    require_name,
    reserved_room,
    runs_of,
)
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import STOPPED, ServerState, Status
from orchestrator.servers.exit_record import ENDING_FILE, HEALING, HEALING_FILE, UP_FAILED, saved_state
from orchestrator.servers.group import RunningServer
from orchestrator.servers.restart import restart
from orchestrator.servers.run_history import read_request
from orchestrator.servers.servers import PARTS_FILE, Servers, api_key, dead_processes, open_servers
from orchestrator.servers.watch.snapshot import RestartResult, ServerSnapshot, SnapshotFailure

_GONE: Final = ServerState(status=Status.ABSENT)


def standing(servers: Servers, name: str) -> ServerSnapshot:
    """What is known of the newest server of a name.

    Raises StartError where none was started from here, HostError where a runtime that may know it does not answer.
    """
    require_name(name)
    run, handle = _newest(servers, name)
    if servers.silent:
        raise HostError("; ".join(f"{kind} could not be asked: {why}" for kind, why in servers.silent.items()))
    if run is None or (plan := read_plan(run)) is None:
        if run is None and handle is None:
            raise not_started(servers.home, name, hint="`deploy up PROFILE` starts what can be watched from here")
        if handle and (state := servers.runtime(handle).state(handle)).status is Status.UNKNOWN:
            raise StartError(f"`{name}`: {state.detail}", hint=f"`deploy down {name}` stops it")
        raise no_plan(run, name)
    state = servers.runtime(handle).state(handle) if handle else _GONE
    runs = handle is not None and state.status is Status.RUNNING
    return ServerSnapshot(
        name=name,
        run=run.path.name,
        url=handle.url if handle else plan.server.url,
        model=plan.model.served_name,
        processes=tuple(filter(is_identity, (unit.identity for unit in handle.units))) if handle else (),
        status=state.status,
        ending="" if runs or handle is None else state.ending,
        lost=dead_processes(servers.runtime(handle), handle) if runs and handle else "",
        restarts=state.restarts,
        busy=is_locked(servers.home, name),
        wanted=_is_wanted(run, handle),
        ready=bool(run.read(PARTS_FILE)),
        by_watch=_is_healing(run),
        ranks=plan.layout.dp * plan.replicas,
        behind=tuple(_behind(plan, handle)) if plan.gateway else (),
        api_key_env=plan.server.api_key_env,
        unhealthy_after=plan.healing.unhealthy_after,
        limit=plan.healing.restarts,
        window=plan.healing.window,
        healed=tuple(_healed(servers.home, name)),
    )


def _behind(plan: Plan, handle: RunningServer | None) -> Iterator[str]:
    """The URLs of several servers: where they are found, else where the plan has them."""
    found = {Path(server.run_dir).name: server.url for server in handle.replicas} if handle else {}
    for number, each in enumerate(replica_plans(plan), start=1):
        yield found.get(replica_folder(number)) or each.server.url


def require_watchable(home: Home, names: Sequence[str]) -> None:
    """Raise StartError for a name that nothing was started under, UsageError for one that cannot be looked after.

    That is one whose key is not set, and one that its cluster looks after.
    """
    for name in names:  # its cluster, which may be away, has nothing to say to that
        if (plan := read_plan(latest_run(home, name))) is not None:
            require_not_cluster_managed(plan, name)
    with open_servers(home) as servers:
        for name in names:
            api_key(standing(servers, name).api_key_env)


def require_not_cluster_managed(plan: Plan, name: str) -> None:
    """Raise UsageError for one that others look after."""
    if (keeper := runtime_class(plan.runtime).keeper(plan)) is not None:
        raise UsageError(
            f"`deploy watch` does not look after `{name}`: {keeper}",
            hint=f"`deploy status {name}` shows restarts; `deploy monitoring {name}` writes alerts for Prometheus",
        )


def restart_dead(home: Home, name: str, dead: str, why: str) -> RestartResult:
    """Restart `name`, unless another command has acted since run `dead` exited."""
    begun = False

    def claimed(servers: Servers) -> None:
        nonlocal begun
        run, handle = _newest(servers, name)
        if run is None or run.path.name != dead or not _is_wanted(run, handle):
            raise NameTakenError(f"somebody else has started or ended `{name}` meanwhile")
        healed = {"at": datetime.now(UTC).isoformat(), "why": redact(why)}
        run.save_state(HEALING_FILE, {"healed": [*_kept(run), healed]})
        begun = True

    if full := _disk_full(home, name):
        return RestartResult(code=HostError.exit_code, message=full, attempted=False, others=False, postponed=True)
    try:
        done = restart(name, home, healing=claimed)
    except KeyboardInterrupt as error:  # before anything was touched
        raise Interrupted("interrupted") from error
    except (DeployError, OSError) as error:
        if isinstance(error, Interrupted):
            raise
        code, others = getattr(error, "exit_code", HostError.exit_code), isinstance(error, NameTakenError)
        no_room = _disk_full(home, name)
        if no_room and begun:
            _forget_attempt(home, name, dead)
        return RestartResult(
            code=code,
            message=no_room or str(error),
            attempted=begun,
            others=others and not begun,
            postponed=no_room != "" or (code == HostError.exit_code and not begun),
        )
    seconds = "" if done.seconds is None else f", ready after {done.seconds:.1f} s"
    message, run = f"proven at {done.handle.url}{seconds}", Path(done.handle.run_dir).name
    return RestartResult(code=0, message=message, attempted=True, others=False, run=run)


def _disk_full(home: Home, name: str) -> str:
    """Why a start of `name` has no room for its files; "" where it has."""
    try:
        with reserved_room(home, name):
            return ""
    except HostError as error:
        return error.message


def _forget_attempt(home: Home, name: str, dead: str) -> None:
    """Take back the record of a restart that a full disk has prevented, where the disk takes as much as that."""
    run = RunDir(home.runs / FileName(name) / FileName(dead))
    with suppress(HostError):
        run.save_state(HEALING_FILE, {"healed": _kept(run)[:-1]})


def _newest(servers: Servers, name: str) -> tuple[RunDir | None, RunningServer | None]:
    """The newest run of a name and its server; where that has none, a server of an older run with that run."""
    run, found = latest_run(servers.home, name), servers.find(name)
    of_run = (handle for handle in found if run is not None and Path(handle.run_dir).name == run.path.name)
    handle = next(of_run, next(iter(found), None))
    if handle is not None and servers.home.holds(Path(handle.run_dir), name):
        return RunDir(Path(handle.run_dir)), handle
    return run, handle


def _is_wanted(run: RunDir, handle: RunningServer | None) -> bool:
    """Whether nobody has ended this start, or only a healing did; one that is gone without a word was removed."""
    ended = run.read(ENDING_FILE)
    if not ended:  # a full disk may have kept no more than the runtime's own word
        state = saved_state(run)
        return (state is None or state.detail != STOPPED) and (handle is not None or _is_healing(run))
    asked = str(ended.get("asked"))
    return asked == HEALING or (_is_healing(run) and asked.startswith(UP_FAILED))


def _is_healing(run: RunDir) -> bool:
    request = read_request(run)
    return request is not None and request.healing


def _healed(home: Home, name: str) -> Iterator[float]:
    """When a server was healed since a person started it."""
    for run in runs_of(home, name):
        for each in _kept(run):
            moment = datetime.fromisoformat(str(each.get("at")))
            yield moment.timestamp()
        if not _is_healing(run):
            return


def _kept(run: RunDir) -> list[dict[str, object]]:
    kept = run.read(HEALING_FILE).get("healed")
    return [each for each in kept if isinstance(each, dict)] if isinstance(kept, list) else []


def take_snapshot(home: Home, name: str) -> ServerSnapshot | SnapshotFailure:
    """The standing of a server, or why it is not known."""
    try:
        with open_servers(home) as servers:
            return standing(servers, name)
    except DeployError as error:
        return SnapshotFailure(message=error.message, hint=error.hint, code=error.exit_code)
