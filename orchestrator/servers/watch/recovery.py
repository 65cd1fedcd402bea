"""Snapshots for `deploy watch`, without the imports of a start, which took half of the CPU time.

Run directories hold the state that must outlive the watcher: who stopped a run (`exit.json`), who started it
(`request.json`), and when it was restarted (`restarts.json`, in the run that died).
"""

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from orchestrator.core.errors import DeployError, HostError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.procfs import is_identity
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import (
    RunDir,
    is_locked,
    latest_run,
    no_plan,
    not_started,
    read_plan,
    require_name,
    runs_of,
)
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import EXIT_FILE, NOT_FOUND, STOPPED, Status
from orchestrator.servers.exit_record import RESTARTS_FILE, STOPPED_FOR_RESTART, UP_FAILED, saved_state
from orchestrator.servers.group import Server, api_key
from orchestrator.servers.servers import (
    PROCESSES_FILE,
    Servers,
    exited_processes,
    open_servers,
    requested,
    requested_host,
)
from orchestrator.servers.watch.snapshot import ServerSnapshot, SnapshotFailure


def snapshot_of(servers: Servers, name: str, host: str | None = None) -> ServerSnapshot:
    """Take a snapshot of the newest server of a name. `host` is the host that its newest run names.

    Raises StartError if this home has not started one, HostError if a runtime does not answer.
    """
    require_name(name)
    run, server = newest(servers, name)
    if servers.unreachable:
        raise HostError("; ".join(servers.unanswered()))
    if run is None or (plan := read_plan(run)) is None:
        if run is None and server is None:
            raise not_started(servers.home, name, hint="`deploy up PROFILE` starts a server")
        if server and server.state.status is Status.UNKNOWN:
            raise StartError(f"`{name}`: {server.state.detail}", hint=f"`deploy down {name}` stops it")
        raise no_plan(run, name)
    state = server.state if server else NOT_FOUND
    runs = server is not None and state.status is Status.RUNNING
    return ServerSnapshot(
        name=name,
        run=run.path.name,
        url=(server.service_url or server.url) if server else plan.server.url,
        host=other_host(plan.runtime, host),
        model=plan.model.served_name,
        processes=tuple(filter(is_identity, (unit.runtime_id for unit in server.units))) if server else (),
        status=state.status,
        exit_reason="" if runs or server is None else state.exit_summary,
        dead=exited_processes(server) if runs and server else "",
        restarts=state.restarts,
        busy=is_locked(servers.home, name),
        wanted=is_wanted(run, server),
        ready=bool(run.read(PROCESSES_FILE)),
        by_watch=_started_by_watch(run),
        ranks=plan.replicas if plan.roles else plan.layout.dp * plan.replicas,
        is_remote=bool(host) or not runtime_class(plan.runtime).is_local,
        has_roles=bool(plan.roles),
        replica_urls=tuple(_replica_urls(plan, server)) if plan.gateway else (),
        api_key_env=plan.server.api_key_env,
        unhealthy_after=plan.restart_policy.unhealthy_after,
        max_attempts=plan.restart_policy.max_attempts,
        window=plan.restart_policy.window,
        restarted_at=tuple(_restart_times(servers.home, name)),
    )


def other_host(runtime: str, host: str | None) -> str:
    """Return the ssh URL of a runtime's host, from `host` or the environment; "" for this host."""
    return runtime_class(runtime).resolve_host(host, os.environ) or ""


def _replica_urls(plan: Plan, server: Server | None) -> Iterator[str]:
    """Yield the URL of each replica, or its planned URL if it is not running."""
    replicas = server.replicas if server else ()
    urls = {Path(replica.run_dir).name: replica.service_url or replica.url for replica in replicas}
    for name, server_plan in plan.servers.items():
        yield urls.get(name) or server_plan.server.url


def require_watchable(home: Home, names: Sequence[str]) -> None:
    """Raise StartError for an unknown name, UsageError for a server that cannot be watched.

    A server cannot be watched if its API key is not set here, or if a cluster restarts it.
    """
    for name in names:  # needs no answer from the cluster
        if (plan := read_plan(latest_run(home, name))) is not None:
            require_not_cluster_managed(plan, name)
    for name in names:
        host = requested_host(home, name)
        with open_servers(home, host) as servers:
            api_key(snapshot_of(servers, name, host).api_key_env)


def require_not_cluster_managed(plan: Plan, name: str) -> None:
    """Raise UsageError if something other than `deploy watch` restarts the server."""
    if (keeper := runtime_class(plan.runtime).restart_owner(plan)) is not None:
        hint = f"`deploy status {name}` shows restarts; `deploy monitoring {name} --output DIR` writes alerts"
        raise UsageError(f"cannot watch `{name}`: {keeper}", hint=hint)


def newest(servers: Servers, name: str) -> tuple[RunDir | None, Server | None]:
    """Return the newest run of a name with its server; if it has no server, an older run that does."""
    run, found = latest_run(servers.home, name), servers.find(name)
    of_run = (server for server in found if run is not None and Path(server.run_dir).name == run.path.name)
    server = next(of_run, next(iter(found), None))
    if server is not None and servers.home.holds(Path(server.run_dir), name):
        return RunDir(Path(server.run_dir)), server
    return run, server


def is_wanted(run: RunDir, server: Server | None) -> bool:
    """Return whether no person has stopped this run. A person removed a server that left no exit record."""
    ended = run.read(EXIT_FILE)
    if not ended:  # with a full disk, only the runtime may have recorded the end
        state = saved_state(run)
        return (state is None or state.detail != STOPPED) and (server is not None or _started_by_watch(run))
    reason = str(ended.get("asked"))
    return reason == STOPPED_FOR_RESTART or (_started_by_watch(run) and reason.startswith(UP_FAILED))


def _started_by_watch(run: RunDir) -> bool:
    return requested(run, "by_watch") is True


def _restart_times(home: Home, name: str) -> Iterator[float]:
    """Yield the Unix times of the restarts since a person last started the server."""
    for run in runs_of(home, name):
        for saved_restart in saved_restarts(run):
            moment = datetime.fromisoformat(str(saved_restart.get("at")))
            yield moment.timestamp()
        if not _started_by_watch(run):
            return


def saved_restarts(run: RunDir) -> list[dict[str, object]]:
    """Return the restarts by `deploy watch` after this run exited."""
    saved = run.read(RESTARTS_FILE).get("restarts")
    return [item for item in saved if isinstance(item, dict)] if isinstance(saved, list) else []


def take_snapshot(home: Home, name: str) -> ServerSnapshot | SnapshotFailure:
    """Return the snapshot of a server, or the reason why it failed."""
    try:
        host = requested_host(home, name)
        with open_servers(home, host) as servers:
            return snapshot_of(servers, name, host)
    except DeployError as error:
        return SnapshotFailure(message=error.message, hint=error.hint, code=error.exit_code)
