"""The servers that exist, over every runtime."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.console import warn
from orchestrator.core.errors import HostError, Problem, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import SAFE_LENGTH, Secret, register_env_secret
from orchestrator.core.suggest import did_you_mean
from orchestrator.engine.endpoints import read_key
from orchestrator.engine.launch import process_names
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.render.scripts import replica_folder
from orchestrator.runs.run_dir import (
    RunDir,
    known_names,
    latest_run,
    no_plan,
    note_request,
    require_name,
    runs_with_smoke,
    runtime_of,
)
from orchestrator.runtimes import REGISTRY, open_runtime, runtime_class
from orchestrator.runtimes.base import PartialResultError, ServerState, Status, Unit
from orchestrator.servers.group import RunningServer, ServerGroup, servers_of

if TYPE_CHECKING:
    from orchestrator.engine.client import EngineClient, TimeLimits

RESTART_HINT: Final = (
    "`deploy diagnose {name}` and `deploy logs {name}` show why; `deploy restart {name}` starts it anew"
)
PROCESSES_FILE: Final = "processes.json"  # what a server is made of, noted when it is ready


@dataclass(frozen=True, kw_only=True)
class Server:
    """What runs under a name, with everything that a command needs of it."""

    found: RunningServer
    runtime: ServerGroup
    run: RunDir | None  # None for one of another home: what names its directory may name any

    @property
    def name(self) -> str:
        """What it is called."""
        return self.found.name

    @property
    def url(self) -> str:
        """Its base URL, as reached from this machine; of several that of their gateway."""
        return self.found.url

    @property
    def units(self) -> tuple[Unit, ...]:
        """What it is made of, each with its state when it was found: a gateway first."""
        return self.found.units

    @property
    def engines(self) -> tuple[RunningServer, ...]:
        """The sglang servers themselves: itself, or those behind its gateway."""
        return self.found.replicas or (self.found,)

    @cached_property
    def plan(self) -> Plan | None:
        """The plan that it was started with; None where that is not on this machine, or not read."""
        return self.found.plan

    @property
    def key(self) -> Secret | None:
        """Its API key, from the variable that its plan names. Raises UsageError where that is not set."""
        return api_key(self.plan.server.api_key_env) if self.plan else None

    @property
    def model(self) -> str:
        """What clients call its model; sglang's `default` where its plan is not on this machine."""
        return self.plan.model.served_name if self.plan else "default"

    def require_plan(self) -> Plan:
        """Its plan. Raises StartError where it is not on this machine."""
        return self.found.require_plan()

    def require_own_run(self) -> RunDir:
        """Its run directory. Raises StartError where it is not in this home."""
        if self.run is None:
            raise no_plan(None, self.name)
        return self.run

    def require_running(self) -> ServerState:
        """How it runs. Raises StartError, with how it has ended, where it no longer does."""
        state = self.runtime.state(self.found)
        if (ended := exit_problem(self.name, state)) is not None:
            raise StartError(ended.message, hint=ended.hint)
        return state

    def dead_processes(self) -> str:
        """What of it has ended while it runs. See `dead_processes`."""
        return dead_processes(self.runtime, self.found)

    def client(self, limits: "TimeLimits | None" = None, *, engine: RunningServer | None = None) -> "EngineClient":
        """A client with its key, of one of its `engines` or of all."""
        from orchestrator.engine import client  # noqa: PLC0415 - an HTTP client takes 0.2 s to import

        return client.EngineClient((engine or self.found).url, key=self.key, limits=limits or client.ORDINARY)


