"""`deploy up`: from a profile to a running, proven server; on any failure, back to how it was."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from orchestrator.core.catalog import Catalogue
from orchestrator.core.console import note, warn
from orchestrator.core.errors import DeployError, Interrupted, NameTakenError, NotReadyError, StartError, UsageError
from orchestrator.core.files import remove_tree
from orchestrator.core.paths import Home
from orchestrator.core.redaction import redact_data
from orchestrator.core.signals import unheard
from orchestrator.kernels.coverage import applies_to
from orchestrator.kernels.plan_coverage import (
    RowSources,
    may_fuse,
    note_coverage,
    require_covered,
    require_fusion_told,
    with_fusion_told,
)
from orchestrator.kernels.plan_table import make_table
from orchestrator.plan.diff import changes
from orchestrator.plan.plan import Plan
from orchestrator.planner.capacity import note_capacity
from orchestrator.planner.estimate import steps_text
from orchestrator.planner.image_env import image_hazards, note_environment
from orchestrator.planner.lock import home_of_run, locked, moved_since
from orchestrator.planner.planning import planned, planned_at, read_profile, render_artifacts, rendered_files
from orchestrator.planner.prebuilt import ready_plan, ready_preview, require_contained
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import RunDir, claim, latest_run, open_run, read_plan
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import Place, Prepared, Status
from orchestrator.servers.down import grace_of
from orchestrator.servers.exit_record import HEALING, stop_server
from orchestrator.servers.group import Server
from orchestrator.servers.rollout.update import require_one_by_one, roll
from orchestrator.servers.servers import Fleet, api_key, fleet, of_other_plans
from orchestrator.servers.start.argument_check import Locate, engine_files, profile_places, require_accepted
from orchestrator.servers.start.host import place_of
from orchestrator.servers.start.launch import Start, Up, bring_up
from orchestrator.servers.start.prepare import (
    bring_checkpoint,
    builtin_tables,
    far_headers,
    known_headers,
    prepare_engine,
    prepare_overlay,
    require_machine,
)
from orchestrator.servers.start.replay import recorded, recorded_rows
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.start.verify import await_healthy, gateway_lives


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What `up` would do: its steps, and the files it would start the server from."""

    steps: str
    files: str


def preview(request: UpRequest, home: Home) -> Preview:
    """What `up` would do and start, or why it would refuse; it starts and writes nothing."""
    valid = None
    home = home_of_run(Path(request.run), home) if request.run else home
    if not request.decided:
        valid = read_profile(request.profile, overrides=request.overrides, catalogue=Catalogue.of(home))
    plan, inputs = planned_at(valid, home) if valid else _decided(request, home)
    place = place_of(plan, home, request.host)
    if request.image and valid:
        require_contained(plan)
        plan = ready_preview(request.on_image(request.image), plan, place)
    plan = _with_fusion_told(plan, request, place)
    _tell_hazards(plan)
    artifacts = render_artifacts(plan, inputs)
    shown = (file for file in rendered_files(artifacts, request.name) if "/" not in file.path)
    files = "\n".join(f"==> {file.path} <==\n{file.content.decode()}" for file in shown)
    if not plan.ready_image:
        note_coverage(plan, home)
    note_environment(plan, home)
    if valid:
        note_capacity(plan, valid.capacity)
    if not plan.ready_image and not request.accept_untuned:
        require_covered(plan, home)
    return Preview(steps=steps_text(artifacts, place), files=files)


def _tell_hazards(plan: Plan) -> None:
    for hazard in plan.hazards:
        warn(f"{hazard.what} ({hazard.source})", hint=hazard.hint)


