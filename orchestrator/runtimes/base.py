"""The `Runtime` base class, which every folder of this package subclasses, and its value types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from inspect import getattr_static
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.polling import poll_until
from orchestrator.plan.units import Role

if TYPE_CHECKING:  # keep this module small: the supervisor of each server imports it
    from orchestrator.core.errors import Problem
    from orchestrator.core.paths import Home
    from orchestrator.core.secrets import Secret
    from orchestrator.core.subprocesses import CompletedProgram
    from orchestrator.engine.server_args import ArgumentRejection
    from orchestrator.hosts.context import Check, DiskNeed
    from orchestrator.hosts.fabric_measure import FabricNode
    from orchestrator.hosts.head_address import RankNetwork
    from orchestrator.hosts.report import Finding
    from orchestrator.hosts.survey import Runner
    from orchestrator.images.config import ImageConfig
    from orchestrator.kernels.disk.archive import KernelStore
    from orchestrator.plan.plan import DetectedPatches, Plan
    from orchestrator.plan.rules import Rule, RuntimeSettings
    from orchestrator.profiles.schema import Profile
    from orchestrator.render.artifacts import Artifacts, RenderedFile

STOPPED: Final = "stopped"  # the detail of a server that was stopped on request
LOG: Final = "server.log"  # in the run directory
EXIT_FILE: Final = "exit.json"  # in the run directory of a server that was stopped
_INTERVAL: Final = 0.2  # seconds between two polls of units that are exiting
_AGES: Final = ((86400, "days"), (3600, "h"), (60, "min"))


class Status(StrEnum):
    """The status of a server's process or container."""

    PENDING = "pending"  # accepted, not running yet; the detail says why
    RUNNING = "running"
    EXITED = "exited"
    NOT_FOUND = "not found"
    UNKNOWN = "unknown"  # unreadable record, or unreachable host


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The state of a unit as its runtime reports it. Health checks decide whether the server also answers."""

    status: Status
    exit_code: int | None = None
    restarts: int = 0
    started_at: str | None = None  # ISO 8601, UTC
    detail: str = ""  # further information: a reason, a signal
    ended_at: str | None = None  # ISO 8601, UTC
    unschedulable: bool = False  # pending, and cannot start without a change by the user
    rejection: ArgumentRejection | None = None  # arguments that the engine rejects

    @property
    def exit_reason(self) -> str:
        """Return how the server ended, in words that do not change with time: `killed by SIGKILL`."""
        return self.detail or (self.status if self.exit_code is None else f"{self.status} with {self.exit_code}")

    @property
    def exit_summary(self) -> str:
        """Return how and when the server ended: `killed by SIGKILL, 6 s ago`."""
        return f"{self.exit_reason}, {age} ago" if (age := self.age()) else self.exit_reason

    def age(self, now: datetime | None = None) -> str:
        """Return the time since the start or the end of the server: `6 s`, `12 min`; "" if unknown."""
        moment = self.started_at if self.status is Status.RUNNING else self.ended_at
        if moment is None:
            return ""
        seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()
        size, unit = next((age for age in _AGES if seconds >= 2 * age[0]), (1, "s"))
        return f"{max(seconds, 0) / size:.0f} {unit}"


UNKNOWN_STATE: Final = ServerState(status=Status.UNKNOWN)
NOT_FOUND: Final = ServerState(status=Status.NOT_FOUND)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A started server or gateway: the data to find it from another terminal, without secrets."""

    runtime: str
    name: str
    profile: str
    plan_digest: str
    url: str  # base URL as reached from this host
    run_dir: str  # absolute path of the run directory on this host; a replica has its own subdirectory
    runtime_id: str  # container id, or pid and start time
    service_url: str = ""  # base URL on the server's host, if `url` is a tunnel that closes with this command
    forward_command: str = ""  # the command that opens a tunnel from this host
    role: Role = Role.SERVER
    rank_hosts: tuple[str, ...] = ()  # ssh URLs of the hosts of ranks 1, 2, … of a server on several nodes
    state: ServerState = field(default=UNKNOWN_STATE, compare=False)  # when the unit was listed

    @classmethod
    def unreadable(cls, runtime: str, name: str, run_dir: Path) -> Unit:
        """Return a unit whose record is unreadable."""
        path = str(run_dir.absolute())
        return cls(runtime=runtime, name=name, profile="", plan_digest="", url="", run_dir=path, runtime_id="")