@dataclass(frozen=True)
class Servers:
    """The runtimes of this machine, or of a far one."""

    home: Home
    runtimes: Mapping[str, ServerGroup]
    explicit_hosts: frozenset[str] = frozenset()  # runtimes whose machine the user has named
    unreachable: dict[str, str] = field(
        default_factory=dict
    )  # runtimes that somebody may miss, and why they did not answer

    def find(self, name: str | None = None) -> tuple[RunningServer, ...]:
        """Every server (of that name), sorted by name. What could not be asked is noted in `silent`.

        Raises UsageError for what cannot be a name.
        """
        if name is not None:
            require_name(name)
        found = tuple(sorted(self._find(name), key=lambda handle: handle.name))
        for handle in found if name is not None else ():
            _know(handle)
        return found

    def open(self, name: str) -> Server:
        """The server of that name.

        Raises StartError with the nearest name there is, HostError where a runtime that may know it does not answer.
        """
        if found := self.find(name):
            return self.server(found[0])
        names = [handle.name for handle in self.find()]
        near = did_you_mean(name, names)
        if self.unreachable:
            unasked = "; ".join(f"cannot query {kind}: {why}" for kind, why in self.unreachable.items())
            raise HostError(f"no server `{name}` was found, and {unasked}", hint=near)
        if any(runs_with_smoke(self.home, name)):
            near = f"`deploy restart {name}` starts it as it last came up"
        raise StartError(
            f"there is no server `{name}`",
            hint=near or "`deploy status` lists what runs, `deploy profiles` what `deploy up` can start",
        )

    def server(self, found: RunningServer) -> Server:
        """A server that was found, with everything that a command needs of it."""
        return Server(found=found, runtime=self.runtime(found), run=self.run_of(found))

    def runtime(self, handle: RunningServer) -> ServerGroup:
        """The runtime that started it."""
        return self.runtimes[handle.runtime]

    def run_of(self, handle: RunningServer) -> RunDir | None:
        """Return the run directory of a server, None for one of another home: what names it may name any directory."""
        run_dir = Path(handle.run_dir)
        return RunDir(run_dir) if self.home.holds(run_dir, handle.name) else None

    def _find(self, name: str | None) -> Iterator[RunningServer]:
        for kind, runtime in self.runtimes.items():
            try:
                yield from runtime.find(name)
            except HostError as error:  # without a Docker daemon, processes are still listed
                yield from servers_of(error.found) if isinstance(error, PartialResultError) else ()
                if kind in self.explicit_hosts or self._started_with(kind):
                    self.unreachable[kind] = error.message

    def _started_with(self, kind: str) -> bool:
        """Whether a server was started from this home with that runtime: a pod needs no Docker daemon."""
        return any(runtime_of(latest_run(self.home, name)) == kind for name in known_names(self.home))


@contextmanager
def open_servers(home: Home, host: str | None = None) -> Iterator[Servers]:
    """The runtimes, closed at the end; with `host`, a far machine such as `ssh://user@node`, those that reach it."""
    names = (name for name in REGISTRY if host is None or runtime_class(name).supports_ssh)
    runtimes = {name: ServerGroup(open_runtime(name, home, host)) for name in names}
    try:
        yield Servers(home, runtimes, frozenset(name for name, runtime in runtimes.items() if runtime.host_given))
    finally:
        for runtime in runtimes.values():
            runtime.close()


def _know(handle: RunningServer) -> None:
    """Let nothing that is shown of a server hold its key, where this shell has it, and remedies name its profile."""
    note_request(handle.run)
    if (plan := handle.plan) is not None:
        register_env_secret(plan.server.api_key_env)


def api_key(variable: str | None, environ: Mapping[str, str] = os.environ) -> Secret | None:
    """The API key that stands in the variable a plan names.

    Raises UsageError where it is not set, and for a key that no server can be given.
    """
    if variable is None:
        return None
    if not (value := environ.get(variable)):
        what = f"`{variable}` is not set; the plan says that it holds the API key"
        raise UsageError(what, hint=f"export {variable}=…")
    key = read_key(value, where=variable)
    if len(key.reveal()) < SAFE_LENGTH:
        what = f"the API key in `{variable}` has fewer than {SAFE_LENGTH} characters"
        warn(f"{what}: it can be guessed, and what is shown hides it only where it is a whole word")
    return key


