"""Several servers, replaced one after the other behind the gateway that they have.

::

    one is taken from the gateway ─▶ its requests end ─▶ it is stopped ─▶ the new one starts, is awaited and proved
        ▲                                                                        │
        └── the next ◀── the gateway counts it and sends it requests ◀───────────┘   the first that fails ends it

Whatever ends that, no server is left that is neither proved nor counted, and those that were not touched serve on.
"""

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.bench.result import ServerProvenance
from orchestrator.core.console import note, say
from orchestrator.core.errors import DeployError, Interrupted, NameTakenError
from orchestrator.core.safe_paths import FileName
from orchestrator.core.signals import allow_signals, defer_signals
from orchestrator.kernels.plan_table import kernel_gate
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import rolling_update_blocker
from orchestrator.plan.units import server_numbers
from orchestrator.planner.estimate import startup_seconds
from orchestrator.render.artifacts import Artifacts
from orchestrator.render.scripts import replica_folder
from orchestrator.runs.run_dir import SMOKE_FILE, RunDir, reserved_room
from orchestrator.runtimes.base import HostRef, Status
from orchestrator.servers.exit_record import record_exit, stop_server, why_failed
from orchestrator.servers.group import RunningServer, ServerGroup, run_dir_of
from orchestrator.servers.rollout.gateway_workers import DiscoveredWorkers, GatewayWorkers, control_of
from orchestrator.servers.servers import Servers, dead_processes, note_gateway
from orchestrator.servers.start.host import require_ready_host, wait_until_released
from orchestrator.servers.start.launch import StartSpec, UpResult, diagnose_failure, open_run_dir, stop_after_failure
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.start.verify import prefix_replica, run_smoke_test, wait_for_server
from orchestrator.verify.gateway import gateway_checks
from orchestrator.verify.report import CheckResult, SmokeReport
from orchestrator.verify.target import target_of

_REPLACED = "replaced"


def require_rollable(old: Plan, new: Plan, name: str, request: UpRequest) -> None:
    """Raise NameTakenError where servers of one plan cannot be replaced one after the other by those of another."""
    if why := rolling_update_blocker(old, new):
        raise NameTakenError(
            f"the replicas of `{name}` cannot be replaced one after the other: {why}",
            hint=all_at_once(name, request),
        )


def all_at_once(name: str, request: UpRequest) -> str:
    """How several servers give way to others otherwise."""
    return f"`deploy down {name}` ends all of them; then `{request.command(name)}` starts all of them"


def rolling_update(start: StartSpec, servers: Servers, standing: RunningServer, place: HostRef) -> UpResult:
    """Replace the servers that are not those of the plan; where all are, each of them once more.

    Raises StartError where the gateway takes no changes, before anything is touched; afterwards a DeployError, or what
    interrupted it, with what stands where.
    """
    plan, runtime = start.artifacts.plan, servers.runtime(standing)
    control = control_of(standing, runtime, servers=plan.replicas, key=start.key, grace=plan.timeouts.termination_grace)
    if start.request.min_gsm8k is not None:
        from orchestrator.evals.run import prepare_harness  # noqa: PLC0415 - see `_require_score`

        prepare_harness(servers.home)
    run = open_run_dir(start, servers.home)
    change = _RollingUpdate(start=start, servers=servers, runtime=runtime, control=control, run=run, place=place)
    change.see(standing)
    numbers = change.wrong() or server_numbers(plan)
    chosen = numbers[: start.request.max_replicas]
    try:
        for number in chosen:
            change.replace_replica(number)
            change.end_starts()
        if len(chosen) < len(numbers):
            note(f"{change.stands()}; {change.ways()}")
            return UpResult(handle=servers.open(start.name).found, smoke=change.report(()), seconds=change.seconds)
        report = change.report(change.of_the_whole())
        run.save(SMOKE_FILE, report.to_dict())
        report.require()
    except BaseException as error:
        failure = Interrupted("interrupted") if isinstance(error, KeyboardInterrupt) else error
        change.tell(failure)
        if failure is error:
            raise
        raise failure from error
    note_gateway(run, change.seconds)
    start.proven()
    return UpResult(handle=servers.open(start.name).found, smoke=report, seconds=change.seconds)


