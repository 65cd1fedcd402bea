"""`deploy up`: from a profile to a running, proven server; on any failure, back to how it was."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from orchestrator.commands.artifacts import render_artifacts, rendered_files
from orchestrator.commands.down import grace_of
from orchestrator.commands.gate import kernel_gate
from orchestrator.commands.kernels import planned
from orchestrator.commands.prepare import prepare, require_machine
from orchestrator.commands.proof import answers, await_ready, explain_failure, prove
from orchestrator.commands.runs import RunDir, claim, latest_run, open_run, read_plan
from orchestrator.commands.servers import Fleet, api_key, fleet
from orchestrator.core.console import note, say
from orchestrator.core.errors import DeployError, Interrupted, NameTakenError, StartError
from orchestrator.core.paths import Home
from orchestrator.core.secret import Secret
from orchestrator.core.shell import quote
from orchestrator.plan import Plan
from orchestrator.plan.changes import changes
from orchestrator.prove.report import SmokeReport
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import Handle, Status


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the user asked for."""

    profile: str
    name: str | None
    overrides: tuple[str, ...]
    host: str | None
    replace: bool
    keep: bool
    strict_kernels: bool
    timeout: float | None  # seconds, None for as long as something moves

    def command(self, name: str) -> str:
        """The command that asks for the same again."""
        argv = ["deploy", "up", "--profile", self.profile, "--name", name]
        argv += [word for override in self.overrides for word in ("--set", override)]
        return quote(argv + (["--host", self.host] if self.host else []))


@dataclass(frozen=True, kw_only=True)
class Up:
    """A server that is up; `smoke` is None where it already was."""

    handle: Handle
    smoke: SmokeReport | None
    seconds: float | None  # from start to ready

    def to_dict(self) -> dict[str, object]:
        """As plain JSON-able data."""
        smoke = self.smoke.to_dict() if self.smoke else None
        return {"already_up": smoke is None, **asdict(self.handle), "ready_seconds": self.seconds, "smoke": smoke}


def dry_run_text(order: Order, home: Home) -> str:
    """What `up` would start, as the files it would write; starts and writes nothing."""
    artifacts = render_artifacts(*planned(order.profile, order.overrides, home))
    shown = (file for file in rendered_files(artifacts, order.name) if "/" not in file.path)
    return "\n".join(f"==> {file.path} <==\n{file.content.decode()}" for file in shown)


def up(order: Order, home: Home) -> Up:
    """Bring the profile's server up and prove it. Raises a DeployError after everything it started is down again."""
    plan, inputs = planned(order.profile, order.overrides, home)
    name = order.name or plan.profile
    key = api_key(plan.server.api_key_env)
    with fleet(home, order.host) as servers, claim(home, name):
        if (running := _already_up(servers, name, plan=plan, order=order)) is not None:
            return running
        prepared = prepare(render_artifacts(plan, inputs), home, host=order.host, inputs=inputs)
        way_back = _make_room(servers, name)
        try:
            machine = require_machine(plan, home, host=order.host)
            records = {
                **prepared.records(),
                "host.json": machine.to_dict(),
                "up.json": {"command": order.command(name)},
            }
            start = Start(name=name, order=order, artifacts=prepared.artifacts, records=records, key=key)
            return _bring_up(start, servers)
        except DeployError as error:
            if way_back is not None:
                error.hint = f"{error.hint}; the old server is down, this brings it back: {way_back}".lstrip("; ")
            raise


def _already_up(servers: Fleet, name: str, *, plan: Plan, order: Order) -> Up | None:
    """The same plan, running and healthy, is up already.

    Raises NameTakenError for another plan and StartError for one that does not answer, unless it is to be replaced.
    """
    for handle in servers.find(name):
        if order.replace or servers.runtime(handle).state(handle).status is not Status.RUNNING:
            continue
        hint = f"`{order.command(name)} --replace` stops it first; or take another name with `--name`"
        if handle.plan_digest != plan.digest:
            old = read_plan(latest_run(servers.home, name))
            details = changes(old.to_dict(), plan.to_dict()) if old else ""
            raise NameTakenError(f"`{name}` runs another plan", details=details, hint=hint)
        if not answers(handle):
            raise StartError(f"`{name}` runs this plan and does not answer", hint=f"see `deploy logs {name}`; {hint}")
        return Up(handle=handle, smoke=None, seconds=None)
    return None


def _make_room(servers: Fleet, name: str) -> str | None:
    """Stop what has that name; the command that brings it back, where something was running."""
    way_back = None
    for handle in servers.find(name):
        runtime = servers.runtime(handle)
        if runtime.state(handle).status is Status.RUNNING:
            note(f"stopping `{name}` to replace it")
            way_back = _recorded_command(servers.home, name)
        runtime.stop(handle, grace=grace_of(servers, name))
    return way_back


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start: what is started, under which name, and what its run directory keeps of the way here."""

    name: str
    order: Order
    artifacts: Artifacts
    records: Mapping[str, object]
    key: Secret | None


def _bring_up(start: Start, servers: Fleet) -> Up:
    name, plan, key = start.name, start.artifacts.plan, start.key
    runtime = servers.runtimes[plan.runtime]
    run = open_run(servers.home, name, plan)
    run.write(rendered_files(start.artifacts, name))
    for file, record in start.records.items():
        run.save(file, record)
    secrets = {plan.server.api_key_env: key} if plan.server.api_key_env and key else {}
    try:
        handle = runtime.start(start.artifacts, name=name, run_dir=run.path, secrets=secrets)
        say(f"started `{name}`; log: {_where_log(start.order, run, name)}")
        ready = await_ready(handle, runtime, plan=plan, key=key, timeout=start.order.timeout)
        report = prove(handle, runtime, plan=plan, key=key)
        run.save("smoke.json", report.to_dict())
        report.require()
        kernel_gate(runtime.logs(handle, follow=False), plan=plan, run=run, strict=start.order.strict_kernels)
    except (DeployError, KeyboardInterrupt) as error:
        raise _undo(error, servers, name, keep=start.order.keep) from error
    except BaseException:  # a full disk, a fault of this tool: nobody else would look after the server
        if not start.order.keep:
            _take_down(servers, name)
        raise
    return Up(handle=handle, smoke=report, seconds=ready.seconds)


def _where_log(order: Order, run: RunDir, name: str) -> str:
    """Its file, or the command that shows it where the runtime keeps it until the stop."""
    if run.log.exists():
        return str(run.log)
    return f"`{quote(['deploy', 'logs', name, *(['--host', order.host] if order.host else [])])}`"


def _undo(error: DeployError | KeyboardInterrupt, servers: Fleet, name: str, *, keep: bool) -> DeployError:
    """Take the server down, and say what its log gives away about the failure."""
    handles = servers.find(name)
    if isinstance(error, KeyboardInterrupt):
        failure: DeployError = Interrupted("interrupted", hint="" if handles else "nothing was started")
    else:
        failure = error
        told = [explain_failure(servers.runtime(handle), handle) for handle in handles]
        failure.details = "\n\n".join(filter(None, [failure.details, *told]))
    if keep and handles:
        failure.hint = f"`{name}` is kept: `deploy logs {name}`, then `deploy down {name}`"
        return failure
    _take_down(servers, name)
    return failure


def _take_down(servers: Fleet, name: str) -> None:
    for handle in servers.find(name):
        servers.runtime(handle).stop(handle, grace=0)


def _recorded_command(home: Home, name: str) -> str | None:
    run = latest_run(home, name)
    command = run.read("up.json").get("command") if run else None
    return str(command) if command else None
