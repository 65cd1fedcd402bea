"""`deploy reproduce`: a published measurement, made again step by step.

The steps are this tool's own commands. What is done stands in a state file, so that a call after a failure goes on
where the last one ended; a server whose measurement is not finished is brought up again.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.bench.workload import Workload, load_workload
from orchestrator.console import say
from orchestrator.errors import DeployError, UsageError
from orchestrator.files import write_whole
from orchestrator.report.published import Published, ReproduceRun
from orchestrator.results import RESULT_FILE

STATE_FILE: Final = "reproduce.json"
STAGES: Final = ("preflight", "stage", "build", "up", "smoke", "bench", "report", "down")

# Estimates, in seconds, for one node of eight GPUs. Loading 408 GiB took 3-4 min from local NVMe and 13 min over NFS
# (AMD-AGI/Infera, GLM-5.2 recipe); compiling and graph capture come on top. VRAM is given back within minutes.
_ABOUT: Final = {"preflight": 5.0, "build": 900.0, "up": 1200.0, "smoke": 60.0, "report": 5.0, "down": 120.0}
_DRAIN: Final = 30.0  # until the last answer of a rate has come
_CLIMB: Final = 2  # rates beyond the listed ones until the knee is found


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command. `run` names the server it belongs to; `about` is how long it may take, in seconds."""

    id: str
    stage: str
    run: str
    argv: tuple[str, ...]
    about: float
    output: Path | None = None  # of a measurement, which goes on where it was cut


def plan_steps(published: Published, directory: Path, *, download_mb_s: float) -> tuple[Step, ...]:
    """Every step, in order: first what may fail before anything is measured, then one server after the other."""
    runs = published.reproduce.runs
    steps: list[Step] = []
    for stage in STAGES[:3]:
        for index, run in enumerate(runs):
            about = _ABOUT.get(stage, published.reproduce.checkpoint_bytes / (download_mb_s * 1e6))
            repeated = stage != "preflight" and index > 0  # the same checkpoint, the same image
            steps.append(_step(stage, run.profile, (stage, "--profile", run.profile), 5.0 if repeated else about))
    for run in runs:
        steps += _serve(run, published, directory)
    return tuple(steps)


def _serve(run: ReproduceRun, published: Published, directory: Path) -> Iterator[Step]:
    name = run.profile
    yield _step("up", name, ("up", "--profile", name, "--name", name))
    yield _step("smoke", name, ("smoke", name))
    for workload in run.workloads:
        output = directory / name / workload
        yield Step(
            id=f"{name}/bench/{workload}",
            stage="bench",
            run=name,
            argv=("bench", name, "--workload", workload, "--output", str(output)),
            about=bench_seconds(load_workload(workload), tok_s=published.single_stream.output_tok_s),
            output=output,
        )
    yield _step("report", name, ("report", str(directory), "--published", published.name))
    yield _step("down", name, ("down", name))


def _step(stage: str, run: str, argv: tuple[str, ...], about: float | None = None) -> Step:
    return Step(id=f"{run}/{stage}", stage=stage, run=run, argv=argv, about=_ABOUT[stage] if about is None else about)


def bench_seconds(workload: Workload, *, tok_s: float) -> float:
    """How long a workload takes: arrivals at each rate and a drain, or one answer after the other at `tok_s`."""
    if workload.load == "closed":
        return workload.requests * workload.output_tokens / tok_s / (workload.concurrency or 1)
    rates = list(workload.rates_rps)
    if workload.climb is not None:
        rates += [rates[-1] + workload.climb.step_rps * (step + 1) for step in range(_CLIMB)]
    return sum(workload.requests_at(rate) / rate + _DRAIN for rate in rates)


class State:
    """Which steps are done, in a file that is replaced whole."""

    def __init__(self, file: Path, steps: Sequence[Step]) -> None:
        """Read `file`, or begin anew. Raises UsageError for a state of other steps, or one that cannot be read."""
        self._file = file
        self._digest = hashlib.sha256(json.dumps([(step.id, step.argv) for step in steps]).encode()).hexdigest()
        self.done: dict[str, str] = self._read()

    def finish(self, step: Step, now: dt.datetime) -> None:
        """Note that a step is done."""
        self.done[step.id] = now.isoformat(timespec="seconds")
        write_whole(self._file, json.dumps({"steps": self._digest, "done": self.done}, indent=2) + "\n")

    def _read(self) -> dict[str, str]:
        if not self._file.exists():
            return {}
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            digest, done = found["steps"], dict(found["done"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UsageError(
                f"cannot read the state: {error}", where=str(self._file), hint="use another --output"
            ) from error
        if digest != self._digest:
            hint = "go on with the options of then, or use another --output"
            raise UsageError("this directory was begun with other steps", where=str(self._file), hint=hint)
        return done


def still_to_do(steps: Sequence[Step], done: Mapping[str, str]) -> tuple[Step, ...]:
    """The steps that remain; an `up` that is done comes again while its server has something left to do."""
    left = [step for step in steps if step.id not in done]
    needed = {step.run for step in left if step.stage in {"smoke", "bench"}}
    return tuple(step for step in steps if step in left or (step.stage == "up" and step.run in needed))


def reproduce(
    steps: Sequence[Step],
    state: State,
    *,
    run: Callable[[tuple[str, ...]], int],
    now: Callable[[], dt.datetime],
    keep: bool,
) -> None:
    """Do what remains. `run` runs one command of this tool and returns its exit code.

    A server whose step fails, or is interrupted, is taken down unless `keep`. Raises DeployError with that step's code.
    """
    todo = still_to_do(steps, state.done)
    for number, step in enumerate(todo, start=1):
        argv = command(step)
        say(f"[{number}/{len(todo)}] deploy {' '.join(argv)}")
        finished = False
        try:
            _require(run(argv), argv)
            finished = True
        finally:
            if not finished and not keep and step.stage in {"smoke", "bench", "report"}:
                run(("down", step.run))
        state.finish(step, now())


def command(step: Step) -> tuple[str, ...]:
    """The step's command as it is run now: a measurement that was begun is resumed."""
    begun = step.output is not None and (step.output / RESULT_FILE).exists()
    return (*step.argv, "--resume") if begun else step.argv


def _require(code: int, argv: tuple[str, ...]) -> None:
    if code == 0:
        return
    error = DeployError(
        f"`deploy {' '.join(argv)}` ended with exit code {code}", hint="the same command goes on from here"
    )
    error.exit_code = code
    raise error
