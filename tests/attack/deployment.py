"""A home with one server of the scripted engine, and `deploy` to work on it."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forked import Command, Ended, Fault, Forks
from ports import free_port
from survivors import programs_of, survivors

_AT_ONCE = 200  # rounds: more than run at a time
ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"


@dataclass(frozen=True)
class Deployment:
    """A home with one server of the scripted engine, and `deploy` to work on it."""

    forks: Forks
    folder: Path
    port: int
    name: str = "target"
    output: Path | None = None  # what commands print; by default it lies beside the home

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(
        self, *words: str, fresh: bool = False, broken: Mapping[int, Fault] | None = None, **environ: str
    ) -> Command:
        """Start a command."""
        # no Docker daemon: what it runs is not attacked here, and asking it takes time
        env = {**os.environ, "DEPLOY_HOME": str(self.home), "DOCKER_HOST": "unix:///nonexistent", **environ}
        return self.forks.start(
            words, env=env, output=self.output or self.folder / "output", fresh=fresh, broken=broken
        )

    def run(self, *words: str, **environ: str) -> Ended:
        """Run a command to its end."""
        return self.start(*words, **environ).wait()

    def up(self, *more: str, name: str = "") -> tuple[str, ...]:
        """The words that bring the server up; `SCRIPTED_…=…` among `more` are the engine's own."""
        own = [f"env.{word}" for word in more if word.startswith("SCRIPTED_")]
        rest = [word for word in more if not word.startswith("SCRIPTED_")]
        return ("up", "--profile", "cpu-tiny", "--name", name or self.name, *self.settings(*own), *rest)

    def settings(self, *more: str) -> tuple[str, ...]:
        """The words by which the scripted engine serves, on this port."""
        settings = [f"server.port={self.port}", f"engine.python={ENGINE}", "timeouts.termination_grace=2", *more]
        settings += ["model.questions=null"]  # its answers follow from what is asked, and are right for no model
        return tuple(word for setting in settings for word in ("--set", setting))

    def survivors(self, *, killed: bool = False) -> list[str]:
        """What is left of it."""
        return survivors(self.home, self.port, killed=killed)

    def end(self) -> None:
        """Kill what is left: it has been told."""
        for pid, _ in programs_of(self.home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Deployments:
    """Makes one for each round."""

    forks: Forks
    folder: Path
    made: list[Deployment]

    def __call__(self, number: int) -> Deployment:
        taken = {deployment.port for deployment in self.made[-_AT_ONCE:]}  # this process has a thousand ports
        port = next(port for port in iter(free_port, None) if port not in taken)  # not listened on yet, all of them
        made = Deployment(self.forks, self.folder / str(number), port)
        made.home.mkdir(parents=True)
        self.made.append(made)
        return made
