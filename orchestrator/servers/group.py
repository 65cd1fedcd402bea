"""A server: a single unit, or a gateway and its replicas.

The gateway starts after the replicas and stops before them. The logs of all units are joined. After a rolling update, a
server consists of the newest run of each replica number.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.console import warn
from orchestrator.core.errors import HostError, Problem, StartError, UsageError
from orchestrator.core.secrets import SAFE_LENGTH, Secret, redact
from orchestrator.engine.endpoints import read_key
from orchestrator.plan.units import Role
from orchestrator.runs.run_dir import SMOKE_FILE, RunDir, read_plan, require_plan
from orchestrator.runtimes.base import LOG, Runtime, ServerState, Status, Unit
from orchestrator.runtimes.replicas import in_order, rank_dirs, rank_of, replica_name, run_root

if TYPE_CHECKING:
    from orchestrator.engine.client import EngineClient, Timeouts
    from orchestrator.plan.plan import Plan
    from orchestrator.render.artifacts import Artifacts

NO_GATEWAY: Final = ServerState(status=Status.EXITED, detail="the gateway was not started")
RESTART_HINT: Final = "`deploy diagnose {name}` and `deploy logs {name}` show why; `deploy restart {name}` restarts it"
_INTERVAL: Final = 0.2  # seconds between two reads of the replicas' logs


@dataclass(frozen=True, kw_only=True)
class Server(Unit):
    """A server under one name: a single unit, or a gateway and its replicas."""

    backend: Runtime = field(compare=False, repr=False)  # starts and stops its units
    replicas: tuple[Server, ...] = ()
    gateway_dir: str = ""  # run directory of the gateway, if `run_dir` belongs to a later run

    @classmethod
    def of(cls, unit: Unit, backend: Runtime) -> Server:
        """Return a single unit as a server."""
        return cls(backend=backend, **{item.name: getattr(unit, item.name) for item in fields(Unit)})

    @property
    def log_dir(self) -> str:
        """Directory of the record and log of `unit`."""
        return self.gateway_dir or self.run_dir

    @property
    def unit(self) -> Unit:
        """The single unit, or the gateway."""
        values = {item.name: getattr(self, item.name) for item in fields(Unit)}
        return Unit(**{**values, "run_dir": self.log_dir})

    @property
    def run(self) -> RunDir:
        """The newest run of the server."""
        return RunDir(Path(self.run_dir))

    @cached_property
    def plan(self) -> Plan | None:
        """The plan of the newest run; None if it is missing, unreadable or not in this home."""
        return read_plan(self.run)

    def require_plan(self) -> Plan:
        """Return the plan of the newest run. Raises StartError if it is not in this home."""
        return require_plan(self.run, self.name)

    @property
    def engines(self) -> tuple[Server, ...]:
        """The sglang servers: the replicas, or the server itself."""
        return self.replicas or (self,)

    @property
    def has_roles(self) -> bool:
        """Whether prefill and decode are separate servers."""
        return any(server.role in {Role.PREFILL, Role.DECODE} for server in self.replicas)

    @property
    def key(self) -> Secret | None:
        """The API key, from the variable in the plan. Raises UsageError if it is not set."""
        return api_key(self.plan.server.api_key_env) if self.plan else None

    @property
    def model(self) -> str:
        """Served model name; sglang's `default` without a plan."""
        return self.plan.model.served_name if self.plan else "default"

    @property
    def units(self) -> tuple[Unit, ...]:
        """The single unit, or the gateway if it exists and the replicas."""
        main = (self.unit,) if self.runtime_id or not self.replicas else ()
        return (*main, *(replica.unit for replica in self.replicas))

    @property
    def logged(self) -> tuple[Unit, ...]:
        """The units, each followed by its ranks on other nodes, which have their own logs."""
        return tuple(
            replace(unit, run_dir=str(folder))
            for unit in self.units
            for folder in (unit.run_dir, *rank_dirs(Path(unit.run_dir)))
        )

    @property
    def max_drain(self) -> float | None:
        """The seconds after which the runtime aborts the requests of a stopping server; None if never."""
        if not self.backend.drains_on_stop or self.plan is None:
            return None
        return float(self.plan.timeouts.termination_grace)

    def client(self, limits: Timeouts | None = None) -> EngineClient:
        """Return a client with the API key."""
        from orchestrator.engine import client  # noqa: PLC0415 - an HTTP client takes 0.2 s to import

        return client.EngineClient(self.url, key=self.key, limits=limits or client.DEFAULT_TIMEOUTS)

    def wait_for_placement(self, plan: Plan, *, on_wait: Callable[[], object] = lambda: None) -> Server:
        """Wait until a unit is scheduled. See `Runtime.wait_for_placement`."""
        return Server.of(self.backend.wait_for_placement(self.unit, plan, on_wait=on_wait), self.backend)

    def current_state(self) -> ServerState:
        """Ask for the state of the single unit or of the gateway; `state` is from the time of the listing."""
        return NO_GATEWAY if self.replicas and not self.runtime_id else self.backend.state(self.unit)

    def require_running(self) -> ServerState:
        """Return the current state. Raises StartError with the exit reason if the server is not running."""
        state = self.current_state()
        if (ended := exit_problem(self.name, state)) is not None:
            raise StartError(ended.message, hint=ended.hint)
        return state

    def process_cmdlines(self) -> tuple[str, ...]:
        """Return the command lines of the processes of a unit. See `Runtime.process_cmdlines`."""
        return self.backend.process_cmdlines(self.unit)

    def host_memory(self) -> int | None:
        """Return the total host memory of all units; None if any is unknown. See `Runtime.host_memory`."""
        sizes = [self.backend.host_memory(unit) for unit in self.units]
        return None if None in sizes else sum(filter(None, sizes))

    def logs(self, *, follow: bool) -> Iterator[str]:
        """Yield the log; with several units or ranks, a file name precedes each part, as in the output of `tail`."""
        return self._all_logs(follow=follow) if len(self.logged) > 1 else self.backend.logs(self.unit, follow=follow)

    def tail(self) -> Callable[[], Iterator[str]]:
        """Return a function that, at each call, yields the new lines of all logs."""
        tails = [self._tail(unit, set()) for unit in self.logged]
        return tails[0] if len(tails) == 1 else lambda: chain.from_iterable(tail() for tail in tails)

    def stop(self, *, grace: float) -> None:
        """Stop the gateway first, then the replicas, which drain at the same time."""
        until, unit = time.monotonic() + grace, self.unit
        if not self.replicas:
            self.backend.stop(unit, grace=grace)
            return
        try:
            if unit.runtime_id:
                self.backend.stop(unit, grace=grace)
        finally:  # highest replica first (pods all at once); last the gateway again, in case its stop failed
            self.backend.stop_all(self.units[::-1], grace=max(until - time.monotonic(), 0))

    def _tail(self, unit: Unit, unreachable: set[Unit]) -> Callable[[], Iterator[str]]:
        tail = self.backend.tail(unit)
        return lambda: _lines_if_reachable(unit, tail(), unreachable)

    def _runs(self, unit: Unit) -> bool:
        try:
            return self.backend.state(unit).status is Status.RUNNING
        except HostError:
            if not rank_of(Path(unit.run_dir)):
                raise
            return False

    def _all_logs(self, *, follow: bool) -> Iterator[str]:
        units, unreachable = self.logged, set[Unit]()
        names = [os.path.relpath(Path(unit.run_dir, LOG), self.run_dir) for unit in units]
        for name, unit in zip(names, units, strict=True):
            yield f"==> {name} <=="
            yield from _lines_if_reachable(unit, self.backend.logs(unit, follow=False), unreachable)
        tails = [self._tail(unit, unreachable) for unit in units] if follow else []
        for tail in tails:
            deque(tail(), maxlen=0)
        last = names[-1]
        while follow and any(self._runs(unit) for unit in units):
            time.sleep(_INTERVAL)
            for name, tail in zip(names, tails, strict=True):
                for line in map(redact, tail()):
                    if name != last:
                        yield f"==> {name} <=="
                    last = name
                    yield line


