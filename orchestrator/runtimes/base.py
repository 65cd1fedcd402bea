"""What a runtime is: everything that is particular to one way of running a server.

`RuntimeKind` is what a folder beside this file shows; `Runtime` is its verbs over the servers it starts. The registry
of both stands in `orchestrator.runtimes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from orchestrator.core.errors import HostError

if TYPE_CHECKING:  # a supervisor lives as long as its server, and imports this module
    from orchestrator.core.paths import Home
    from orchestrator.core.secrets import Secret
    from orchestrator.core.subprocesses import ProgramResult
    from orchestrator.engine.server_args import ArgumentRefusal
    from orchestrator.hosts.context import Check, Space
    from orchestrator.hosts.report import Finding
    from orchestrator.hosts.survey import Runner
    from orchestrator.images.config import ImageConfig
    from orchestrator.plan.decide import RuntimeSettings
    from orchestrator.plan.plan import FoundPatches, Plan
    from orchestrator.plan.rules import Rule
    from orchestrator.profiles.schema import Profile
    from orchestrator.render.artifacts import Artifacts, ContextFile

LOG: Final = "server.log"  # in the run directory
ENDING: Final = "ending.json"  # in the run directory of a server that was stopped
_UNITS: Final = ((86400, "days"), (3600, "h"), (60, "min"))


class Status(StrEnum):
    """What has become of a server's process or container."""

    PENDING = "pending"  # accepted, and waits for a place to run; its detail says for what
    RUNNING = "running"
    EXITED = "exited"
    ABSENT = "absent"
    UNKNOWN = "unknown"  # its record cannot be read, or its machine does not answer