class PartialResultError(HostError):
    """An incomplete search for servers: some hosts or clusters did not answer; `units` has the units found."""

    def __init__(self, message: str, *, units: tuple[Unit, ...], hint: str = "", details: str = "") -> None:
        """Create the error. `message` names the hosts that did not answer."""
        super().__init__(message, hint=hint, details=details)
        self.units = units


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A cache that one start fills and later starts reuse."""

    kind: str
    location: str  # a volume name or a directory
    requirements: Mapping[str, str]  # values that a start must match to reuse it
    size: int  # bytes
    used_by: tuple[str, ...]  # servers by name
    remove: Callable[[], bool] = field(metadata={"exclude": True})  # returns False if the cache is in use


@dataclass(frozen=True, kw_only=True)
class HostRef:
    """The host of a server, or of each rank: the tool's home on this host, or a remote host as `ssh://user@host`."""

    home: Home
    remote: str | None = None
    rank_hosts: tuple[str, ...] = ()  # of ranks 1, 2, …
    network: RankNetwork | None = None  # None: a single host, or not measured yet

    @property
    def nodes(self) -> tuple[HostRef, ...]:
        """The host of each rank alone, rank 0 first."""
        return tuple(HostRef(home=self.home, remote=rank_host) for rank_host in (self.remote, *self.rank_hosts))


@dataclass(frozen=True, kw_only=True)
class EnginePython:
    """A Python interpreter with the engine as the server runs it, without GPUs. `identity` is None if it may change."""

    identity: str | None
    run: Callable[[str, str], CompletedProgram]  # takes a program's text and its stdin; raises HostError


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """The result of preparing a start: the final artifacts, and the records for the run directory."""

    artifacts: Artifacts
    records: Mapping[str, object]  # by file name
    not_needed: frozenset[str] = frozenset()  # patches that the sources do not need
    detected_patches: DetectedPatches | None = None  # patches to apply at startup that the plan did not expect
    image: ImageConfig | None = None  # the image of the server, if it has one
    engine: EnginePython | None = None  # None if only the server's node has it


@dataclass(frozen=True, kw_only=True)
class ExternalImage:
    """An image that a runtime uses without pinning it."""

    key: str  # the profile key that names it
    scheme: str  # the prefix of the name in its registry
    reference: str  # that name; "" if a digest cannot replace it
    unpinned: str  # the reason why it is not pinned


@dataclass(frozen=True, kw_only=True)
class PodTargets:
    """The pods by which a Prometheus in the cluster finds the servers of one name."""

    namespace: str
    labels: Mapping[str, str]
    one_of: Mapping[str, Sequence[str]]  # values that a pod may have of further labels
    port: str  # the name of the port in the pod
    called: str  # the name of the Kubernetes objects
    replica: str | None  # Prometheus's label of a discovered pod that distinguishes replicas
    min_replicas: int | None  # the minimum of an autoscaler; None: the number of the plan
    gateway: Mapping[str, str] | None  # the labels of the gateway's pod, if it is to be scraped
    gateway_port: str


