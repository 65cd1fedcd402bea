"""aiter's own tuner, for exactly the missing keys: started in the profile's image, watched, its output checked.

Its behavior is read from `gemm_moe_tune.py` and `utility/base_tuner.py` at aiter 9127c94a (it needs a gfx950 GPU and
has not been run here): it writes after every `--batch` shapes (default 100, so an interruption loses all); without `-o`
it overwrites the shipped table; rows in `-o` are not tuned again; it can hang at shutdown; a failed shape is a printed
error, not always an exit code.
"""

import contextlib
import grp
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.errors import Problem
from orchestrator.core.files import atomic_write, move, remove_file
from orchestrator.core.subprocesses import run_or_127
from orchestrator.kernels.disk.run_limited import ExitReason, ProgramExit, TunerRunner, TunerTimeouts, run_with_limits
from orchestrator.kernels.disk.store import RowProvenance, Store
from orchestrator.kernels.keys import Key
from orchestrator.kernels.rows import RowOrigin, TunedRow, read_rows, write_untuned
from orchestrator.kernels.table import KernelNames, NameVerdict
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import needs_options

SCRIPT: Final = "csrc/ck_gemm_moe_2stages_codegen/gemm_moe_tune.py"
WORK: Final = "/tuning"  # the working folder inside the container
ERROR_LIMIT: Final = 0.10  # share of wrong elements; upstream's committed GLM rows have at most 6.3 %
_PRINTED: Final = re.compile(
    r"\[Tuning not Finished\]|no valid candidate found|please check errRatio|\d+ of \d+ tasks failed"
    r"|no shape to tune or no solution found|error in batch \d+|^Traceback \(most recent call last\)",
    re.MULTILINE,
)
_MOST_LINES: Final = 10


@dataclass(frozen=True, kw_only=True)
class TuningJob:
    """One tuning: the keys that are wanted, and what their rows are held against."""

    argv: tuple[str, ...]
    keys: tuple[Key, ...]
    names: KernelNames | None
    folder: Path
    limits: TunerTimeouts


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What came of it: rows that were kept, keys still without one, and everything that was not right."""

    kept: tuple[TunedRow, ...]
    remaining: tuple[Key, ...]
    problems: tuple[Problem, ...]


def group_id(name: str) -> str | None:
    """The id of a group on this machine, None where there is none of that name."""
    try:
        return str(grp.getgrnam(name).gr_gid)
    except KeyError:
        return None


def tuner_command(
    plan: Plan, *, image: str, folder: Path, container: str, group: Callable[[str], str | None] = group_id
) -> tuple[str, ...]:
    """The argv that runs the tuner in `image`, its files in `folder`; one worker a GPU, results after each round.

    The container is given what the plan's server would be. `--timeout 1800` is the tuner's own limit for one group of
    candidates, in seconds.
    """
    gpus = str(plan.hardware.gpus)
    docker = ["docker", "run", "--rm", "--init", "--name", container, "--volume", f"{folder}:{WORK}"]
    docker += [word for pair in needs_options(plan.hardware.container, group) for word in pair]
    tuner = ["python3", f"{plan.engine.aiter_dir}/{SCRIPT}"]
    tuner += ["-i", f"{WORK}/untuned.csv", "-o", f"{WORK}/tuned.csv", "-o2", f"{WORK}/profile.csv"]
    tuner += ["--mp", gpus, "--batch", gpus, "--shape_grouped", "--timeout", "1800"]
    return (*docker, image, *tuner)


def in_container(name: str) -> TunerRunner:
    """The TunerRunner for a command that starts the container `name`: nothing of the container is left either."""

    def run(argv: Sequence[str], *, log: Path, limits: TunerTimeouts, finished: Callable[[], bool]) -> ProgramExit:
        try:
            return run_with_limits(argv, log=log, limits=limits, finished=finished)
        finally:
            run_or_127(["docker", "rm", "--force", name], timeout=60)

    return run


def tune(
    job: TuningJob,
    *,
    run: TunerRunner,
    store: Store,
    provenance: RowProvenance,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Tuned:
    """Tune the job's keys, keeping every row that is right, also where the run is interrupted.

    `progress` is told how many of how many keys have a row. Rows of a run that was cut off are taken up first.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    output, log = job.folder / "tuned.csv", job.folder / "tuner.log"
    earlier = _collect(job, store, provenance)
    wanted = _without(job.keys, earlier.kept)
    if not wanted:
        return earlier
    atomic_write(job.folder / "untuned.csv", write_untuned(wanted))
    remove_file(log)

    def finished() -> bool:
        done = len(set(wanted) & {row.key for row in _read(output, [])})
        progress(len(job.keys) - len(wanted) + done, len(job.keys))
        return done == len(wanted)

    try:
        ended = run(job.argv, log=log, limits=job.limits, finished=finished)
    finally:
        now = _collect(job, store, provenance)
    kept = (*earlier.kept, *now.kept)
    return Tuned(
        kept=kept,
        remaining=_without(job.keys, kept),
        problems=(*earlier.problems, *now.problems, *_ending_problems(ended, log), *_printed_problems(log)),
    )


