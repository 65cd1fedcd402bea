"""What a runtime is: the class that each folder beside this file has one of, and the values that it deals in.

`orchestrator.runtimes` has the table of all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.polling import poll_until
from orchestrator.plan.units import Role

if TYPE_CHECKING:  # a supervisor lives as long as its server, and imports this module
    from orchestrator.core.paths import Home
    from orchestrator.core.secrets import Secret
    from orchestrator.core.subprocesses import CompletedProgram
    from orchestrator.engine.server_args import ArgumentRefusal
    from orchestrator.hosts.context import Check, DiskNeed
    from orchestrator.hosts.report import Finding
    from orchestrator.hosts.survey import Runner
    from orchestrator.images.config import ImageConfig
    from orchestrator.plan.build import RuntimeSettings
    from orchestrator.plan.plan import DetectedPatches, Plan
    from orchestrator.plan.rules import Rule
    from orchestrator.profiles.schema import Profile
    from orchestrator.render.artifacts import Artifacts, RenderedFile

STOPPED: Final = "stopped"  # the detail of a server that has ended because somebody asked for it
LOG: Final = "server.log"  # in the run directory
EXIT_FILE: Final = "exit.json"  # in the run directory of a server that was stopped
_PAUSE: Final = 0.2  # seconds between two looks at units that end
_AGES: Final = ((86400, "days"), (3600, "h"), (60, "min"))


class Status(StrEnum):
    """What has become of a server's process or container."""

    PENDING = "pending"  # accepted, and waits for a place to run; its detail says for what
    RUNNING = "running"
    EXITED = "exited"
    NOT_FOUND = "not found"
    UNKNOWN = "unknown"  # its record cannot be read, or its machine does not answer


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The truth about a unit, as the runtime sees it (whether it answers is for health to say)."""

    status: Status
    exit_code: int | None = None
    restarts: int = 0
    started_at: str | None = None  # ISO 8601, UTC
    detail: str = ""  # what else the runtime knows: a reason, a signal
    ended_at: str | None = None  # ISO 8601, UTC
    unschedulable: bool = False  # it is pending, and nothing that comes by itself would start it
    refusal: ArgumentRefusal | None = None  # by its engine, of the arguments that it would be started with

    @property
    def exit_reason(self) -> str:
        """The same words at each look: `killed by SIGKILL`."""
        return self.detail or (self.status if self.exit_code is None else f"{self.status} with {self.exit_code}")

    @property
    def exit_summary(self) -> str:
        """How and when it ended: `killed by SIGKILL, 6 s ago`."""
        return f"{self.exit_reason}, {age} ago" if (age := self.age()) else self.exit_reason

    def age(self, now: datetime | None = None) -> str:
        """How long it has run, or how long ago it ended: `6 s`, `12 min`; "" where nobody knows."""
        moment = self.started_at if self.status is Status.RUNNING else self.ended_at
        if moment is None:
            return ""
        seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()
        size, unit = next((each for each in _AGES if seconds >= 2 * each[0]), (1, "s"))
        return f"{max(seconds, 0) / size:.0f} {unit}"


UNKNOWN_STATE: Final = ServerState(status=Status.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One started server, or gateway: enough to find it again from another terminal, and nothing secret."""

    runtime: str
    name: str
    profile: str
    plan_digest: str
    url: str  # base URL as reached from this machine
    run_dir: str  # absolute path of the run directory on this machine; one of several has a folder of its own there
    runtime_id: str  # container id, or pid and start time
    service_url: str = ""  # base URL where it runs, where `url` is a way there that ends with this command
    forward_command: str = ""  # the command that leads there from this machine
    role: Role = Role.SERVER
    number: int = 1  # among those of its role
    state: ServerState = field(default=UNKNOWN_STATE, compare=False)  # when it was listed

    @classmethod
    def unreadable(cls, runtime: str, name: str, run_dir: Path) -> Unit:
        """A unit whose record cannot be read."""
        where = str(run_dir.absolute())
        return cls(runtime=runtime, name=name, profile="", plan_digest="", url="", run_dir=where, runtime_id="")


