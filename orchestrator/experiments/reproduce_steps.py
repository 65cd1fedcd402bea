"""The steps of `deploy reproduce`: a state file records finished steps, so that a second call resumes."""

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.bench.result import RESULT_FILE
from orchestrator.core.console import info
from orchestrator.core.errors import DeployError, Interrupted, UsageError
from orchestrator.core.files import atomic_write, read_file
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.subprocesses import quote
from orchestrator.core.text import parse_json
from orchestrator.runs.run_dir import latest_run, read_plan
from orchestrator.servers.servers import Servers

STATE_FILE: Final = "reproduce.json"
_MAX_BYTES: Final = 1 << 20  # of the state file
_SERVER_STAGES: Final = frozenset({"smoke", "bench", "eval"})


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command. `server` is the name of its server, `seconds` the estimated duration."""

    id: str
    stage: str
    server: str
    argv: tuple[str, ...]
    seconds: float
    output: Path | None = None  # directory of a resumable measurement
    result_file: str = RESULT_FILE  # file of an unfinished measurement in `output`


def host_option(host: str | None) -> tuple[str, ...]:
    """Return the option `--host`; empty for the local host."""
    return ("--host", host) if host is not None else ()


class StepLog:
    """The log of finished steps, in a file with atomic updates."""

    def __init__(self, file: Path, steps: Sequence[Step]) -> None:
        """Read `file`, or start empty. Raises UsageError if the file is unreadable or has other steps."""
        self._file = file
        self._digest = hashlib.sha256(json.dumps([(step.id, step.argv) for step in steps]).encode()).hexdigest()
        self.done: dict[str, str] = self._read()

    def finish(self, step: Step) -> None:
        """Record that a step is done."""
        self.done[step.id] = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        atomic_write(self._file, json.dumps({"steps": self._digest, "done": self.done}, indent=2) + "\n")

    def _read(self) -> dict[str, str]:
        if not self._file.exists():
            return {}
        try:
            state = parse_json(read_file(self._file, max_bytes=_MAX_BYTES))
            digest, done = state["steps"], state["done"]
            if not (isinstance(done, dict) and all(isinstance(time, str) for time in done.values())):
                raise ValueError("`done` must have the time of each step")  # noqa: TRY301 - as other errors
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UsageError(
                f"cannot read the state: {error}", location=str(self._file), hint="use another `--output`"
            ) from error
        if digest != self._digest:
            hint = "repeat the options of the first run, or use another `--output`"
            raise UsageError(
                "the saved state in this directory is for different steps", location=str(self._file), hint=hint
            )
        return done


def remaining_steps(steps: Sequence[Step], done: Mapping[str, str]) -> tuple[Step, ...]:
    """Return the remaining steps; repeat a finished `up` if its server has remaining steps."""
    remaining = [step for step in steps if step.id not in done]
    needed = {step.server for step in remaining if step.stage in _SERVER_STAGES}
    return tuple(step for step in steps if step in remaining or (step.stage == "up" and step.server in needed))


@dataclass(frozen=True, kw_only=True)
class StepRunner:
    """The environment of the steps; `run` executes one `deploy` command and returns its exit code."""

    run: Callable[[tuple[str, ...]], int]
    might_exist: Callable[[str], bool]
    host: str | None = None  # host of the servers; None for the local one

    def stop(self, server: str) -> int:
        """Stop a server if it might exist; return the exit code."""
        return self.run(("down", server, *host_option(self.host))) if self.might_exist(server) else 0


def might_exist(servers: Servers, name: str) -> bool:
    """Return whether a server exists, or its runtime is unreachable."""
    plan = read_plan(latest_run(servers.home, name))
    return bool(servers.find(name)) or (plan is not None and plan.runtime in servers.unreachable)


def reproduce(steps: Sequence[Step], state: StepLog, runner: StepRunner, *, keep_failed: bool) -> None:
    """Run the remaining steps.

    If a step fails or is interrupted, stop its server unless `keep_failed` is set. Raises DeployError with the step's
    exit code, Interrupted after Ctrl-C.
    """
    todo = remaining_steps(steps, state.done)
    for number, step in enumerate(todo, start=1):
        info(f"[{number}/{len(todo)}] {quote(['deploy', *command(step)])}")
        finished, stops = False, not keep_failed and step.stage in {*_SERVER_STAGES, "report"}
        try:
            _run(step, runner)
            finished = True
        except KeyboardInterrupt as error:
            stopped = f"`{step.server}` is stopped; " if stops else ""
            raise Interrupted("interrupted", hint=f"{stopped}repeat the command to continue") from error
        finally:
            if not finished and stops:
                runner.stop(step.server)
        state.finish(step)


def _run(step: Step, runner: StepRunner) -> None:
    argv = command(step)
    code = runner.stop(step.server) if step.stage == "down" else runner.run(argv)
    if code != 0:
        error = DeployError(
            f"`{quote(['deploy', *argv])}` exited with code {code}", hint="repeat the command to continue"
        )
        error.exit_code = code
        raise error


def command(step: Step) -> tuple[str, ...]:
    """Return the command of a step, with the option to resume an unfinished measurement."""
    begun = step.output is not None and (step.output / RelativePath(step.result_file)).exists()
    return (*step.argv, "--resume") if begun else step.argv
