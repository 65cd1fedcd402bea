"""The request of `deploy up`, the start that follows from it, and the result."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator.core.console import warn
from orchestrator.core.paths import Home
from orchestrator.core.record_version import KEY, RECORD_VERSION
from orchestrator.core.secrets import Secret
from orchestrator.core.signals import ignore_signals
from orchestrator.core.subprocesses import quote
from orchestrator.planner.lock import home_of_run, inputs_changed_since, lock_source
from orchestrator.planner.planning import is_path
from orchestrator.planner.source import PlanSource, profile_source, run_source
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import RunDir
from orchestrator.servers.group import Server
from orchestrator.verify.report import SmokeReport


@dataclass(frozen=True, kw_only=True)
class UpRequest:
    """The profile, name and options of one `deploy up`."""

    profile: str
    name: str | None
    overrides: tuple[str, ...]
    host: str | None  # with several nodes, the host of rank 0
    image: str | None  # prebuilt; None: build the image of the plan
    replace: bool
    keep_failed: bool
    stage: bool  # download a missing checkpoint
    allow_untuned: bool
    strict_kernels: bool
    timeout: float | None  # seconds; None waits while the start makes progress
    rank_hosts: tuple[str, ...] = ()  # of ranks 1, 2, …
    run: str | None = None  # directory of the run whose plan to repeat
    lock: str | None = None  # path of a lockfile
    by_watch: bool = False  # a restart by `deploy watch`
    drain: float | None = None  # seconds for the requests of a replaced server; None: its plan's grace
    max_replicas: int | None = None  # for a rolling update: maximum number of replicas to replace
    min_gsm8k: float | None = None  # for a rolling update: minimum score of each new replica

    def command(self, name: str) -> str:
        """Return the command that repeats the request."""
        before = ["--from", self.run] if self.run else ["--locked", self.lock] if self.lock else []
        words = before or ["--profile", self.profile]
        overrides, image = ((), None) if before else (self.overrides, self.image)
        argv = ["deploy", "up", *words, "--name", name]
        argv += [word for override in overrides for word in ("--set", override)]
        hosts = (self.host, *self.rank_hosts) if self.host else ()
        argv += [word for host in hosts for word in ("--host", host)]
        argv += ["--image", image] if image else []
        argv += ["--no-stage"] if not self.stage else []
        argv += ["--allow-untuned"] if self.allow_untuned else []
        argv += ["--strict-kernels"] if self.strict_kernels else []
        argv += ["--timeout", f"{self.timeout:g}"] if self.timeout is not None else []
        return quote(argv)

    def to_record(self, name: str) -> dict[str, object]:
        """Return the record for the run directory, with the absolute path of a profile file."""
        path = str(Path(self.profile).absolute()) if is_path(self.profile) else self.profile
        words = replace(self, profile=path)
        return {KEY: RECORD_VERSION, "command": words.command(name), "request": asdict(words)}

    def source(self, home: Home) -> PlanSource:
        """Read the source of the plan: a run, a lockfile or a profile. Raises a DeployError."""
        if self.run is not None:
            run = RunDir(Path(self.run))
            source = run_source(run, home_of_run(run.path, home))
            for name in inputs_changed_since(run.path, source.plan, source.home):
                change = f"`{name}` has changed since `{run.path.name}` was started"
                warn(f"{change}: the current file is used")
            return source
        if self.lock is not None:
            locked = lock_source(Path(self.lock), home)
            locked.valid.note_deprecated()
            return locked
        profile = profile_source(self.profile, self.overrides, home, image=self.image)
        profile.valid.note_deprecated()
        return profile


@dataclass(frozen=True, kw_only=True)
class UpResult:
    """A running server; `smoke` is None if it was already running."""

    server: Server
    served_name: str  # the `model` of requests
    smoke: SmokeReport | None
    seconds: float | None  # from start to ready


@dataclass(frozen=True, kw_only=True)
class StartSpec:
    """One start: the artifacts, the name of the server, and the records for its run directory."""

    name: str
    request: UpRequest
    artifacts: Artifacts
    records: Mapping[str, object]  # by file name; without secrets
    key: Secret | None
    on_verified: Callable[[], None] = ignore_signals

    @property
    def secrets(self) -> dict[str, Secret]:
        """The secret environment variables of the server, by name."""
        variable = self.artifacts.plan.server.api_key_env
        return {variable: self.key} if variable and self.key else {}
