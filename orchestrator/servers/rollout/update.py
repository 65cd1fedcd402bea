"""Rolling update: replace, add and remove replicas behind a running gateway, one at a time.

::

    cordon, drain, stop a replica ─▶ start its successor ─▶ wait until ready, verify ─▶ uncordon it ─▶ the next one
                                                            └─ the first failure ends the update

The other replicas keep serving during the update. However it ends, every running replica is verified and routed.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.bench.result import ServerProvenance
from orchestrator.core.console import info, note, warn
from orchestrator.core.errors import DeployError, NameTakenError, UsageError, interrupts_as_errors
from orchestrator.core.safe_paths import FileName
from orchestrator.core.signals import allow_signals, defer_signals
from orchestrator.hosts.report import PreflightReport
from orchestrator.kernels.plan_table import kernel_gate
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import rolling_update_blocker
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import SMOKE_FILE, RunDir, reserved_space
from orchestrator.runtimes.base import HostRef, Runtime, Status
from orchestrator.runtimes.replicas import replica_number
from orchestrator.servers.drain import Drain
from orchestrator.servers.exit_record import REMOVED, failure_reason, record_exit, stop_server
from orchestrator.servers.group import Server, run_dir_of, start_unit
from orchestrator.servers.rollout.gateway_workers import (
    DiscoveredWorkers,
    GatewayWorkers,
    count_other_models,
    open_gateway_workers,
)
from orchestrator.servers.servers import Servers, exited_processes, note_gateway
from orchestrator.servers.soaks import save_report
from orchestrator.servers.start.host import require_ready_host, wait_until_released
from orchestrator.servers.start.launch import open_run_dir, stop_after_failure
from orchestrator.servers.start.request import StartSpec, UpRequest, UpResult
from orchestrator.servers.start.verify import explain_failure, prefix_replica, run_smoke_test, wait_for_server
from orchestrator.verify.gateway import gateway_checks
from orchestrator.verify.report import CheckResult, SmokeReport
from orchestrator.verify.target import target_of

_REPLACED = "replaced"


def require_rollable(old: Plan, new: Plan, name: str, request: UpRequest) -> None:
    """Raise NameTakenError if no rolling update to the new plan is possible, UsageError if an option prevents it."""
    if new.roles and request.min_gsm8k is not None:
        message = "`--min-gsm8k` asks each server alone, and prefill and decode servers answer only together"
        raise UsageError(message, hint=f"`deploy eval {name} --suite gsm8k` measures them together")
    if reason := rolling_update_blocker(old, new):
        hint = f"`deploy down {name}`, then `{request.command(name)}` starts all replicas"
        raise NameTakenError(f"cannot do a rolling update of `{name}`: {reason}", hint=hint)


def rolling_update(
    start: StartSpec, servers: Servers, running: Server, host_ref: HostRef, before: PreflightReport
) -> UpResult:
    """Add, replace and remove replicas until all replicas of the plan run with it.

    If all replicas already run with the plan, replace each. `before` is the preflight report of the whole plan. Raises
    StartError before any change if the gateway accepts no changes, and later a DeployError whose hint names the
    progress and the next commands.
    """
    plan, seconds = start.artifacts.plan, _drain_seconds(start)
    workers = open_gateway_workers(running, plan=plan, key=start.key, grace=seconds)
    if start.request.min_gsm8k is not None:
        from orchestrator.evals.harness import harness_python  # noqa: PLC0415 - see `_require_score`

        harness_python(servers.home)  # creates its venv before a replica stops
    run = open_run_dir(start, servers.home)
    update = _RollingUpdate(
        start=start,
        servers=servers,
        backend=running.backend,
        workers=workers,
        run=run,
        host_ref=host_ref,
        before=before,
    )
    update.set_running(running)
    numbers = update.outdated() or ([] if update.surplus else list(range(1, plan.replicas + 1)))
    chosen = numbers[: start.request.max_replicas]
    for number in chosen:
        if f"{plan.server_names[number - 1].rpartition('-')[0]}-2" not in plan.server_names:
            warn(f"{plan.label_of(number)} is replaced: requests fail until the new one is ready")
    try:
        with interrupts_as_errors():
            for number in chosen:
                update.replace_replica(number)
                update.record_ended_runs()
            if len(chosen) < len(numbers):
                note(f"{update.progress_summary()}; {update.next_commands()}")
                return update.result(update.report())
            for server in update.surplus:
                update.remove_replica(server)
                update.record_ended_runs()
            report = update.report(update.remaining_checks())
            save_report(run, report, of_start=True)
            report.require()
    except BaseException as error:
        update.explain(error)
        raise
    note_gateway(run, update.seconds)
    start.on_verified()
    return update.result(report)


@dataclass(kw_only=True)
class _RollingUpdate:
    """The state of one rolling update; replicas are numbered from 1."""

    start: StartSpec
    servers: Servers
    backend: Runtime
    workers: GatewayWorkers | DiscoveredWorkers
    run: RunDir
    host_ref: HostRef
    before: PreflightReport  # of the whole plan
    seconds: float = 0.0  # until the new replicas were ready
    surplus: list[Server] = field(default_factory=list)  # replicas that the plan lacks
    _running: dict[int, Server] = field(default_factory=dict)
    _started: set[int] = field(default_factory=set)  # replicas that this update has replaced or is replacing
    _old_runs: set[Path] = field(default_factory=set)  # of replicas that ran at the beginning
    _checks: dict[int, list[CheckResult]] = field(default_factory=dict)

    @property
    def _plan(self) -> Plan:
        return self.start.artifacts.plan

    def _artifacts(self, number: int) -> Artifacts:
        return self.start.artifacts.replicas[number - 1]

    def _address(self, number: int, server: Server | None = None) -> str:
        """Return the URL under which the gateway knows the replica."""
        separate_gateway = self._plan.gateway is not None and not self._plan.gateway.one_node
        if separate_gateway and server is not None and server.url:
            return server.url
        if server is not None and server in self.surplus:
            return server.require_plan().server.url
        return self._artifacts(number).plan.server.url

    def _count_other_replicas(self, server: Server) -> int:
        """Return the number of the other replicas."""
        return sum(item is not server for item in (*self._running.values(), *self.surplus))

    def _folder(self, number: int) -> Path:
        return self.run.path / FileName(self._plan.server_names[number - 1])

    def set_running(self, running: Server) -> None:
        """Set the running replicas."""
        of_folder = {Path(server.run_dir).name: server for server in running.replicas}
        numbers = {number: of_folder.get(name) for number, name in enumerate(self._plan.server_names, start=1)}
        self._running = {number: server for number, server in numbers.items() if server is not None}
        self.surplus = [server for server in running.replicas if server not in self._running.values()]
        self._old_runs = {run_dir_of(server) for server in running.replicas}

    def outdated(self) -> list[int]:
        """Return the numbers of replicas that do not run the plan, unrouted ones first."""
        numbers = [number for number in range(1, self._plan.replicas + 1) if not self._is_current(number)]
        return sorted(numbers, key=self._is_routed)

    def _is_current(self, number: int) -> bool:
        server, digest = self._running.get(number), self._artifacts(number).plan.digest
        return server is not None and server.plan_digest == digest and self._is_routed(number)

    def _is_routed(self, number: int) -> bool:
        server = self._running.get(number)
        return (
            server is not None
            and server.current_state().status is Status.RUNNING
            and not exited_processes(server)
            and self.workers.is_routed(self._address(number), server)
        )

    def replace_replica(self, number: int) -> None:
        """Replace one replica; a failure or an interrupt leaves no new replica."""
        step = _Step()
        self._started.add(number)
        with defer_signals():
            try:
                with allow_signals():
                    with reserved_space(self.servers.home, self.start.name):
                        self._stop_old(number, step)
                    new = self._start_new(number, step)
                self.workers.uncordon(self._address(number, new), new, self._count_other_replicas(new))
            except BaseException as error:
                self._undo(number, step, error)
                raise
            self._running[number] = new
            info(f"{self._plan.label_of(number)} is updated")

    def remove_replica(self, server: Server) -> None:
        """Remove a surplus replica as soon as its requests have ended; keep it after an interrupt before its stop."""
        folder = Path(server.run_dir).name
        name, url = folder.replace("-", " "), self._address(replica_number(folder), server)
        info(f"{name}: draining")
        with defer_signals():
            try:
                with allow_signals(), Drain(server, seconds=_drain_seconds(self.start)) as drain:
                    self.workers.drain(url, server, self._count_other_replicas(server))
                    drain.wait()
                    with defer_signals():
                        stop_server(server, home=self.servers.home, grace=drain.grace, reason=REMOVED)
                        self.surplus = [item for item in self.surplus if item is not server]
            except BaseException as error:
                with suppress(DeployError):
                    if server.current_state().status is Status.RUNNING:
                        self._route_again(url, server, error)
                raise
            info(f"{name} is removed")

    def _stop_old(self, number: int, step: "_Step") -> None:
        plan, old = self._artifacts(number).plan, self._running.get(number)
        routed = self._is_routed(number)
        action = "starting" if old is None else "draining" if routed else "unhealthy, stopping"
        info(f"{self._plan.label_of(number)}: {action}")
        step.draining = True
        with Drain(old, seconds=_drain_seconds(self.start)) as drain:
            self.workers.drain(self._address(number), old, self._count_other_replicas(old) if old is not None else 0)
            if routed:  # a hung replica may never end its requests; SIGTERM ends it
                drain.wait()
            step.drained = True
            if old is not None:
                stop_server(old, home=self.servers.home, grace=drain.grace, reason=_REPLACED)
        self._running.pop(number, None)
        wait_until_released(plan, self.host_ref)

    def _start_new(self, number: int, step: "_Step") -> Server:
        replica, key = self._artifacts(number), self.start.key
        self.run.save("preflight.json", require_ready_host(replica.plan, self.host_ref, self.before).to_dict())
        folder = self._folder(number)
        new = start_unit(self.backend, replica, name=self.start.name, run_dir=folder, secrets=self.start.secrets)
        step.new = new
        step.new = new = new.wait_for_placement(replica.plan)
        self.workers.cordon(new)
        info(f"started {self._plan.label_of(number)}; log: {RunDir(folder).log}")
        timeout = self.start.request.timeout
        self.seconds += wait_for_server(new, plan=replica.plan, key=key, timeout=timeout)
        report = run_smoke_test(new, plan=replica.plan, key=key)
        save_report(RunDir(folder), report, of_start=True)
        report.require()
        self._require_score(new, number)
        strict = self.start.request.strict_kernels
        kernel_gate(new.logs(follow=False), plan=replica.plan, run=RunDir(folder), strict=strict)
        self._checks[number] = prefix_replica(self._plan.server_names[number - 1], report)
        return new

    def _require_score(self, new: Server, number: int) -> None:
        min_score = self.start.request.min_gsm8k
        if min_score is None:
            return
        from orchestrator.bench.benchmark import BenchTarget  # noqa: PLC0415 - imports the whole load client
        from orchestrator.evals.run import require_gsm8k  # noqa: PLC0415 - as above

        target = BenchTarget(
            url=new.url,
            key=self.start.key,
            provenance=ServerProvenance(),
            warnings=self._plan.warnings,
            kernel_gate=lambda: None,
        )
        label, folder = self._plan.label_of(number), self._folder(number)
        require_gsm8k(target, minimum=min_score, name=label, folder=folder, home=self.servers.home)

    def _undo(self, number: int, step: "_Step", failure: BaseException) -> None:
        """Clean up after a failure: stop the new replica; keep the old one, unless its stop had begun."""
        old = self._running.get(number)
        if step.new is not None:
            detail = stop_after_failure(step.new, RunDir(self._folder(number)), failure_reason(failure))
            if isinstance(failure, DeployError):
                explanation = explain_failure(step.new, detail)
                failure.details = "\n\n".join(filter(None, [failure.details, explanation]))
            self._forget(number)
        elif step.drained and old is not None:  # while it was being stopped
            self._running.pop(number, None)
            stop_after_failure(old, self.servers.run_of(old), _REPLACED)
        elif step.draining and old is not None:
            self._route_again(self._address(number, old), old, failure)

    def _route_again(self, url: str, server: Server, failure: BaseException) -> None:
        """Route to a drained replica that was not stopped; if that fails, add a note to the failure."""
        try:
            self.workers.uncordon(url, server, self._count_other_replicas(server))
        except DeployError as error:
            failure.add_note(error.message)

    def _forget(self, number: int) -> None:
        """Remove a stopped replica from the gateway, which may have registered it in the meantime."""
        try:
            self.workers.drain(self._address(number), None, 0)
        except DeployError as error:
            note(f"cannot remove {self._plan.label_of(number)} from the gateway: {error.message}")

    def remaining_checks(self) -> list[CheckResult]:
        """Verify the replicas that were not replaced, and the gateway."""
        for number, server in self._running.items():
            if number not in self._checks:
                plan = self._artifacts(number).plan
                results = run_smoke_test(server, plan=plan, key=self.start.key)
                self._checks[number] = prefix_replica(self._plan.server_names[number - 1], results)
        url, server = self.workers.url, self.servers.open(self.start.name)
        if self._plan.roles:
            return [*run_smoke_test(server, plan=self._plan, key=self.start.key).checks]
        workers = self._plan.replicas + count_other_models(server)
        return gateway_checks(target_of(self._plan, url=url, api_key=self.start.key), workers)

    def report(self, more: Sequence[CheckResult] = ()) -> SmokeReport:
        """Return the results of all checks, in the order of the replicas, then `more`."""
        checks = [check for _, results in sorted(self._checks.items()) for check in results]
        return SmokeReport(url=self.workers.url, served_name=self._plan.model.served_name, checks=(*checks, *more))

    def result(self, report: SmokeReport) -> UpResult:
        """Return the running server."""
        server = self.servers.open(self.start.name)
        return UpResult(server=server, served_name=self._plan.model.served_name, smoke=report, seconds=self.seconds)

    def record_ended_runs(self) -> None:
        """Record the exit of each old run without a running replica."""
        current = {run_dir_of(server) for server in (*self._running.values(), *self.surplus)}
        for path in self._old_runs - current:
            record_exit(RunDir(path), _REPLACED)
        self._old_runs &= current

    def explain(self, error: BaseException) -> None:
        """Add progress and next commands to the hint of an error; record the exit of a run without replicas.

        A run with a report counts as the newest run of the replicas, see `join_replicas`.
        """
        is_running = any(run_dir_of(server) == self.run.path for server in self._running.values())
        if not is_running and not self.run.read(SMOKE_FILE):
            record_exit(self.run, failure_reason(error))
        if isinstance(error, DeployError):
            error.hint = "; ".join(filter(None, [error.hint, self.progress_summary(), self.next_commands()]))

    def progress_summary(self) -> str:
        """Return a summary of the replicas with each plan."""
        plans = {number: self._artifacts(number).plan.digest for number in self._running}
        current = sum(server.plan_digest == plans[number] for number, server in self._running.items())
        old, down = len(self._running) - current, len(self._started - set(self._running))
        waiting = self._plan.replicas - len(self._running) - down
        words = [f"{current} of {self._plan.replicas} replicas have this plan"]
        words += [f"{old} {'has' if old == 1 else 'have'} another plan"] if old else []
        words += [f"{down} {'is' if down == 1 else 'are'} down"] if down else []
        words += [f"{waiting} {'is' if waiting == 1 else 'are'} not started yet"] if waiting else []
        words += [f"{len(self.surplus)} to be removed"] if self.surplus else []
        return ", ".join(words)

    def next_commands(self) -> str:
        """Return the commands that continue or undo the update."""
        name = self.start.name
        command = self.start.request.command(name)
        return f"`{command} --replace` continues, `deploy rollback {name}` returns to the last plan"


def _drain_seconds(start: StartSpec) -> float:
    """Return the time limit for the requests of each replaced replica, in seconds."""
    drain = start.request.drain
    return start.artifacts.plan.timeouts.termination_grace if drain is None else drain


@dataclass(kw_only=True)
class _Step:
    """The progress of the replacement of one replica."""

    draining: bool = False  # the gateway was asked to send no new requests
    drained: bool = False  # no request is left
    new: Server | None = None
