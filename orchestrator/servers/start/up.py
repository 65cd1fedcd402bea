"""`deploy up`: from a profile to a running, verified server. A failed start leaves nothing behind."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from orchestrator.core.console import note
from orchestrator.core.errors import (
    DeployError,
    NameTakenError,
    NotReadyError,
    StartError,
    UsageError,
    interrupts_as_errors,
)
from orchestrator.core.paths import Home
from orchestrator.core.secrets import redact_data
from orchestrator.core.signals import ignore_signals
from orchestrator.plan.diff import render_diff
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import rolling_update_blocker
from orchestrator.planner.plan_warnings import report_warnings, warn_unpinned
from orchestrator.planner.source import collect_rejections
from orchestrator.runs.run_dir import (
    REQUEST_FILE,
    latest_run,
    name_lock,
    read_plan,
    require_version,
    reserved_space,
)
from orchestrator.runtimes.base import Status
from orchestrator.servers.down import grace_of
from orchestrator.servers.drain import drain_and_stop
from orchestrator.servers.exit_record import STOPPED_FOR_RESTART
from orchestrator.servers.group import Server, api_key
from orchestrator.servers.rollout.join import join, require_gateway
from orchestrator.servers.rollout.update import require_rollable, rolling_update
from orchestrator.servers.servers import Servers, open_servers, replicas_on_other_plan
from orchestrator.servers.start.host import require_host, require_ready_host, resolve_host_ref
from orchestrator.servers.start.kernels import require_archive, unpack_kernels
from orchestrator.servers.start.launch import start_server
from orchestrator.servers.start.plans import build_first_plan, prepare_start
from orchestrator.servers.start.request import StartSpec, UpRequest, UpResult
from orchestrator.servers.start.verify import await_healthy
from orchestrator.verify.gateway import is_alive


def up(
    request: UpRequest,
    home: Home,
    *,
    recovery_command: str = "",
    on_locked: Callable[[Servers], object] = lambda _: None,
    on_verified: Callable[[], None] = ignore_signals,
) -> UpResult:
    """Start the server of a profile and verify it. Raises a DeployError after stopping everything it started.

    `recovery_command` restarts the server that this call stops; by default, it is the command that started that server.
    `on_locked` is called before any change, while the name is locked, and may raise. `on_verified` is called at the
    end; by default, it ignores all later signals. A caller that passes another function stops the server on a signal.
    """
    source = request.source(home)
    home = source.home
    find_host = partial(resolve_host_ref, source.runtime, home, request.host, rank_hosts=request.rank_hosts)
    find_key = partial(api_key, source.api_key_env)
    with collect_rejections(source, find_host, find_key, source.require_startable):
        source.require_startable()
        host_ref = find_host()
        first = build_first_plan(request, source, host_ref)
        key = find_key()
    plan = first.plan
    name = request.name or plan.profile
    report_warnings(plan, name=name)
    if not source.has_fixed_plan:
        warn_unpinned(plan)
    with open_servers(home, request.host) as servers, name_lock(home, name):
        on_locked(servers)
        if (running_result := _already_up(servers, name, plan=plan, request=request)) is not None:
            return running_result
        require_archive(plan, host_ref, of_run=request.run is not None)
        running = _server_to_roll(servers, name, plan=plan, request=request)
        before = require_host(plan, servers, name, host_ref, stage=request.stage)
        prepared = prepare_start(request, source, first, host_ref)
        final, records = prepared.artifacts, prepared.records
        report_warnings(final.plan, name=name, image=prepared.image, before=final.plan)
        kernels = unpack_kernels(prepared, host_ref)
        request = replace(request, image=final.plan.prebuilt_image) if source.image else request
        start = StartSpec(
            name=name, request=request, artifacts=final, records=records, key=key, on_verified=on_verified
        )
        if running is not None:
            with reserved_space(home, name, replicas=final.plan.replicas):
                pass
            done = rolling_update(start, servers, running, host_ref, before)
            kernels.save()
            return done
        with ExitStack() as reservation:
            if servers.find(name):
                reservation.enter_context(reserved_space(home, name, replicas=final.plan.replicas))
            with _recovery_hint(servers, name, recovery_command):
                _stop_old(servers, name, request)
                reservation.close()
                preflight = require_ready_host(final.plan, host_ref, before)
                start = replace(start, records={**records, "preflight.json": redact_data(preflight.to_dict())})
                done = start_server(start, servers)
            kernels.save()
            return done


def _server_to_roll(servers: Servers, name: str, *, plan: Plan, request: UpRequest) -> Server | None:
    """Return the running server for a rolling update; None if no replicas of this name are running.

    Raises NameTakenError if its plan does not allow the update, UsageError for options that need running replicas, and
    StartError if the new plan names a gateway that cannot route to the server.
    """
    if request.run is None:  # a restart needs no gateway, which may start later
        require_gateway(servers, plan, name)
    running = _replicated_server(servers, name, by_watch=request.by_watch)
    if running is not None:
        require_version(running.run)
        require_rollable(running.plan or plan, plan, name, request)
    elif request.max_replicas is not None or request.min_gsm8k is not None:
        option = "--min-gsm8k" if request.max_replicas is None else "--max-replicas"
        raise UsageError(f"`{option}` needs running replicas; `{name}` has none", hint=f"omit `{option}`")
    return running


def _replicated_server(servers: Servers, name: str, *, by_watch: bool) -> Server | None:
    """Return the server `name` if it has replicas behind a running gateway; None otherwise.

    A hung gateway accepts no changes; for `deploy watch` (`by_watch`) it counts as dead, and all its replicas are
    stopped.
    """
    running = (item for item in servers.find(name) if item.replicas and item.state.status is Status.RUNNING)
    return next((item for item in running if not by_watch or is_alive(item.url)), None)


def _already_up(servers: Servers, name: str, *, plan: Plan, request: UpRequest) -> UpResult | None:
    """Return the result for a healthy server that already runs this plan; None if `up` must start one.

    Raises NameTakenError if the server has another plan, StartError if it does not become healthy in time or cannot
    join the gateway of its plan. With `--replace`, raises neither.
    """
    for server in () if request.replace else servers.find(name):
        state = server.state
        first = "does a rolling update" if server.replicas else "stops it first"
        hint = f"`{request.command(name)} --replace` {first}; or choose another name with `--name`"
        if state.status is Status.UNKNOWN:
            if state.started_at is None:  # its record is unreadable
                continue
            raise StartError(f"`{name}`: {state.detail}", hint=hint)
        if server.plan_digest != plan.digest:
            raise _other_plan(read_plan(latest_run(servers.home, name)), plan, server, request, hint)
        if server.rank_hosts not in {(), request.rank_hosts}:
            raise NameTakenError(f"`{name}` has its other ranks on {', '.join(server.rank_hosts)}", hint=hint)
        if state.status is Status.PENDING:
            raise StartError(f"`{name}` is pending: {state.detail}", hint=f"`deploy down {name}` cancels it; {hint}")
        if state.status is not Status.RUNNING:
            continue
        if differing := replicas_on_other_plan(server, plan):
            raise StartError(
                f"the rolling update of `{name}` is incomplete: {differing}",
                hint=f"`{request.command(name)} --replace` continues, "
                f"`deploy rollback {name}` returns to the last plan",
            )
        try:
            await_healthy(server, deadline=plan.timeouts.health_deadline)
        except NotReadyError as error:
            message = f"`{name}` is running this plan but unhealthy: {error.message}"
            raise StartError(message, hint=f"see `deploy diagnose {name}` and `deploy logs {name}`; {hint}") from error
        join(server, servers)
        return UpResult(server=server, served_name=plan.model.served_name, smoke=None, seconds=None)
    return None


def _other_plan(old: Plan | None, new: Plan, server: Server, request: UpRequest, hint: str) -> NameTakenError:
    """Return the error for a server with another plan, with `hint` unless a rolling update is impossible."""
    name, running = server.name, server.state.status is Status.RUNNING
    if running and server.replicas and old and rolling_update_blocker(old, new):
        hint = f"`deploy down {name}`, then `{request.command(name)}`; or choose another name with `--name`"
    details = render_diff(old.to_dict(), new.to_dict()) if old else ""
    ended = "" if running else f" and is not running: {server.state.exit_summary}"
    return NameTakenError(f"`{name}` has another plan{ended}", details=details, hint=hint)


@contextmanager
def _recovery_hint(servers: Servers, name: str, recovery_command: str = "") -> Iterator[None]:
    """Add the command that restarts the old server to the hint if the block fails or is interrupted."""
    runs = any(server.state.status is Status.RUNNING for server in servers.find(name))
    command = recovery_command
    if not command and runs and (run := latest_run(servers.home, name)):
        command = str(run.read(REQUEST_FILE).get("command") or "")
    try:
        with interrupts_as_errors():
            yield
    except DeployError as error:
        if command:
            hints = (error.hint, f"the old server is stopped; restart it: {command}")
            error.hint = "; ".join(filter(None, hints))
        raise


def _stop_old(servers: Servers, name: str, request: UpRequest) -> None:
    """Stop the servers called `name` as soon as their requests have ended."""
    reason = STOPPED_FOR_RESTART if request.by_watch else "replaced"
    seconds = grace_of(servers, name) if request.drain is None else request.drain
    for server in servers.find(name):
        if server.state.status is Status.RUNNING:
            note(f"stopping `{name}` to replace it")
        drain_and_stop(servers, server, seconds=seconds, reason=reason)