def up(
    request: UpRequest,
    home: Home,
    *,
    again: str = "",
    claimed: Callable[[Fleet], object] = lambda _: None,
    proven: Callable[[], None] = unheard,
) -> Up:
    """Bring the profile's server up and prove it. Raises a DeployError after everything it started is down again.

    `again` is the command that brings back what this stops, by default the one that started it. `claimed` is called
    once no other command can work on the name, before anything is touched, and may refuse. What is called once it is
    `proven` lets by default nothing interrupt the command any more; who goes on takes the server down himself.
    """
    home = home_of_run(Path(request.run), home) if request.run else home
    plan, inputs = _decided(request, home)
    name = request.name or plan.profile
    place = place_of(plan, home, request.host)
    if request.image:
        require_contained(plan)
    key = api_key(plan.server.api_key_env)
    if plan.server.answers_everyone:
        hint = "`--set server.api_key_env=NAME` names the variable that holds a key"
        warn(
            f"`{name}` listens on {plan.server.host} without an API key: it answers everyone who reaches it", hint=hint
        )
    with fleet(home, request.host) as servers, claim(home, name):
        claimed(servers)
        rows = recorded_rows(plan, place, accept_untuned=request.accept_untuned)
        if request.image and not request.decided:
            plan, rows = ready_plan(request.on_image(request.image), place)
            request = replace(request, image=plan.ready_image)
        plan = _with_fusion_told(plan, request, place)
        if (running := _already_up(servers, name, plan=plan, request=request)) is not None:
            return running
        standing = _standing_several(servers, name, healing=request.healing)
        if standing is not None:
            old = standing.plan
            require_one_by_one(old or plan, plan, name, request)
        elif request.only is not None or request.least_gsm8k is not None:
            option = "--least-gsm8k" if request.only is None else "--only"
            raise UsageError(f"`{option}` is for several replicas that run, and none run as `{name}`")
        _tell_hazards(plan)
        prepared = _prepared(request, plan, inputs, rows, place)
        for hazard in image_hazards(plan, prepared.image) if prepared.image else ():
            warn(f"{hazard.what} ({hazard.source})", hint=hazard.hint)
        if servers.find(name):
            _require_writable(home, name, prepared.artifacts)
        made, records = prepared.artifacts, prepared.records
        start = Start(name=name, request=request, artifacts=made, records=records, key=key, proven=proven)
        if standing is not None:
            return roll(start, servers, standing, place)
        with _way_back(servers, name, again):
            _make_room(servers, name, why=HEALING if request.healing else "replaced")
            machine = require_machine(made.plan, place)
            start = replace(start, records={**records, "host.json": redact_data(machine.to_dict())})
            return bring_up(start, servers)


def _decided(request: UpRequest, home: Home) -> tuple[Plan, dict[str, bytes]]:
    """What the profile says now, or what an earlier start was decided to be."""
    if request.run is not None:
        run = RunDir(Path(request.run))
        plan, inputs = recorded(run, home)
        for name in moved_since(run.path, plan, home):
            warn(f"`{name}` is another one now than when `{run.path.name}` was started: what it makes is as it is now")
        return plan, inputs
    if request.lock is not None:
        return locked(Path(request.lock), home)
    return planned(request.profile, request.overrides, home)


def _standing_several(servers: Fleet, name: str, *, healing: bool) -> Server | None:
    """The servers of that name behind a gateway that runs, each started by itself; None where there are none.

    Behind one that hangs none can be changed: `healing` ends them all, as where it has died.
    """
    found = [handle for handle in servers.find(name) if handle.replicas]
    running = (handle for handle in found if servers.runtime(handle).state(handle).status is Status.RUNNING)
    return next((handle for handle in running if not healing or gateway_lives(handle)), None)


def _prepared(request: UpRequest, plan: Plan, inputs: Mapping[str, bytes], rows: RowSources, place: Place) -> Prepared:
    """What is to be started, with engine, checkpoint and tuned kernels in place.

    Before a checkpoint is downloaded the engine has judged the arguments. Its image is then built without the table of
    tuned kernels where there is none yet, and once more with it.
    """
    home, first, early = place.home, render_artifacts(plan, inputs), None
    note_coverage(plan, home, rows)
    if not request.accept_untuned:
        require_covered(plan, home, rows)  # before anything is downloaded
    files = engine_files(plan, place, fetch=request.stage) if plan.model.source.kind == "hub" else None
    if files is not None:
        early = _judged(request, first, place, files)
    bring_checkpoint(plan, place, stage=request.stage)
    rows = replace(rows, model=far_headers(plan, place)) if applies_to(plan) or may_fuse(plan) else rows
    plan = _with_fusion_told(plan, request, place)
    as_decided = plan.ready_image or request.decided
    if not as_decided and make_table(
        plan, home, partial(builtin_tables, plan, home, place), accept_untuned=request.accept_untuned
    ):
        told, (plan, inputs) = plan.flags, planned(request.profile, request.overrides, home)
        plan = replace(plan, flags=told)
    if not request.accept_untuned:
        require_covered(plan, home, rows)  # by the checkpoint's own config and the image's own rows
    artifacts = render_artifacts(plan, inputs)
    if early is None or artifacts != first:
        early = _judged(request, artifacts, place, files or engine_files(plan, place, fetch=False))
    prepare_overlay(early, place)
    return early