def start_unit(
    backend: Runtime, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]
) -> Server:
    """Start one unit. See `Runtime.start`."""
    started = backend.start(artifacts, name=name, run_dir=run_dir, secrets=secrets)
    return Server.of(replace(started, role=artifacts.plan.role), backend)


def _lines_if_reachable(unit: Unit, lines: Iterator[str], unreachable: set[Unit]) -> Iterator[str]:
    """Yield the lines of a unit. If the host of a rank other than 0 does not answer, warn once.

    Record such ranks in `unreachable`. Raises HostError if the host of rank 0 does not answer.
    """
    try:
        yield from lines
    except HostError as error:
        if not (rank := rank_of(Path(unit.run_dir))):
            raise
        if unit not in unreachable:
            warn(f"cannot read the log of rank {rank}: {error.message}", hint=error.hint)
        unreachable.add(unit)


def servers_of(backend: Runtime, units: Sequence[Unit]) -> tuple[Server, ...]:
    """Return the servers that consist of the units of a runtime, sorted by name."""
    running = sorted((Server.of(unit, backend) for unit in units), key=lambda unit: (unit.name, unit.run_dir))
    names = groupby(running, key=lambda unit: unit.name)
    return tuple(chain.from_iterable(_servers_of_name(list(same)) for _, same in names))