@dataclass(frozen=True, kw_only=True)
class Handle:
    """One started server: enough to find it again from another terminal, and nothing secret."""

    runtime: str
    name: str
    profile: str
    plan_digest: str
    url: str  # base URL as reached from this machine
    run_dir: str  # absolute path of the run directory on this machine
    identity: str  # container id, or pid and start time
    service: str = ""  # base URL where it runs, where `url` is a way there that ends with this command
    forward: str = ""  # the command that leads there from this machine
    replicas: tuple[Handle, ...] = ()  # the servers behind it, where it is their gateway
    gateway_dir: str = ""  # run directory of the start that began their gateway, where `run_dir` is that of a later one

    @property
    def own_dir(self) -> str:
        """Where its own record and log are: the server's, or those of the gateway alone."""
        return self.gateway_dir or self.run_dir


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The truth about a handle, as the runtime sees it (whether it answers is for health to say)."""

    status: Status
    exit_code: int | None
    restarts: int
    started_at: str | None  # ISO 8601, UTC
    detail: str  # what else the runtime knows: a reason, a signal
    ended_at: str | None = None  # ISO 8601, UTC
    stuck: bool = False  # it is pending, and nothing that comes by itself would start it
    refusal: ArgumentRefusal | None = None  # by its engine, of the arguments that it would be started with

    @property
    def how_ended(self) -> str:
        """The same words at each look: `killed by SIGKILL`."""
        return self.detail or (self.status if self.exit_code is None else f"{self.status} with {self.exit_code}")

    @property
    def ending(self) -> str:
        """How and when it ended: `killed by SIGKILL, 6 s ago`."""
        return f"{self.how_ended}, {age} ago" if (age := self.age()) else self.how_ended

    def age(self, now: datetime | None = None) -> str:
        """How long it has run, or how long ago it ended: `6 s`, `12 min`; "" where nobody knows."""
        moment = self.started_at if self.status is Status.RUNNING else self.ended_at
        if moment is None:
            return ""
        seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()
        size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), (1, "s"))
        return f"{max(seconds, 0) / size:.0f} {unit}"


def since_then(
    lines: Iterable[str], since: datetime, *, started: datetime | None, zone: tzinfo | None
) -> Iterator[str]:
    """What a server wrote from a moment on, by the times in its log, of that zone (None: this machine's).

    All of it where it was started later: its first lines have no time.
    """
    from orchestrator.engine.log import written_since  # noqa: PLC0415 - see above: a supervisor has no use for it

    if started is not None and started >= since:
        return iter(lines)
    return written_since(lines, since.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S"))


class UnansweredError(HostError):
    """Some of the places that were asked for servers did not answer; `found` are those of the others."""

    def __init__(self, message: str, *, found: tuple[Handle, ...], hint: str = "", details: str = "") -> None:
        """`message` says which did not."""
        super().__init__(message, hint=hint, details=details)
        self.found = found


class Runtime(Protocol):
    """A way to run a server."""

    @property
    def named(self) -> bool:
        """Whether the user has named the machine that it asks: that this does not answer is then told."""

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Handle:
        """Start a server. Raises NameTakenError for a name in use, StartError, and leaves nothing behind then.

        Of several servers each is started so, in a folder of the run's directory, and then their gateway in that
        directory itself: found and stopped they are one.

        `secrets` are variables for the server by name; they reach it without standing in an argv or a readable file.
        """

    def find(self, name: str | None = None) -> tuple[Handle, ...]:
        """The servers of this runtime (of that name), running or exited, sorted by name.

        Raises HostError where they cannot be told, UnansweredError where some of them can.
        """

    def state(self, handle: Handle) -> ServerState:
        """What has become of it; never raises for "gone"."""

    def titles(self, handle: Handle) -> tuple[str, ...]:
        """The command lines of its processes that run, a zombie not counted; empty where they cannot be told."""

    def logs(self, handle: Handle, *, follow: bool, since: datetime | None = None) -> Iterator[str]:
        """The server's log line by line, without line ends, secrets removed; only what was written `since` then."""

    def tail(self, handle: Handle) -> Callable[[], Iterator[str]]:
        """The same log, from its beginning, as a function that gives the lines which are new at each call."""

    def stop(self, handle: Handle, *, grace: float) -> None:
        """Stop it with everything it started, within `grace` seconds and a bit; idempotent."""

    def close(self) -> None:
        """Let go of connections this runtime holds; servers run on."""


@runtime_checkable
class Shows(Protocol):
    """A runtime whose gateways find their servers by themselves, as these are shown to them."""

    def show(self, handle: Handle, *, shown: bool) -> None:
        """Let the gateway find one of its servers, or not. Raises HostError."""

    def is_shown(self, handle: Handle) -> bool:
        """Whether the gateway may find it."""

    def is_ready(self, handle: Handle) -> bool:
        """Whether a gateway that finds it takes it."""


@runtime_checkable
class Queues(Protocol):
    """A runtime whose `start` of one of several servers returns while that still waits for its place.

    So all of them wait at once, and each is given its place as one comes free.
    """

    def placed(self, handle: Handle, plan: Plan, *, meanwhile: Callable[[], object] = lambda: None) -> Handle:
        """Wait until it has its place, saying why it waits; with the URL that it has there. Raises StartError.

        It may wait for hours: `meanwhile` is done every few seconds.
        """


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
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "remove"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a server is to run: the tool's home on this machine, or the far machine, `ssh://user@node`."""

    home: Home
    far: str | None = None


@dataclass(frozen=True, kw_only=True)
class EnginePython:
    """A Python that has the engine as the server will run it, without GPUs. `identity` is None where it may change."""

    identity: str | None
    run: Callable[[str, str], ProgramResult]  # a program's text and its stdin; raises HostError where it cannot be run


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a start needs is there: the artifacts as they will run, and what the run directory keeps of the way here."""

    artifacts: Artifacts
    records: Mapping[str, object]  # by file name
    not_needed: frozenset[str] = frozenset()  # patches that the sources turned out not to need
    found: FoundPatches | None = None  # those that they need at a start although the plan did not expect it
    image: ImageConfig | None = None  # that the server starts in, where it starts in one
    engine: EnginePython | None = None  # None where only the node that serves has it


@dataclass(frozen=True, kw_only=True)
class TakenImage:
    """An image that a runtime takes as it is, and does not pin."""

    key: str  # of the profile, that names it
    scheme: str  # before the name that its registry knows it by
    reference: str  # that name; "" where no digest can be put in its place
    unpinned: str  # why not


@dataclass(frozen=True, kw_only=True)
class RuntimeKind:
    """One way to run a server."""

    name: str
    contained: bool  # a server runs from an image of its own, within limits of its own
    rules: Sequence[Rule]  # that a plan for it keeps, beside those of every plan
    checks: Sequence[Check]  # of preflight, beside those of every machine
    spaces: Callable[[Plan, Runner], Iterator[Space]]  # the room it takes, beside the checkpoint's
    far: (
        Callable[[str | None, Mapping[str, str]], str | None] | None
    )  # which one `--host` means; None: only this machine
    render: Callable[[Plan, Mapping[str, bytes]], Artifacts]  # `inputs` are files given to patches, by input name
    files: Callable[[Artifacts, str], tuple[ContextFile, ...]]  # for a server of that name, beside those of every plan
    prepare: Callable[[Artifacts, Place], Prepared]
    tables: Callable[[Plan, Home], tuple[Path, ...]]  # that the server's aiter reads by itself; an image keeps its own
    caches: Callable[[Home, str | None], tuple[Cache, ...]]  # what its starts have made, here or on a far machine
    # What preflight asks where others choose the machine and bring image and checkpoint there; None: it is known here.
    elsewhere: Callable[[Plan], Iterator[Finding]] | None = None
    pods: Callable[[Plan, str], Pods] | None = None  # of a server of that name, where others of its cluster watch it
    keeper: Callable[[Plan], str] | None = None  # what starts a server again that has died or hangs, where it is not us
    kept: Callable[[Path], ServerState | None] = lambda _: None  # by its record in a run directory
    here: bool = True  # a server runs on the machine that preflight looks at
    settings: Callable[[Profile], RuntimeSettings] | None = None  # of the profile's section for it
    takes: Callable[[Plan], TakenImage | None] = lambda _: None  # what a lock pins beside the engine's own image
    leaves: frozenset[str] = frozenset()  # files its starts write into a run directory, beside those of every start


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Where a Prometheus of the cluster finds a server, or several: the pods that bear these labels."""

    namespace: str
    labels: Mapping[str, str]
    port: str  # its name in the pod
    called: str  # what its objects are called
    replica: str | None  # the label that tells one of several servers
    gateway: Mapping[str, str] | None  # of the gateway's pod, where that is to be scraped
    gateway_port: str
