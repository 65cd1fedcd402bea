"""What `deploy up` is asked for, and the command that asks for the same again."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator.core.subprocesses import quote
from orchestrator.planner.planning import is_path
from orchestrator.planner.prebuilt import ReadyRequest


@dataclass(frozen=True, kw_only=True)
class UpRequest:
    """What the user asked for."""

    profile: str
    name: str | None
    overrides: tuple[str, ...]
    host: str | None
    image: str | None  # one that is ready; None: the plan's is built
    replace: bool
    keep: bool
    stage: bool  # fetch a checkpoint that is missing
    accept_untuned: bool
    strict_kernels: bool
    timeout: float | None  # seconds, None for as long as something moves
    run: str | None = None  # the directory of an earlier start, whose plan is started as it was
    lock: str | None = None  # a file: what it holds is started, or nothing
    healing: bool = False  # asked for by `deploy watch`
    only: int | None = None  # of several replicas, how many are replaced
    least_gsm8k: float | None = None  # of several replicas, what each new one has to score

    @property
    def decided(self) -> bool:
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
        argv += ["--accept-untuned"] if self.accept_untuned else []
        argv += ["--strict-kernels"] if self.strict_kernels else []
        argv += ["--timeout", f"{self.timeout:g}"] if self.timeout is not None else []
        return quote(argv)

    def to_record(self, name: str) -> dict[str, object]:
        """Return what is kept of it, to be asked again from anywhere: a profile's file by its whole path."""
        path = str(Path(self.profile).absolute()) if is_path(self.profile) else self.profile
        asked = replace(self, profile=path)
        return {"command": asked.command(name), "request": asdict(asked)}

    def on_image(self, image: str) -> ReadyRequest:
        """The part of it that an image is asked for."""
        return ReadyRequest(
            profile=self.profile, overrides=self.overrides, image=image, accept_untuned=self.accept_untuned
        )
