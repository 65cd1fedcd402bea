"""The start of replicas and their gateway.

The replicas start in parallel; after each is verified, the gateway starts.
"""

from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator.core.console import info
from orchestrator.core.errors import NotReadyError
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.engine.launch import CONTROL_KEY
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import Runtime, ServerState, Status
from orchestrator.servers.group import Server, start_unit
from orchestrator.servers.rollout.gateway_workers import make_control_key, require_own_gateway
from orchestrator.servers.servers import note_gateway
from orchestrator.servers.soaks import save_report
from orchestrator.servers.start.request import StartSpec
from orchestrator.servers.start.verify import prefix_replica, run_smoke_test, wait_for_server
from orchestrator.verify.gateway import gateway_checks, wait_for_gateway
from orchestrator.verify.report import CheckResult, SmokeReport
from orchestrator.verify.target import target_of


@dataclass(kw_only=True)
class ReplicatedStart:
    """The start of all replicas of one server."""

    start: StartSpec
    run: RunDir
    home: Home
    backend: Runtime
    _servers: list[Server] = field(default_factory=list)
    _checks: list[CheckResult] = field(default_factory=list)
    _seconds: float = 0.0

    @property
    def _plan(self) -> Plan:
        return self.start.artifacts.plan

    @property
    def report(self) -> SmokeReport:
        """The check results so far."""
        return SmokeReport(url=self._plan.server.url, served_name=self._plan.model.served_name, checks=(*self._checks,))

    def start_servers(self) -> float:
        """Start all replicas, wait until each is ready and verify it; return the seconds until the last one was ready.

        Raises NotReadyError as soon as a replica exits, SmokeError if one fails its smoke test.
        """
        name, key, artifacts = self.start.name, self.start.key, self.start.artifacts
        for number, replica in enumerate(artifacts.replicas, start=1):
            folder = self.run.path / FileName(self._plan.server_names[number - 1])
            started = start_unit(self.backend, replica, name=name, run_dir=folder, secrets=self.start.secrets)
            self._servers.append(started)
            info(f"started {self._plan.label_of(number)} of `{name}`; log: {RunDir(folder).log}")
        for number, replica in enumerate(artifacts.replicas):
            check_replicas = partial(self._require_other_replicas, self._servers[number])
            self._servers[number] = self._servers[number].wait_for_placement(replica.plan, on_wait=check_replicas)
        for number, (server, replica) in enumerate(zip(self._servers, artifacts.replicas, strict=True), start=1):
            seconds = wait_for_server(
                server,
                plan=replica.plan,
                key=key,
                timeout=self.start.request.timeout,
                state=lambda server=server: self._state(server),  # type: ignore[misc]
            )
            self._seconds += seconds  # the next replica starts in the meantime
            info(f"{self._plan.label_of(number)} is ready")
        for server, (folder_name, replica) in zip(self._servers, artifacts.named_replicas, strict=True):
            tested = run_smoke_test(server, plan=replica.plan, key=key)
            save_report(server.run, tested, of_start=True)
            self._checks += prefix_replica(folder_name, tested)
        save_report(self.run, self.report)
        self.report.require()
        return self._seconds

    def start_gateway(self) -> Server:
        """Start the gateway of ready replicas, wait until it routes to all, and verify it. Raises NotReadyError."""
        gateway, secrets = replace(self.start.artifacts, replicas=()), self.start.secrets
        if not self.backend.gateway_discovery:  # otherwise the gateway discovers the replicas
            secrets[CONTROL_KEY] = make_control_key(self.run.path, self.home)
        unit = start_unit(self.backend, gateway, name=self.start.name, run_dir=self.run.path, secrets=secrets)
        count = len(self._servers)
        wait_for_gateway(unit.url, name=self.start.name, servers=count, state=unit.current_state)
        if CONTROL_KEY in secrets:
            require_own_gateway(unit.url, secrets[CONTROL_KEY])
        note_gateway(self.run, self._seconds)
        server = replace(unit, replicas=(*self._servers,))
        if self._plan.roles:
            self._checks += run_smoke_test(server, plan=self._plan, key=self.start.key).checks
        else:
            self._checks += gateway_checks(target_of(self._plan, url=unit.url, api_key=self.start.key), count)
        return server

    def _state(self, server: Server) -> ServerState:
        """Return the state of a replica; raise an error if another one has exited."""
        self._require_other_replicas(server)
        return server.current_state()

    def _require_other_replicas(self, server: Server) -> None:
        """Raise NotReadyError if another replica has exited."""
        other_servers = ((number, item) for number, item in enumerate(self._servers, start=1) if item is not server)
        for number, other in other_servers:
            state = other.current_state()
            if state.unschedulable or state.status not in {Status.RUNNING, Status.PENDING}:
                hint = "`deploy diagnose` names causes"
                raise NotReadyError(f"{self._plan.label_of(number)} exited: {state.exit_summary}", hint=hint)