def _collect(job: TuningJob, store: Store, provenance: RowProvenance) -> Tuned:
    """Move what is right in the tuner's output into the store; the file is put aside, so the rest is tuned again."""
    output = job.folder / "tuned.csv"
    unreadable: list[Problem] = []
    kept, wrong = check_rows(_read(output, unreadable), job)
    if kept:
        store.add(kept, provenance)
    with contextlib.suppress(FileNotFoundError):
        move(output, output.with_name("tuned.last.csv"))
    return Tuned(kept=kept, remaining=_without(job.keys, kept), problems=(*unreadable, *wrong))


def check_rows(rows: Sequence[TunedRow], job: TuningJob) -> tuple[tuple[TunedRow, ...], tuple[Problem, ...]]:
    """The rows that may be used, and for every other what is wrong with it, with the line it stands in."""
    times = Counter(row.identity for row in rows)
    faults = {row.where: _fault(row, job, twice=times[row.identity] > 1) for row in rows}
    kept = tuple(row for row in rows if not faults[row.where])
    return kept, tuple(Problem(fault, where) for where, fault in faults.items() if fault)


def _fault(row: TunedRow, job: TuningJob, *, twice: bool) -> str:
    if row.key not in job.keys:
        return "a row for a key that was not asked for"
    if twice:
        return "two rows for one key"
    if math.isinf(row.us):
        return f"no time: `us` is `{row.cells.get('us', '')}`"
    if not row.kernels[0]:
        return "no kernel name"
    for name, column in zip(row.kernels, ("err1", "err2"), strict=True):
        if name and not (_share(row.cells.get(column, "")) <= ERROR_LIMIT):
            return f"`{column}` is `{row.cells.get(column, '')}`: more than {ERROR_LIMIT:.0%} of the results are wrong"
    verdict = job.names.judge_all(row.kernels, row.key.shape) if job.names else NameVerdict.KNOWN
    return "" if verdict is NameVerdict.KNOWN else f"{verdict.value}: {' '.join(row.kernels)}"


def _share(text: str) -> float:
    """An error ratio as a share: the tuner writes `0.9%`, its mxmoe part `0.009`; NaN where it is neither."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan


def _read(path: Path, problems: list[Problem]) -> list[TunedRow]:
    """What stands in the output; a file the tuner is just writing may be cut off anywhere."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as lines:
            return list(read_rows(lines, name=str(path), origin=RowOrigin.MEASURED, problems=problems))
    except FileNotFoundError:
        return []


def _ending_problems(ended: ProgramExit, log: Path) -> list[Problem]:
    if ended.ending is ExitReason.TIME_LIMIT:
        return [Problem("the tuner was stopped at the time limit", str(log), "run the same command again to go on")]
    if ended.code:
        return [Problem(f"the tuner exited with {ended.code}", str(log))]
    return []


def _printed_problems(log: Path) -> list[Problem]:
    """Errors that it printed, whatever its exit code."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            found = [(number, line.strip()) for number, line in enumerate(lines, start=1) if _PRINTED.search(line)]
    except FileNotFoundError:
        return []
    return [Problem(f"the tuner printed: {line[:160]}", f"{log}:{number}") for number, line in found[:_MOST_LINES]]


def _without(keys: Sequence[Key], rows: Sequence[TunedRow]) -> tuple[Key, ...]:
    done = {row.key for row in rows if row.looked_up}
    return tuple(key for key in keys if key not in done)
