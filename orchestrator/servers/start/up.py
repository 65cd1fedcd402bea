"""`deploy up`: from a profile to a running, proven server; on any failure, back to how it was."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from orchestrator.core.console import note
from orchestrator.core.errors import DeployError, Interrupted, NameTakenError, NotReadyError, StartError, UsageError
from orchestrator.core.files import remove_tree
from orchestrator.core.paths import Home
from orchestrator.core.secrets import redact_data
from orchestrator.core.signals import ignore_signals
from orchestrator.plan.diff import render_diff
from orchestrator.plan.plan import Plan
from orchestrator.planner.plan_warnings import report_warnings
from orchestrator.planner.planning import rendered_files
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import (
    REQUEST_FILE,
    latest_run,
    name_lock,
    open_run,
    read_plan,
    require_version,
    reserved_room,
)
from orchestrator.runtimes.base import Status
from orchestrator.servers.down import grace_of
from orchestrator.servers.exit_record import HEALING, stop_server
from orchestrator.servers.group import RunningServer
from orchestrator.servers.rollout.update import require_rollable, rolling_update
from orchestrator.servers.servers import Servers, api_key, open_servers, replicas_on_other_plan
from orchestrator.servers.start.decisions import decide_beforehand, prepare_start
from orchestrator.servers.start.host import host_ref, require_host, require_ready_host
from orchestrator.servers.start.launch import StartSpec, UpResult, bring_up
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.start.verify import await_healthy, is_gateway_alive


def up(
    request: UpRequest,
    home: Home,
    *,
    again: str = "",
    claimed: Callable[[Servers], object] = lambda _: None,
    proven: Callable[[], None] = ignore_signals,
) -> UpResult:
    """Bring the profile's server up and prove it. Raises a DeployError after everything it started is down again.

    `again` is the command that brings back what this stops, by default the one that started it. `claimed` is called
    once no other command can work on the name, before anything is touched, and may refuse. What is called once it is
    `proven` lets by default nothing interrupt the command any more; who goes on takes the server down himself.
    """
    source = request.source(home)
    home, place = source.home, host_ref(source.runtime, source.home, request.host)
    first = decide_beforehand(request, source, place)
    plan = first.plan
    name = request.name or plan.profile
    key = api_key(plan.server.api_key_env)
    report_warnings(plan, name=name)
    with open_servers(home, request.host) as servers, name_lock(home, name):
        claimed(servers)
        if (running := _already_up(servers, name, plan=plan, request=request)) is not None:
            return running
        standing = _replaced_one_by_one(servers, name, plan=plan, request=request)
        before = require_host(plan, servers, name, place, stage=request.stage)
        prepared = prepare_start(request, source, first, place)
        made, records = prepared.artifacts, prepared.records
        report_warnings(made.plan, name=name, image=prepared.image, before=made.plan)
        request = replace(request, image=made.plan.prebuilt_image) if source.image else request
        start = StartSpec(name=name, request=request, artifacts=made, records=records, key=key, proven=proven)
        if standing is not None:
            with _room_for(home, name, made):
                pass
            return rolling_update(start, servers, standing, place)
        with ExitStack() as room:
            if servers.find(name):
                room.enter_context(_room_for(home, name, made))
            with _way_back(servers, name, again):
                _make_room(servers, name, why=HEALING if request.healing else "replaced")
                room.close()
                machine = require_ready_host(made.plan, place, before)
                start = replace(start, records={**records, "host.json": redact_data(machine.to_dict())})
                return bring_up(start, servers)


def _replaced_one_by_one(servers: Servers, name: str, *, plan: Plan, request: UpRequest) -> RunningServer | None:
    """The servers of that name which give way one after the other; None where there are none.

    Raises NameTakenError where they cannot, and UsageError for what is asked of them where there are none.
    """
    standing = _standing_several(servers, name, healing=request.healing)
    if standing is not None:
        require_version(standing.run)
        require_rollable(standing.plan or plan, plan, name, request)
    elif request.max_replicas is not None or request.min_gsm8k is not None:
        option = "--min-gsm8k" if request.max_replicas is None else "--max-replicas"
        raise UsageError(f"`{option}` is for several replicas that run, and none run as `{name}`")
    return standing


def _standing_several(servers: Servers, name: str, *, healing: bool) -> RunningServer | None:
    """The servers of that name behind a gateway that runs, each started by itself; None where there are none.

    Behind one that hangs none can be changed: `healing` ends them all, as where it has died.
    """
    found = [handle for handle in servers.find(name) if handle.replicas]
    running = (handle for handle in found if servers.runtime(handle).state(handle).status is Status.RUNNING)
    return next((handle for handle in running if not healing or is_gateway_alive(handle)), None)


def _already_up(servers: Servers, name: str, *, plan: Plan, request: UpRequest) -> UpResult | None:
    """The same plan, running and healthy, is up already; one that has ended is started again.

    Raises NameTakenError for another plan and StartError for one that does not become healthy in time, unless it is to
    be replaced.
    """
    for handle in () if request.replace else servers.find(name):
        state = servers.runtime(handle).state(handle)
        hint = f"{_way_on(handle, name, request=request)}; or take another name with `--name`"
        if state.status is Status.UNKNOWN:
            if state.started_at is None:  # no record that can be read
                continue
            raise StartError(f"`{name}`: {state.detail}", hint=hint)
        if handle.plan_digest != plan.digest:
            old = read_plan(latest_run(servers.home, name))
            details = render_diff(old.to_dict(), plan.to_dict()) if old else ""
            ended = "" if state.status is Status.RUNNING else f", and does not run: {state.ending}"
            raise NameTakenError(f"`{name}` has another plan{ended}", details=details, hint=hint)
        if state.status is Status.PENDING:
            raise StartError(
                f"`{name}` waits for its place: {state.detail}", hint=f"`deploy down {name}` cancels it; {hint}"
            )
        if state.status is not Status.RUNNING:
            continue
        if others := replicas_on_other_plan(handle, plan):
            raise StartError(
                f"`{name}` has this plan in part: {others}",
                hint=f"`{request.command(name)} --replace` goes on, `deploy rollback {name}` goes back",
            )
        try:
            await_healthy(handle, servers.runtime(handle), deadline=plan.timeouts.health_deadline)
        except NotReadyError as error:
            raise StartError(
                f"`{name}` runs this plan and is unhealthy: {error.message}",
                hint=f"see `deploy diagnose {name}` and `deploy logs {name}`; {hint}",
            ) from error
        return UpResult(handle=handle, smoke=None, seconds=None)
    return None


def _way_on(handle: RunningServer, name: str, *, request: UpRequest) -> str:
    """The command by which a server gives way to one of the plan."""
    first = "replaces one replica after the other" if handle.replicas else "stops it first"
    return f"`{request.command(name)} --replace` {first}"


@contextmanager
def _room_for(home: Home, name: str, artifacts: Artifacts) -> Iterator[None]:
    """Hold the disk space that a start needs while the old server is stopped. Raises HostError before that."""
    with reserved_room(home, name, replicas=artifacts.plan.replicas):
        run = open_run(home, name, artifacts.plan)
        try:
            run.write(rendered_files(artifacts, name))
        finally:
            remove_tree(run.path, within=home.runs)
        yield


@contextmanager
def _way_back(servers: Servers, name: str, again: str = "") -> Iterator[None]:
    """Where the block fails, or is interrupted, name the command that brings back what runs under that name now."""
    runs = any(servers.runtime(handle).state(handle).status is Status.RUNNING for handle in servers.find(name))
    command = again or (_recorded_command(servers.home, name) if runs else None)
    try:
        yield
    except (DeployError, KeyboardInterrupt) as error:
        failure = error if isinstance(error, DeployError) else Interrupted("interrupted")
        if command:
            hints = (failure.hint, f"the old server is down, this brings it back: {command}")
            failure.hint = "; ".join(filter(None, hints))
        if failure is error:
            raise
        raise failure from error


def _make_room(servers: Servers, name: str, *, why: str) -> None:
    """Stop what has that name."""
    for handle in servers.find(name):
        runtime = servers.runtime(handle)
        if runtime.state(handle).status is Status.RUNNING:
            note(f"stopping `{name}` to replace it")
        stop_server(runtime, handle, home=servers.home, grace=grace_of(servers, name), why=why)


def _recorded_command(home: Home, name: str) -> str | None:
    run = latest_run(home, name)
    command = run.read(REQUEST_FILE).get("command") if run else None
    return str(command) if command else None