class Runtime(ABC):
    """A way to run servers. Each folder of this package has one subclass, and the registry one line for it.

    Class methods handle plans, instances running servers. A subclass may name the function of its folder instead of
    defining a class method: `render = Imported("…docker.spec:rendered")`. A command that lists servers imports none.
    """

    name: ClassVar[str]  # the value of `runtime` in a profile
    in_container: ClassVar[bool] = False  # a server runs from an image, with its own resource limits
    is_local: ClassVar[bool] = True  # a server runs on the host that preflight checks
    supports_ssh: ClassVar[bool] = False  # `--host` may name another host
    cluster_managed: ClassVar[bool] = False  # the cluster chooses the node and provides image and checkpoint there
    gateway_discovery: ClassVar[bool] = False  # its gateways discover replicas by themselves
    drains_on_stop: ClassVar[bool] = False  # a stop waits for requests, at most `timeouts.termination_grace`
    rules: ClassVar[Sequence[Rule]] = ()  # rules for its plans, besides the general rules
    checks: ClassVar[Sequence[Check]] = ()  # preflight checks, besides the general checks
    # the nodes that the cluster has given to the shell with this environment; () outside an allocation; HostError
    allocated_nodes: ClassVar[Callable[[Mapping[str, str]], Sequence[FabricNode]]] = lambda _environ: ()
    host_given: bool = False  # whether the user named the host: if so, report when it does not answer

    def __init_subclass__(cls) -> None:
        """Require `render` and `prepare`; as abstract methods they would be imported with the class."""
        if missing := [name for name in ("render", "prepare") if getattr_static(cls, name) is vars(Runtime)[name]]:
            raise TypeError(f"{cls.__name__} does not define {' and '.join(missing)}")

    def __init__(self, home: Home, host: str | None = None) -> None:
        """Manage the servers of a home, on this host or on `host`."""
        self._home = home
        self.host_name = host

    @classmethod
    def built_image_problems(cls, profile: Profile) -> Iterator[Problem]:
        """Yield the problems of a start from an image built on this host."""
        return iter(())

    @classmethod
    def start_problems(cls, profile: Profile) -> Iterator[Problem]:
        """Yield the problems of a profile that `deploy` can render but not start."""
        return iter(())

    @classmethod
    def settings(cls, profile: Profile) -> RuntimeSettings:
        """Return the settings from the profile's section for this runtime."""
        from orchestrator.plan.rules import RuntimeSettings  # noqa: PLC0415 - see above

        return RuntimeSettings()

    @classmethod
    def resolve_host(cls, host: str | None, _environ: Mapping[str, str]) -> str | None:
        """Return the host from `--host` or the environment; None for this host. Raises UsageError."""
        if host is None:
            return None
        if cls.cluster_managed:
            raise UsageError(f"cannot use `--host` with {cls.name}: the cluster chooses the node", hint="omit `--host`")
        hint = "run the command on that host; or `--set runtime=docker`, which supports remote hosts"
        raise UsageError(f"the {cls.name} runtime starts servers only on this host, not on `{host}`", hint=hint)

    @classmethod
    def remote_checks(cls, plan: Plan) -> Iterator[Finding]:
        """Yield the preflight findings for a server on a host that `deploy` does not survey."""
        raise NotImplementedError(f"{cls.name}: {plan.profile}")

    @classmethod
    def engine_python(cls, plan: Plan, home: Home) -> Sequence[str] | None:
        """Return the command that starts the engine's Python on a node with the plan's environment; None if unknown."""
        return None

    @classmethod
    def disk_needs(cls, plan: Plan, runner: Runner) -> Iterator[DiskNeed]:
        """Yield the disk space that a server needs besides its checkpoint."""
        return iter(())

    @classmethod
    def render(cls, plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
        """Return the artifacts of a plan. `inputs` are files for patches, by input name."""
        raise NotImplementedError(f"{cls.name}: {plan.profile}")

    @classmethod
    def files(cls, artifacts: Artifacts, name: str) -> Sequence[RenderedFile]:
        """Return the runtime's files for a server of that name, besides the files of every plan."""
        return ()

    @classmethod
    def prepare(cls, artifacts: Artifacts, host_ref: HostRef) -> PreparedRun:
        """Prepare the environment of a server while other servers run. Raises BuildError, PatchError."""
        raise NotImplementedError(f"{cls.name}: {artifacts.plan.profile}")

    @classmethod
    def kernel_store(cls, prepared: PreparedRun, host_ref: HostRef) -> KernelStore | None:
        """Return the caches of compiled kernels of a prepared start; None if its node or image has them."""
        return None

    @classmethod
    def builtin_tables(cls, plan: Plan, home: Home) -> Sequence[Path]:
        """Return the built-in tuned tables that the server's aiter reads; an image has its own. Raises KernelsError."""
        return ()

    @classmethod
    def external_image(cls, plan: Plan) -> ExternalImage | None:
        """Return the image that a lock pins besides the engine's image; None if there is none."""
        return None

    @classmethod
    def monitoring_targets(cls, plan: Plan, name: str) -> PodTargets | None:
        """Return the pods of a server of that name; None if Prometheus does not run in the same cluster."""
        return None

    @classmethod
    def restart_owner(cls, plan: Plan) -> str | None:
        """Return the component that restarts a dead or hung server; None if only `deploy watch` does."""
        return None

    @classmethod
    def saved_state(cls, run_dir: Path) -> ServerState | None:
        """Return the state of a server from the record in its run directory, if any. Raises HostError."""
        return None

    @abstractmethod
    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Unit:
        """Start a unit. Raises NameTakenError for a used name, or StartError, after removing everything it created.

        Replicas come first, each in its own subdirectory of the run directory, then their gateway in that directory.
        `secrets` are variables for the server by name. They never appear in an argv or in a file readable by others.
        """

    def wait_for_placement(self, unit: Unit, _plan: Plan, *, on_wait: Callable[[], object] = lambda: None) -> Unit:
        """Wait until a replica has its node, and return it with its URL there. Raises StartError.

        If replicas queue for nodes, `start` returns before they have one, so that all of them wait at the same time.
        The wait may take hours; `on_wait` is called every few seconds.
        """
        del on_wait
        return unit

    @abstractmethod
    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        """Return the units of this runtime (of that name) with their states, running or exited.

        Raises HostError if no units can be listed, PartialResultError if only some of them can.
        """

    @abstractmethod
    def state(self, unit: Unit) -> ServerState:
        """Return the current state of a server; does not raise for a removed server."""

    def process_cmdlines(self, _unit: Unit) -> tuple[str, ...]:
        """Return the command lines of the server's running processes, without zombies; empty if they cannot be read."""
        return ()

    def host_memory(self, _unit: Unit) -> int | None:
        """Return the bytes of host memory of a running unit, without mapped files; None if unknown."""
        return None

    @abstractmethod
    def logs(self, unit: Unit, *, follow: bool) -> Iterator[str]:
        """Yield the lines of the log, without line ends and secrets; with `follow`, until the unit has ended."""

    @abstractmethod
    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        """Return a function that yields the new log lines at each call; the first call starts at the beginning."""

    @abstractmethod
    def stop(self, unit: Unit, *, grace: float) -> None:
        """Stop the unit and all its processes within `grace` seconds and a short margin. Idempotent."""

    def request_stop(self, unit: Unit) -> None:  # noqa: B027 - optional: `stop` requests it as well
        """Ask a unit to finish its requests and exit; does not wait for it."""

    def stop_all(self, units: Sequence[Unit], *, grace: float) -> None:
        """Stop several units in this order; they drain concurrently, and one failure does not affect the others."""
        for unit in units:
            with suppress(HostError):  # `stop` reports the error
                self.request_stop(unit)
        poll_until(
            lambda running: not running,
            lambda: any(self.state(unit).status is Status.RUNNING for unit in units),
            timeout=grace,
            interval=_INTERVAL,
        )
        with ExitStack() as stops:  # an ExitStack runs callbacks in reverse order: the units stop in theirs
            for unit in reversed(units):
                stops.callback(self.stop, unit, grace=0)

    def set_routable(self, unit: Unit, *, routable: bool) -> None:
        """Allow or forbid the gateway to discover a replica. Raises HostError."""
        raise NotImplementedError(f"{unit.name}: {routable}")

    def is_routable(self, unit: Unit) -> bool:
        """Return whether the gateway may discover this replica."""
        raise NotImplementedError(unit.name)

    def is_ready(self, _unit: Unit) -> bool:
        """Return whether a healthy unit gets requests: a cluster may delay them until a probe succeeds."""
        return True

    def caches(self) -> Sequence[Cache]:
        """Return the caches that earlier starts have filled and later ones reuse."""
        return ()

    def close(self) -> None:  # noqa: B027 - most have no connections
        """Close the connections of this runtime; servers continue to run."""