def _judged(request: UpRequest, artifacts: Artifacts, place: Place, files: Mapping[str, str] | None) -> Prepared:
    """What the server runs in, which has accepted the arguments as far as it can be asked here.

    Raises BuildError, ProfileError.
    """
    prepared = prepare_engine(artifacts, place)
    if prepared.engine is not None:
        require_accepted(prepared.artifacts, prepared.engine, place.home, files, _locate(request, place.home))
    elif not runtime_class(artifacts.plan.runtime).elsewhere:  # else its nodes judge them, before the server starts
        note("arguments not checked by sglang: only the node that serves has it")
    return prepared


def _locate(request: UpRequest, home: Home) -> Locate:
    """Where the profile says something; of a start that was decided before, which start."""
    if request.decided:
        return lambda path: f"`{'.'.join(path)}` in {request.run or request.lock}"
    return profile_places(request.profile, request.overrides, home)


def _with_fusion_told(plan: Plan, request: UpRequest, place: Place) -> Plan:
    """The plan, told to keep shared experts apart where its checkpoint does; one decided before is refused instead."""
    rows = RowSources(model=known_headers(plan, place))
    if place.far is not None and rows.model is None:
        return plan  # nobody has looked into that checkpoint yet
    if request.decided:
        require_fusion_told(plan, place.home, rows)
        return plan
    return with_fusion_told(plan, place.home, rows)


def _already_up(servers: Fleet, name: str, *, plan: Plan, request: UpRequest) -> Up | None:
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
            details = changes(old.to_dict(), plan.to_dict()) if old else ""
            ended = "" if state.status is Status.RUNNING else f", and does not run: {state.ending}"
            raise NameTakenError(f"`{name}` has another plan{ended}", details=details, hint=hint)
        if state.status is Status.PENDING:
            raise StartError(
                f"`{name}` waits for its place: {state.detail}", hint=f"`deploy down {name}` cancels it; {hint}"
            )
        if state.status is not Status.RUNNING:
            continue
        if others := of_other_plans(handle, plan):
            raise StartError(
                f"`{name}` has this plan in part: {others}",
                hint=f"`{request.command(name)} --replace` goes on, `deploy rollback {name}` goes back",
            )
        try:
            await_healthy(handle, servers.runtime(handle), deadline=plan.waiting.health_deadline)
        except NotReadyError as error:
            raise StartError(
                f"`{name}` runs this plan and is unhealthy: {error.message}",
                hint=f"see `deploy diagnose {name}` and `deploy logs {name}`; {hint}",
            ) from error
        return Up(handle=handle, smoke=None, seconds=None)
    return None


def _way_on(handle: Server, name: str, *, request: UpRequest) -> str:
    """The command by which a server gives way to one of the plan."""
    first = "replaces one replica after the other" if handle.replicas else "stops it first"
    return f"`{request.command(name)} --replace` {first}"


def _require_writable(home: Home, name: str, artifacts: Artifacts) -> None:
    """Find a disk that takes no run before anything is stopped for one. Raises HostError."""
    run = open_run(home, name, artifacts.plan)
    try:
        run.write(rendered_files(artifacts, name))
    finally:
        remove_tree(run.path, within=home.runs)


@contextmanager
def _way_back(servers: Fleet, name: str, again: str = "") -> Iterator[None]:
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


def _make_room(servers: Fleet, name: str, *, why: str) -> None:
    """Stop what has that name."""
    for handle in servers.find(name):
        runtime = servers.runtime(handle)
        if runtime.state(handle).status is Status.RUNNING:
            note(f"stopping `{name}` to replace it")
        stop_server(runtime, handle, home=servers.home, grace=grace_of(servers, name), why=why)


def _recorded_command(home: Home, name: str) -> str | None:
    run = latest_run(home, name)
    command = run.read("up.json").get("command") if run else None
    return str(command) if command else None