@dataclass(kw_only=True)
class _RollingUpdate:
    """One change of several servers, as far as it has come; they are counted from 1."""

    start: StartSpec
    servers: Servers
    runtime: ServerGroup
    control: GatewayWorkers | DiscoveredWorkers
    run: RunDir
    place: HostRef
    seconds: float = 0.0  # that the new ones took until they were ready
    _standing: dict[int, RunningServer] = field(default_factory=dict)
    _starts: set[Path] = field(default_factory=set)  # that servers which stood here are of
    _checks: dict[int, list[CheckResult]] = field(default_factory=dict)

    @property
    def _plan(self) -> Plan:
        return self.start.artifacts.plan

    def _artifacts(self, number: int) -> Artifacts:
        return self.start.artifacts.replicas[number - 1]

    def _address(self, number: int, server: RunningServer | None = None) -> str:
        """Where the gateway finds it: on the node that they share, or where it has its place."""
        planned = self._artifacts(number).plan.server.url
        apart = self._plan.gateway is not None and not self._plan.gateway.one_node
        return server.url if apart and server is not None and server.url else planned

    def _folder(self, number: int) -> Path:
        return self.run.path / FileName(replica_folder(number))

    def _called(self, number: int) -> str:
        return f"replica {number} of {self._plan.replicas}"

    def see(self, standing: RunningServer) -> None:
        """Take what stands behind the gateway now."""
        of_folder = {Path(server.run_dir).name: server for server in standing.replicas}
        numbers = {number: of_folder.get(replica_folder(number)) for number in server_numbers(self._plan)}
        self._standing = {number: server for number, server in numbers.items() if server is not None}
        self._starts = {run_dir_of(server) for server in self._standing.values()}

    def wrong(self) -> list[int]:
        """The servers that are not as the plan has them, those first that do not serve."""
        numbers = [number for number in server_numbers(self._plan) if not self._is_right(number)]
        return sorted(numbers, key=self._serves)

    def _is_right(self, number: int) -> bool:
        server = self._standing.get(number)
        return server is not None and server.plan_digest == self._artifacts(number).plan.digest and self._serves(number)

    def _serves(self, number: int) -> bool:
        server = self._standing.get(number)
        return (
            server is not None
            and self.runtime.state(server).status is Status.RUNNING
            and not dead_processes(self.runtime, server)
            and self.control.serves(self._address(number), server)
        )

    def replace_replica(self, number: int) -> None:
        """Put a new server in the place of one; where that fails, or is interrupted, nothing new is left."""
        step = _Step()
        with defer_signals():
            try:
                with allow_signals():
                    with reserved_room(self.servers.home, self.start.name):
                        self._stop_old(number, step)
                    new = self._start_new(number, step)
                self.control.put_back(self._address(number, new), new)
            except BaseException as error:
                self._clear(number, step, error)
                raise
            self._standing[number] = new
            say(f"{self._called(number)} serves, as the plan has it")

    def _stop_old(self, number: int, step: "_Step") -> None:
        plan, old = self._artifacts(number).plan, self._standing.get(number)
        say(f"{self._called(number)}: {'its requests end' if self._serves(number) else 'it does not serve'}")
        step.begun = True
        self.control.take_away(self._address(number), old)
        step.away = True
        if old is not None:
            grace = plan.timeouts.termination_grace
            stop_server(self.runtime, old, home=self.servers.home, grace=grace, why=_REPLACED)
        self._standing.pop(number, None)
        wait_until_released(plan, self.place)

    def _start_new(self, number: int, step: "_Step") -> RunningServer:
        replica, key = self._artifacts(number), self.start.key
        self.run.save("host.json", require_ready_host(replica.plan, self.place).to_dict())
        folder = self._folder(number)
        new = self.runtime.start(replica, name=self.start.name, run_dir=folder, secrets=self.start.secrets)
        step.new = new
        step.new = new = self.runtime.placed(new, replica.plan)
        self.control.hold_back(new)
        say(f"started {self._called(number)}; log: {RunDir(folder).log}")
        timeout, about = self.start.request.timeout, startup_seconds(replica.plan)
        self.seconds += wait_for_server(new, self.runtime, plan=replica.plan, key=key, timeout=timeout, about=about)
        report = run_smoke_test(new, self.runtime, plan=replica.plan, key=key)
        RunDir(folder).save(SMOKE_FILE, report.to_dict())
        report.require()
        self._require_score(new, number)
        strict = self.start.request.strict_kernels
        kernel_gate(self.runtime.logs(new, follow=False), plan=replica.plan, run=RunDir(folder), strict=strict)
        self._checks[number] = prefix_replica(number, report)
        return new

    def _require_score(self, new: RunningServer, number: int) -> None:
        least = self.start.request.min_gsm8k
        if least is None:
            return
        from orchestrator.bench.run import BenchTarget  # noqa: PLC0415 - and with it the whole load client
        from orchestrator.evals.run import require_gsm8k  # noqa: PLC0415

        target = BenchTarget(
            url=new.url,
            key=self.start.key,
            provenance=ServerProvenance(),
            warnings=self._plan.warnings,
            kernel_gate=lambda: None,
        )
        called, folder = self._called(number), self._folder(number)
        require_gsm8k(target, least=least, called=called, folder=folder, home=self.servers.home)

    def _clear(self, number: int, step: "_Step", failure: BaseException) -> None:
        """Leave nothing half done: the old server goes on where it was not touched, else neither is left."""
        old = self._standing.get(number)
        if step.new is not None:
            detail = stop_after_failure(step.new, self.runtime, RunDir(self._folder(number)), why_failed(failure))
            if isinstance(failure, DeployError):
                told = diagnose_failure(self.runtime, step.new, detail)
                failure.details = "\n\n".join(filter(None, [failure.details, told]))
            self._leave(number)
        elif step.away and old is not None:  # in the midst of its stop
            self._standing.pop(number, None)
            stop_after_failure(old, self.runtime, self.servers.run_of(old), _REPLACED)
        elif step.begun and old is not None:
            try:
                self.control.put_back(self._address(number, old), old)
            except DeployError as error:
                failure.add_note(error.message)

    def _leave(self, number: int) -> None:
        """Have the gateway forget a server that was taken down, which it may just have been told of."""
        try:
            self.control.take_away(self._address(number), None)
        except DeployError as error:
            note(f"the gateway was not told that {self._called(number)} is down: {error.message}")

    def of_the_whole(self) -> list[CheckResult]:
        """The checks of those that were right before, and of the gateway."""
        for number, server in self._standing.items():
            if number not in self._checks:
                plan = self._artifacts(number).plan
                found = run_smoke_test(server, self.runtime, plan=plan, key=self.start.key)
                self._checks[number] = prefix_replica(number, found)
        url = self.control.url
        return gateway_checks(target_of(self._plan, url=url, api_key=self.start.key), self._plan.replicas)

    def report(self, more: "list[CheckResult] | tuple[()]") -> SmokeReport:
        """What the checks have found, each server's in its order, and `more`."""
        checks = [check for _, found in sorted(self._checks.items()) for check in found]
        return SmokeReport(url=self.control.url, served_name=self._plan.model.served_name, checks=(*checks, *more))

    def end_starts(self) -> None:
        """Keep of each start of which no server is left how it ended."""
        left = {run_dir_of(server) for server in self._standing.values()}
        for path in self._starts - left:
            record_exit(RunDir(path), _REPLACED)
        self._starts &= left

    def tell(self, error: BaseException) -> None:
        """Have the error say what stands where and how to go on or back; keep how a start ended of which nothing is."""
        if not any(run_dir_of(server) == self.run.path for server in self._standing.values()):
            record_exit(self.run, why_failed(error))
        if isinstance(error, DeployError):
            error.hint = "; ".join(filter(None, [error.hint, self.stands(), self.ways()]))

    def stands(self) -> str:
        """What serves now, in words."""
        plans = {number: self._artifacts(number).plan.digest for number in self._standing}
        right = sum(server.plan_digest == plans[number] for number, server in self._standing.items())
        old, down = len(self._standing) - right, self._plan.replicas - len(self._standing)
        words = [f"{right} of {self._plan.replicas} replicas have this plan"]
        words += [f"{old} still another"] if old else []
        words += [f"{down} {'is' if down == 1 else 'are'} down"] if down else []
        return ", ".join(words)

    def ways(self) -> str:
        """How to go on, and how to go back."""
        name = self.start.name
        return f"`{self.start.request.command(name)} --replace` goes on, `deploy rollback {name}` goes back"


@dataclass(kw_only=True)
class _Step:
    """How far the replacing of one server has come."""

    begun: bool = False  # the gateway is told to send it nothing more
    away: bool = False  # and has nothing more for it
    new: RunningServer | None = None
