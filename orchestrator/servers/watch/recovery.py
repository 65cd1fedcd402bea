"""Snapshots and restarts for `deploy watch`.

Run directories hold what must outlive the watcher: who stopped a run (`exit.json`), who started it (`request.json`),
and when it was restarted (`restarts.json`, in the run that died).
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
from orchestrator.runs.run_dir import (
    RunDir,
    is_locked,
    latest_run,
    name_lock,
    no_plan,
    not_started,
    read_plan,
    require_name,
    reserved_room,
    runs_of,
)
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import EXIT_FILE, STOPPED, ServerState, Status
from orchestrator.servers.exit_record import RESTARTS_FILE, STOPPED_FOR_RESTART, UP_FAILED, saved_state
from orchestrator.servers.group import RunningServer
from orchestrator.servers.rollback import restart
from orchestrator.servers.run_history import read_request
from orchestrator.servers.servers import PROCESSES_FILE, Servers, api_key, dead_processes, open_servers
from orchestrator.servers.watch.snapshot import RestartOutcome, RestartResult, ServerSnapshot, SnapshotFailure

_NOT_FOUND: Final = ServerState(status=Status.NOT_FOUND)


def snapshot_of(servers: Servers, name: str) -> ServerSnapshot:
    """Take a snapshot of the newest server of a name.

    Raises StartError if none was started from this home, HostError if a runtime does not answer.
    """
    require_name(name)
    run, handle = _newest(servers, name)
    if servers.unreachable:
        raise HostError("; ".join(servers.unanswered()))
    if run is None or (plan := read_plan(run)) is None:
        if run is None and handle is None:
            raise not_started(servers.home, name, hint="`deploy up PROFILE` starts a server")
        if handle and (state := servers.runtime(handle).state(handle)).status is Status.UNKNOWN:
            raise StartError(f"`{name}`: {state.detail}", hint=f"`deploy down {name}` stops it")
        raise no_plan(run, name)
    state = servers.runtime(handle).state(handle) if handle else _NOT_FOUND
    runs = handle is not None and state.status is Status.RUNNING
    return ServerSnapshot(
        name=name,
        run=run.path.name,
        url=handle.url if handle else plan.server.url,
        model=plan.model.served_name,
        processes=tuple(filter(is_identity, (unit.runtime_id for unit in handle.units))) if handle else (),
        status=state.status,
        exit_reason="" if runs or handle is None else state.exit_summary,
        dead=dead_processes(servers.runtime(handle), handle) if runs and handle else "",
        restarts=state.restarts,
        busy=is_locked(servers.home, name),
        wanted=_is_wanted(run, handle),
        ready=bool(run.read(PROCESSES_FILE)),
        by_watch=_started_by_watch(run),
        ranks=plan.replicas if plan.roles else plan.layout.dp * plan.replicas,
        has_roles=bool(plan.roles),
        replica_urls=tuple(_replica_urls(plan, handle)) if plan.gateway else (),
        api_key_env=plan.server.api_key_env,
        unhealthy_after=plan.restart_policy.unhealthy_after,
        max_attempts=plan.restart_policy.max_attempts,
        window=plan.restart_policy.window,
        restarted_at=tuple(_restart_times(servers.home, name)),
    )


def _replica_urls(plan: Plan, handle: RunningServer | None) -> Iterator[str]:
    """Yield the URLs of the replicas: as found, else as planned."""
    found = {Path(server.run_dir).name: server.url for server in handle.replicas} if handle else {}
    for folder, each in zip(plan.server_names, replica_plans(plan), strict=True):
        yield found.get(folder) or each.server.url


def require_watchable(home: Home, names: Sequence[str]) -> None:
    """Raise StartError for an unknown name, UsageError for a server that cannot be watched.

    Such a server has an API key that is not set here, or a cluster that restarts it.
    """
    for name in names:  # needs no answer from the cluster
        if (plan := read_plan(latest_run(home, name))) is not None:
            require_not_cluster_managed(plan, name)
    with open_servers(home) as servers:
        for name in names:
            api_key(snapshot_of(servers, name).api_key_env)


def require_not_cluster_managed(plan: Plan, name: str) -> None:
    """Raise UsageError if something other than `deploy watch` restarts the server."""
    if (keeper := runtime_class(plan.runtime).restart_owner(plan)) is not None:
        raise UsageError(
            f"cannot watch `{name}`: {keeper}",
            hint=f"`deploy status {name}` shows restarts; `deploy monitoring {name}` writes alerts for Prometheus",
        )


def restart_dead(home: Home, name: str, dead: str, why: str) -> RestartResult:
    """Restart `name`, unless another command has acted since run `dead` exited."""
    begun = False

    def on_locked(servers: Servers) -> None:
        nonlocal begun
        run, handle = _newest(servers, name)
        if run is None or run.path.name != dead or not _is_wanted(run, handle):
            raise NameTakenError(f"another command has started or stopped `{name}`")
        record = {"at": datetime.now(UTC).isoformat(), "why": redact(why)}
        run.save_state(RESTARTS_FILE, {"restarts": [*_saved(run), record]})
        begun = True

    if full := _disk_full(home, name):
        return RestartResult(outcome=RestartOutcome.POSTPONED, message=full)
    try:
        done = restart(name, home, on_locked=on_locked)
    except Interrupted:
        raise
    except (DeployError, OSError) as error:
        no_room = _disk_full(home, name)
        if no_room and begun:
            _forget_attempt(home, name, dead)
        if no_room or (not begun and isinstance(error, (HostError, OSError))):
            outcome = RestartOutcome.POSTPONED
        elif begun:
            outcome = RestartOutcome.FAILED
        else:
            outcome = RestartOutcome.SUPERSEDED if isinstance(error, NameTakenError) else RestartOutcome.REFUSED
        return RestartResult(outcome=outcome, message=no_room or str(error))
    seconds = "" if done.seconds is None else f", ready after {done.seconds:.1f} s"
    message, run = f"verified at {done.handle.url}{seconds}", Path(done.handle.run_dir).name
    return RestartResult(outcome=RestartOutcome.VERIFIED, message=message, run=run)


def _disk_full(home: Home, name: str) -> str:
    """Return why the disk has no room for a start of `name`; "" if it has."""
    plan = read_plan(latest_run(home, name))
    try:
        with name_lock(home, name), reserved_room(home, name, replicas=plan.replicas if plan else 1):
            return ""
    except NameTakenError:  # that command holds disk space of its own
        return ""
    except HostError as error:
        return error.message


def _forget_attempt(home: Home, name: str, dead: str) -> None:
    """Remove the record of a restart that a full disk prevented, if the disk takes even that."""
    run = RunDir(home.runs / FileName(name) / FileName(dead))
    with suppress(HostError):
        run.save_state(RESTARTS_FILE, {"restarts": _saved(run)[:-1]})


def _newest(servers: Servers, name: str) -> tuple[RunDir | None, RunningServer | None]:
    """Return the newest run of a name with its server; if it has none, an older run that has one."""
    run, found = latest_run(servers.home, name), servers.find(name)
    of_run = (handle for handle in found if run is not None and Path(handle.run_dir).name == run.path.name)
    handle = next(of_run, next(iter(found), None))
    if handle is not None and servers.home.holds(Path(handle.run_dir), name):
        return RunDir(Path(handle.run_dir)), handle
    return run, handle


def _is_wanted(run: RunDir, handle: RunningServer | None) -> bool:
    """Return whether no person has stopped this run. A server without any record of its end was removed by a person."""
    ended = run.read(EXIT_FILE)
    if not ended:  # on a full disk only the runtime may have recorded it
        state = saved_state(run)
        return (state is None or state.detail != STOPPED) and (handle is not None or _started_by_watch(run))
    reason = str(ended.get("asked"))
    return reason == STOPPED_FOR_RESTART or (_started_by_watch(run) and reason.startswith(UP_FAILED))


def _started_by_watch(run: RunDir) -> bool:
    request = read_request(run)
    return request is not None and request.by_watch


def _restart_times(home: Home, name: str) -> Iterator[float]:
    """Yield the Unix times of restarts since a person started the server."""
    for run in runs_of(home, name):
        for each in _saved(run):
            moment = datetime.fromisoformat(str(each.get("at")))
            yield moment.timestamp()
        if not _started_by_watch(run):
            return


def _saved(run: RunDir) -> list[dict[str, object]]:
    saved = run.read(RESTARTS_FILE).get("restarts")
    return [each for each in saved if isinstance(each, dict)] if isinstance(saved, list) else []


def take_snapshot(home: Home, name: str) -> ServerSnapshot | SnapshotFailure:
    """Return the snapshot of a server, or why none could be taken."""
    try:
        with open_servers(home) as servers:
            return snapshot_of(servers, name)
    except DeployError as error:
        return SnapshotFailure(message=error.message, hint=error.hint, code=error.exit_code)