def _servers_of_name(units: Sequence[Server]) -> Iterator[Server]:
    """Yield the runs of one name, then the units with an unreadable record."""
    starts: dict[Path, list[Server]] = {}
    for unit in units:
        if unit.runtime_id:
            starts.setdefault(run_dir_of(unit), []).append(unit)
    yield from merge_updates([_start(same) for same in starts.values()])
    yield from (unit for unit in units if not unit.runtime_id)


def _start(units: Sequence[Server]) -> Server:
    """Join the units of one run into a server."""
    main = next((unit for unit in units if not replica_name(Path(unit.run_dir))), None)
    replicas = [unit for unit in units if unit is not main]
    in_turn = sorted(replicas, key=lambda unit: in_order(Path(unit.run_dir).name))
    return main if main is not None and not replicas else join_replicas(main, in_turn)


def join_replicas(gateway: Server | None, servers: Sequence[Server]) -> Server:
    """Join replicas, and their gateway if it was started, into one server of their newest run."""
    if gateway is not None:
        gateway, first = replace(gateway, role=Role.GATEWAY), Path(gateway.log_dir)
        # A run that only removed replicas has none of them; its report shows that the run ended.
        later = (report.parent for report in first.parent.glob(f"*/{SMOKE_FILE}"))
        newest = max([gateway.log_dir, *(str(run_dir_of(server)) for server in servers), *map(str, later)])
        if newest == gateway.log_dir:
            return replace(gateway, replicas=(*servers,))
        digest = _planned_digest(Path(newest))
        return replace(gateway, plan_digest=digest, run_dir=newest, gateway_dir=gateway.log_dir, replicas=(*servers,))
    top = run_dir_of(servers[0])
    return replace(
        servers[0],
        plan_digest=_planned_digest(top),
        url="",
        service_url="",
        forward_command="",
        run_dir=str(top),
        runtime_id="",
        replicas=(*servers,),
        state=NO_GATEWAY,
    )


def merge_updates(servers: Sequence[Server]) -> list[Server]:
    """Merge the runs of one name after a rolling update: one gateway, and the newest replica of each number."""
    gateways = [server for server in servers if server.runtime_id]
    replica_runs = [server for server in servers if server.replicas and not server.runtime_id]
    if len(gateways) != 1 or not replica_runs:
        return list(servers)
    starts = sorted((gateways[0], *replica_runs), key=lambda start: start.log_dir)
    newest = {Path(server.run_dir).name: server for start in starts for server in start.replicas}
    merged = join_replicas(gateways[0], [newest[name] for name in sorted(newest, key=in_order)])
    return [merged, *(server for server in servers if server not in starts)]


def run_dir_of(unit: Unit) -> Path:
    """Return the run directory of a unit; for a replica, the directory of the whole run."""
    return run_root(Path(unit.run_dir)).absolute()


def run_dirs(servers: Sequence[Server]) -> list[Path]:
    """Return the run directories of servers and of their replicas."""
    directories = {run_dir_of(replica) for server in servers for replica in (server, *server.replicas)}
    return sorted(directories | {Path(server.log_dir) for server in servers})


def api_key(variable: str | None) -> Secret | None:
    """Return the API key from the environment variable that a plan names.

    Raises UsageError if the variable is not set or its key is invalid.
    """
    if variable is None:
        return None
    if not (value := os.environ.get(variable)):
        message = f"`{variable}` is not set: the plan reads the API key from this variable"
        raise UsageError(message, hint=f"export {variable}=…")
    key = read_key(value, location=variable)
    if len(key.reveal()) < SAFE_LENGTH:
        problem = f"the API key in `{variable}` has fewer than {SAFE_LENGTH} characters"
        warn(f"{problem}: a short key can be guessed, and output redacts it only as a whole word")
    return key


def exit_problem(name: str, state: ServerState) -> Problem | None:
    """Return how a server exited, with a hint; None if it is running."""
    if state.status is Status.RUNNING:
        return None
    if state.status is Status.PENDING:
        hint = f"wait, or `deploy down {name}`"
        return Problem(f"`{name}` is pending: {state.detail}", hint=hint)
    if state.status is Status.UNKNOWN:
        return Problem(f"`{name}`: {state.detail}", hint=f"`deploy down {name}` stops the processes that it can reach")
    return Problem(f"`{name}` is not running: {state.exit_summary}", hint=RESTART_HINT.format(name=name))


def _planned_digest(run_dir: Path) -> str:
    """Return the digest of the plan of a run; "" if it is unreadable."""
    plan = read_plan(RunDir(run_dir))
    return plan.digest if plan else ""