def exit_problem(name: str, state: ServerState) -> Problem | None:
    """How a server that no longer runs has ended, and what to do about it; None for one that runs."""
    if state.status is Status.RUNNING:
        return None
    if state.status is Status.PENDING:
        hint = f"wait for it; `deploy down {name}` cancels it"
        return Problem(f"`{name}` does not run yet: {state.detail}", hint=hint)
    if state.status is Status.UNKNOWN:
        return Problem(f"`{name}`: {state.detail}", hint=f"`deploy down {name}` ends it where it can")
    return Problem(f"`{name}` does not run: {state.exit_summary}", hint=RESTART_HINT.format(name=name))


def record_processes(runtime: ServerGroup, handle: RunningServer, seconds: float) -> None:
    """Note what a server that is ready is made of, and how many seconds it took to become so."""
    told = {"parts": process_names(runtime.process_cmdlines(handle)), "ready_seconds": round(seconds, 1)}
    handle.run.save_state(PROCESSES_FILE, told)


def note_gateway(run: RunDir, seconds: float) -> None:
    """Note that several servers are ready behind their gateway; what each is made of stands in its own folder."""
    run.save_state(PROCESSES_FILE, {"parts": [], "ready_seconds": round(seconds, 1)})


def dead_processes(runtime: ServerGroup, handle: RunningServer) -> str:
    """What has ended of a server that was ready: `rank DP1 has ended`; "" where all runs, or it cannot be told.

    It is seen in the process table before anything is asked: sglang notices the death of a data-parallel rank by the
    next health request, after 20 s, and that of a tensor-parallel rank when the others wait for it.
    """
    if handle.replicas:
        return "; ".join(_lost_servers(runtime, handle))
    noted = handle.run.read(PROCESSES_FILE).get("parts")
    titles = runtime.process_cmdlines(handle) if noted else ()
    if not titles or not isinstance(noted, Sequence):
        return ""
    running = process_names(titles)
    lost = [str(part) for part in noted if part not in running]
    if not running and (again := _started_again(runtime.state(handle), handle.run)):
        return again
    return f"{', '.join(lost)} {'has' if len(lost) == 1 else 'have'} ended while the server runs" if lost else ""


def _started_again(state: ServerState, run: RunDir) -> str:
    """That a server was started again by its runtime after it was ready, and how long ago; "" for one that was not."""
    if state.started_at is None:
        return ""
    noted = datetime.fromtimestamp((run.path / PROCESSES_FILE).stat().st_mtime, UTC)
    if datetime.fromisoformat(state.started_at) <= noted:
        return ""
    began = f"it was started again {state.age()} ago, and is not ready yet"
    return "; ".join(filter(None, [began, state.detail]))


def replicas_on_other_plan(handle: RunningServer, plan: Plan) -> str:
    """Which servers behind a gateway are those of other plans: `replica 2 of 2 has another`; "" where none is."""
    planned = {replica_folder(number): each.digest for number, each in enumerate(replica_plans(plan), start=1)}
    others = [server for server in handle.replicas if server.plan_digest != planned.get(Path(server.run_dir).name)]
    return ", ".join(f"{Path(other.run_dir).name.replace('-', ' ')} of {plan.replicas} has another" for other in others)


def _lost_servers(runtime: ServerGroup, handle: RunningServer) -> Iterator[str]:
    """What has ended behind a gateway: a server, or a part of one that runs on."""
    plan = handle.plan
    count = plan.replicas if plan else len(handle.replicas)
    known = {Path(server.run_dir).name: server for server in handle.replicas}
    for number in range(1, count + 1):
        which, server = f"replica {number} of {count}", known.get(replica_folder(number))
        if server is None:
            yield f"{which} has no record that can be read"
        elif (state := runtime.state(server)).status is not Status.RUNNING:
            yield f"{which} does not run: {'it was stopped' if state.status is Status.NOT_FOUND else state.exit_reason}"
        elif lost := dead_processes(runtime, server):
            yield f"{which}: {lost}"