def lines_since(
    lines: Iterable[str], since: datetime, *, started: datetime | None, zone: tzinfo | None
) -> Iterator[str]:
    """What a server wrote from a moment on, by the times in its log, of that zone (None: this machine's).

    All of it where it was started later: its first lines have no time.
    """
    from orchestrator.engine.log import written_since  # noqa: PLC0415 - see above: a supervisor has no use for it

    if started is not None and started >= since:
        return iter(lines)
    return written_since(lines, since.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S"))


class PartialResultError(HostError):
    """Some of the places that were asked for servers did not answer; `found` are those of the others."""

    def __init__(self, message: str, *, found: tuple[Unit, ...], hint: str = "", details: str = "") -> None:
        """`message` says which did not."""
        super().__init__(message, hint=hint, details=details)
        self.found = found


@dataclass(frozen=True, kw_only=True)
class Cache:
    """What a start has made and later ones take; `place` is a volume's name or a folder, `size` in bytes."""

    kind: str
    place: str
    made_for: Mapping[str, str]  # what a start has to be of to take it
    size: int
    used_by: tuple[str, ...]  # servers by name
    remove: Callable[[], bool]  # False where it is in use

    def to_dict(self) -> dict[str, object]:
        """As plain JSON-able data."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "remove"}


@dataclass(frozen=True, kw_only=True)
class HostRef:
    """Where a server is to run: the tool's home on this machine, or the far machine, `ssh://user@node`."""

    home: Home
    remote: str | None = None


@dataclass(frozen=True, kw_only=True)
class EnginePython:
    """A Python that has the engine as the server will run it, without GPUs. `identity` is None where it may change."""

    identity: str | None
    run: Callable[
        [str, str], CompletedProgram
    ]  # a program's text and its stdin; raises HostError where it cannot be run


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """What a start needs is there: the artifacts as they will run, and what the run directory keeps of the way here."""

    artifacts: Artifacts
    records: Mapping[str, object]  # by file name
    not_needed: frozenset[str] = frozenset()  # patches that the sources turned out not to need
    found: DetectedPatches | None = None  # those that they need at a start although the plan did not expect it
    image: ImageConfig | None = None  # that the server starts in, where it starts in one
    engine: EnginePython | None = None  # None where only the node that serves has it


@dataclass(frozen=True, kw_only=True)
class ExternalImage:
    """An image that a runtime takes as it is, and does not pin."""

    key: str  # of the profile, that names it
    scheme: str  # before the name that its registry knows it by
    reference: str  # that name; "" where no digest can be put in its place
    unpinned: str  # why not


@dataclass(frozen=True, kw_only=True)
class PodTargets:
    """Where a Prometheus of the cluster finds a server, or several: the pods that bear these labels."""

    namespace: str
    labels: Mapping[str, str]
    port: str  # its name in the pod
    called: str  # what its objects are called
    replica: str | None  # the label that tells one of several servers
    gateway: Mapping[str, str] | None  # of the gateway's pod, where that is to be scraped
    gateway_port: str


class Runtime(ABC):
    """A way to run servers: a folder beside this file has its class, and the registry one line.

    What a plan becomes is asked of the class, what runs of an object, which has a home and may have a host. A method
    imports what few commands need: SDKs, and what renders and prepares.
    """

    name: ClassVar[str]  # as a profile's `runtime` has it
    in_container: ClassVar[bool] = False  # a server runs from an image of its own, within limits of its own
    is_local: ClassVar[bool] = True  # a server runs on the machine that preflight looks at
    supports_ssh: ClassVar[bool] = False  # `--host` names another machine
    cluster_managed: ClassVar[bool] = False  # others choose the machine, and bring image and checkpoint there
    gateway_discovery: ClassVar[bool] = (
        False  # its gateways find their servers by themselves, as these are shown to them
    )
    run_files: ClassVar[frozenset[str]] = (
        frozenset()
    )  # files its starts write into a run directory beside every start's
    host_given: bool = False  # the user has named the machine that it asks: that this does not answer is then told

    def __init__(self, home: Home, host: str | None = None) -> None:
        """Look after the servers of a home, on this machine or on `host`."""
        self._home = home
        self._host_name = host

    # Of a plan, before anything is started

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        """The rules that a plan for it keeps, beside those of every plan."""
        return ()

    @classmethod
    def settings(cls, _profile: Profile) -> RuntimeSettings:
        """Decide what the profile's section for this runtime says."""
        from orchestrator.plan.build import RuntimeSettings  # noqa: PLC0415 - see above

        return RuntimeSettings()

    @classmethod
    def resolve_host(cls, host: str | None, environ: Mapping[str, str]) -> str | None:
        """The machine that `--host` or the environment means; None for this one. Raises UsageError."""
        del environ
        if host is not None:
            raise UsageError(
                f"the {cls.name} runtime runs on this machine, not on `{host}`",
                hint="run the same command there, over ssh; or `--set runtime=docker`, which runs on a far host",
            )
        return None

    @classmethod
    def checks(cls) -> Sequence[Check]:
        """The checks of preflight, beside those of every machine."""
        return ()

    @classmethod
    def remote_checks(cls, plan: Plan) -> Iterator[Finding]:
        """What preflight finds where the server runs `elsewhere`."""
        raise NotImplementedError(f"{cls.name}: {plan.profile}")

    @classmethod
    def disk_needs(cls, _plan: Plan, _runner: Runner) -> Iterator[DiskNeed]:
        """The room that a server takes on disks, beside its checkpoint's."""
        return iter(())

    @classmethod
    @abstractmethod
    def render(cls, plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
        """What a server is started from; `inputs` are files given to patches, by input name."""

    @classmethod
    def files(cls, _artifacts: Artifacts, _name: str) -> Sequence[RenderedFile]:
        """The files for a server of that name, beside those of every plan."""
        return ()

    @classmethod
    @abstractmethod
    def prepare(cls, artifacts: Artifacts, place: HostRef) -> PreparedRun:
        """Make what a server runs in, while whatever runs goes on running. Raises BuildError, PatchError."""

    @classmethod
    def builtin_tables(cls, _plan: Plan, _home: Home) -> Sequence[Path]:
        """The tuned tables that the server's aiter reads by itself; an image keeps its own. Raises KernelsError."""
        return ()

    @classmethod
    def external_image(cls, _plan: Plan) -> ExternalImage | None:
        """The image that a lock pins beside the engine's own."""
        return None

    @classmethod
    def monitoring_targets(cls, _plan: Plan, _name: str) -> PodTargets | None:
        """The pods of a server of that name, where others of its cluster watch it."""
        return None

    @classmethod
    def restart_owner(cls, _plan: Plan) -> str | None:
        """What starts a server again that has died or hangs, where this tool does not."""
        return None

    @classmethod
    def saved_state(cls, _run_dir: Path) -> ServerState | None:
        """The state of a server by its record in a run directory; None where there is none. Raises HostError."""
        return None

    # Of what runs

    @abstractmethod
    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Unit:
        """Start a unit. Raises NameTakenError for a name in use, StartError, and leaves nothing behind then.

        Of several servers each is started so, in a folder of the run's directory, and then their gateway in that
        directory itself.

        `secrets` are variables for the server by name; they reach it without standing in an argv or a readable file.
        """

    def wait_for_placement(self, unit: Unit, _plan: Plan, *, meanwhile: Callable[[], object] = lambda: None) -> Unit:
        """Wait until one of several servers has its place, with the URL that it has there. Raises StartError.

        Where servers queue for their places, `start` returns before: so all of them wait at once. It may take hours:
        `meanwhile` is done every few seconds.
        """
        del meanwhile
        return unit

    @abstractmethod
    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        """The units of this runtime (of that name) with their states, running or exited, sorted by name.

        A gateway comes before the servers behind it, these by their numbers.

        Raises HostError where they cannot be told, UnansweredError where some of them can.
        """

    @abstractmethod
    def state(self, unit: Unit) -> ServerState:
        """What has become of a server since it was found; never raises for "gone"."""

    def process_cmdlines(self, _unit: Unit) -> tuple[str, ...]:
        """The command lines of its processes that run, a zombie not counted; empty where they cannot be told."""
        return ()

    @abstractmethod
    def logs(self, unit: Unit, *, follow: bool, since: datetime | None = None) -> Iterator[str]:
        """The server's log line by line, without line ends, secrets removed; only what was written `since` then."""

    @abstractmethod
    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        """The same log, from its beginning, as a function that gives the lines which are new at each call."""

    @abstractmethod
    def stop(self, unit: Unit, *, grace: float) -> None:
        """Stop it with everything it started, within `grace` seconds and a bit; idempotent."""

    def ask_to_end(self, unit: Unit) -> None:  # noqa: B027 - `stop` asks as well
        """Have a unit finish its requests and end; does not wait for it."""

    def stop_together(self, units: Sequence[Unit], *, grace: float) -> None:
        """Stop several units in this order. They drain at the same time; one that cannot be stopped stops no other."""
        for unit in units:
            with suppress(HostError):  # `stop` says so
                self.ask_to_end(unit)
        poll_until(
            lambda running: not running,
            lambda: any(self.state(unit).status is Status.RUNNING for unit in units),
            within=grace,
            pause=_PAUSE,
        )
        with ExitStack() as stops:  # which calls what was added last first: the units end in their order
            for unit in reversed(units):
                stops.callback(self.stop, unit, grace=0)

    def set_routable(self, unit: Unit, *, routable: bool) -> None:
        """Make a replica discoverable for its gateway, or not. Raises HostError."""
        raise NotImplementedError(f"{unit.name}: {routable}")

    def is_routable(self, unit: Unit) -> bool:
        """Return whether the gateway may discover this replica."""
        raise NotImplementedError(unit.name)

    def is_ready(self, unit: Unit) -> bool:
        """Whether a gateway that finds it takes it."""
        raise NotImplementedError(unit.name)

    def caches(self) -> Sequence[Cache]:
        """What its starts have made and later ones take."""
        return ()

    def close(self) -> None:  # noqa: B027 - most hold none
        """Let go of connections this runtime holds; servers run on."""
