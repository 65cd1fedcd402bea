"""Run `deploy` in a home with one server of the scripted engine."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forked import Command, Ended, Fault, Forks
from leftovers import leftovers, programs_of
from ports import free_port

_AT_ONCE = 200  # more than the concurrent rounds
ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"


@dataclass(frozen=True)
class Deployment:
    """Runs `deploy` in a home with one server of the scripted engine."""

    forks: Forks
    folder: Path
    port: int
    name: str = "target"
    output: Path | None = None  # folder of the commands' output; by default in `folder`

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(
        self, *words: str, fresh: bool = False, broken: Mapping[int, Fault] | None = None, **environ: str
    ) -> Command:
        # Without a Docker daemon: asking it takes time, and no server runs in it.
        env = {**os.environ, "DEPLOY_HOME": str(self.home), "DOCKER_HOST": "unix:///nonexistent", **environ}
        return self.forks.start(
            words, env=env, output=self.output or self.folder / "output", fresh=fresh, broken=broken
        )

    def run(self, *words: str, **environ: str) -> Ended:
        return self.start(*words, **environ).wait()

    def up(self, *more: str, name: str = "") -> tuple[str, ...]:
        """Return the `up` command line; `SCRIPTED_…=…` in `more` are variables of the engine."""
        own = [f"env.{word}" for word in more if word.startswith("SCRIPTED_")]
        rest = [word for word in more if not word.startswith("SCRIPTED_")]
        return ("up", "--profile", "cpu-tiny", "--name", name or self.name, *self.settings(*own), *rest)

    def settings(self, *more: str) -> tuple[str, ...]:
        """Return the options with which the scripted engine serves on this port."""
        settings = [f"server.port={self.port}", f"engine.python={ENGINE}", "timeouts.termination_grace=2", *more]
        settings += ["model.questions=null"]  # the scripted engine answers no question correctly
        return tuple(word for setting in settings for word in ("--set", setting))

    def leftovers(self, *, killed: bool = False) -> list[str]:
        return leftovers(self.home, self.port, killed=killed)

    def end(self) -> None:
        """Kill the remaining processes, after the test has reported them."""
        for pid, _ in programs_of(self.home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Deployments:
    """Creates a deployment for each round."""

    forks: Forks
    folder: Path
    made: list[Deployment]

    def __call__(self, number: int) -> Deployment:
        # `free_port` may return a port again whose server does not listen yet.
        taken = {deployment.port for deployment in self.made[-_AT_ONCE:]}
        port = next(port for port in iter(free_port, None) if port not in taken)
        made = Deployment(self.forks, self.folder / str(number), port)
        made.home.mkdir(parents=True)
        self.made.append(made)
        return made
