"""What `deploy up` is asked for, and the command that asks for the same again."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator.core.console import warn
from orchestrator.core.paths import Home
from orchestrator.core.record_version import KEY, RECORD_VERSION
from orchestrator.core.subprocesses import quote
from orchestrator.planner.lock import home_of_run, inputs_changed_since, lock_source
from orchestrator.planner.planning import is_path
from orchestrator.planner.source import PlanSource, profile_source, run_source
from orchestrator.runs.run_dir import RunDir


@dataclass(frozen=True, kw_only=True)
class UpRequest:
    """What the user asked for."""

    profile: str
    name: str | None
    overrides: tuple[str, ...]
    host: str | None
    image: str | None  # one that is ready; None: the plan's is built
    replace: bool
    keep_failed: bool
    stage: bool  # fetch a checkpoint that is missing
    allow_untuned: bool
    strict_kernels: bool
    timeout: float | None  # seconds, None for as long as something moves
    run: str | None = None  # the directory of an earlier start, whose plan is started as it was
    lock: str | None = None  # a file: what it holds is started, or nothing
    by_watch: bool = False  # asked for by `deploy watch`
    max_replicas: int | None = None  # of several replicas, how many are replaced
    min_gsm8k: float | None = None  # of several replicas, what each new one has to score

    @property
    def has_fixed_plan(self) -> bool:
        """Whether its plan was decided before, and no other one may take its place."""
        return bool(self.run or self.lock)

    def command(self, name: str) -> str:
        """The command that asks for the same again."""
        before = ["--from", self.run] if self.run else ["--locked", self.lock] if self.lock else []
        asked = before or ["--profile", self.profile]
        overrides, image = ((), None) if before else (self.overrides, self.image)
        argv = ["deploy", "up", *asked, "--name", name]
        argv += [word for override in overrides for word in ("--set", override)]
        argv += ["--host", self.host] if self.host else []
        argv += ["--image", image] if image else []
        argv += ["--no-stage"] if not self.stage else []
        argv += ["--allow-untuned"] if self.allow_untuned else []
        argv += ["--strict-kernels"] if self.strict_kernels else []
        argv += ["--timeout", f"{self.timeout:g}"] if self.timeout is not None else []
        return quote(argv)

    def to_record(self, name: str) -> dict[str, object]:
        """Return what is kept of it, to be asked again from anywhere: a profile's file by its whole path."""
        path = str(Path(self.profile).absolute()) if is_path(self.profile) else self.profile
        asked = replace(self, profile=path)
        return {KEY: RECORD_VERSION, "command": asked.command(name), "request": asdict(asked)}

    def source(self, home: Home) -> PlanSource:
        """Read what its plan is decided from: an earlier run, a lock, or a profile. Raises a DeployError."""
        if self.run is not None:
            run = RunDir(Path(self.run))
            source = run_source(run, home_of_run(run.path, home))
            for name in inputs_changed_since(run.path, source.plan, source.home):
                what = f"`{name}` is another one now than when `{run.path.name}` was started"
                warn(f"{what}: what it makes is as it is now")
            return source
        if self.lock is not None:
            locked = lock_source(Path(self.lock), home)
            locked.valid.note_deprecated()
            return locked
        found = profile_source(self.profile, self.overrides, home, image=self.image)
        found.valid.note_deprecated()
        return found
