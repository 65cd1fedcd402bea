"""aiter's tuner, run in the profile's image for given keys, with checks of its output.

Source: `gemm_moe_tune.py` and `utility/base_tuner.py` at aiter 9127c94a; never tested, since it needs a gfx950 GPU.
The tuner writes after every `--batch` shapes (default 100, so an interruption loses all). Without `-o` it overwrites
the image's table. It skips rows that exist in `-o`. It can hang at shutdown. After a failed shape it may exit with 0.
"""

import contextlib
import grp
import math
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from orchestrator.core import subprocesses
from orchestrator.core.errors import Problem
from orchestrator.core.files import atomic_write, move, open_to_append, remove_file
from orchestrator.core.polling import poll_until
from orchestrator.kernels.disk.store import RowProvenance, Store
from orchestrator.kernels.keys import Key
from orchestrator.kernels.rows import RowOrigin, TunedRow, read_rows, write_untuned
from orchestrator.kernels.table import KernelNames, NameVerdict
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import container_options

SCRIPT: Final = "csrc/ck_gemm_moe_2stages_codegen/gemm_moe_tune.py"
WORK_DIR: Final = "/tuning"  # in the container
ERROR_LIMIT: Final = 0.10  # share of wrong elements; upstream's GLM rows have at most 6.3 %
TIME_LIMIT: Final = "the tuner reached its time limit"
# Runs `argv` within `limits`, appends its output to `log`, polls `finished`; returns its problem.
TunerRunner: TypeAlias = Callable[..., str]


@dataclass(frozen=True, kw_only=True)
class TunerTimeouts:
    """Timeouts in seconds: for the work, from its end to the exit, between two polls, from SIGTERM to SIGKILL."""

    total: float
    shutdown: float
    poll: float
    grace: float


@dataclass(frozen=True, kw_only=True)
class TuningJob:
    """A run of the tuner for `keys`; `names` are the kernels allowed in its rows."""

    argv: tuple[str, ...]
    keys: tuple[Key, ...]
    names: KernelNames | None
    folder: Path
    limits: TunerTimeouts


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of a tuner run: valid rows, keys without a valid row, and all problems."""

    accepted: tuple[TunedRow, ...]
    remaining: tuple[Key, ...]
    problems: tuple[Problem, ...]


def group_id(name: str) -> str | None:
    """Return the id of a local group, or None."""
    try:
        return str(grp.getgrnam(name).gr_gid)
    except KeyError:
        return None


def tuner_command(
    plan: Plan, *, image: str, folder: Path, container: str, group: Callable[[str], str | None] = group_id
) -> tuple[str, ...]:
    """Return the argv of the tuner in `image`, with files in `folder`, a worker per GPU, and results after each round.

    The container has the devices and options of the plan's server. `--timeout 1800` is the tuner's limit in seconds for
    one group of candidates.
    """
    gpus = str(plan.hardware.gpus)
    docker = ["docker", "run", "--rm", "--init", "--name", container, "--volume", f"{folder}:{WORK_DIR}"]
    docker += [word for pair in container_options(plan.hardware.container, group) for word in pair]
    tuner = ["python3", f"{plan.engine.aiter_dir}/{SCRIPT}"]
    tuner += ["-i", f"{WORK_DIR}/untuned.csv", "-o", f"{WORK_DIR}/tuned.csv", "-o2", f"{WORK_DIR}/profile.csv"]
    tuner += ["--mp", gpus, "--batch", gpus, "--shape_grouped", "--timeout", "1800"]
    return (*docker, image, *tuner)


def run_with_limits(
    argv: Sequence[str], *, log: Path, limits: TunerTimeouts, finished: Callable[[], bool], container: str | None = None
) -> str:
    """Run a tuner as a process, and always stop it and its `container`; return its problem, or "".

    Raises ProgramMissingError if the program is missing.
    """
    with contextlib.ExitStack() as stack:
        if container is not None:
            stack.callback(subprocesses.run_or_127, ["docker", "rm", "--force", container], timeout=60)
        output = stack.enter_context(open_to_append(log))
        program = stack.enter_context(subprocesses.start(argv, output=output))
        stack.callback(program.end, signal.SIGTERM, grace=limits.grace)  # the whole group, as there is a worker per GPU

        def ends() -> bool:
            return program.wait_for(limits.poll) is not None or finished()

        done = poll_until(bool, ends, timeout=limits.total, interval=0)  # `wait_for` waits between two polls
        code = program.wait_for(limits.shutdown if done else 0)
    if code:
        return f"the tuner failed with exit code {code}"
    return TIME_LIMIT if code is None and not done else ""  # the tuner may hang after its work


def tune(
    job: TuningJob,
    *,
    run: TunerRunner,
    store: Store,
    provenance: RowProvenance,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Tuned:
    """Tune the job's keys; save every valid row even if the run is interrupted.

    `progress` receives the number of keys with a row and the total. Rows of an interrupted run are saved first.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    output, log = job.folder / "tuned.csv", job.folder / "tuner.log"
    earlier = _collect(job, store, provenance)
    remaining = _without(job.keys, earlier.accepted)
    if not remaining:
        return earlier
    atomic_write(job.folder / "untuned.csv", write_untuned(remaining))
    remove_file(log)

    def finished() -> bool:
        done = len(set(remaining) & {row.key for row in _read(output, [])})
        progress(len(job.keys) - len(remaining) + done, len(job.keys))
        return done == len(remaining)

    try:
        fault = run(job.argv, log=log, limits=job.limits, finished=finished)
    finally:
        new = _collect(job, store, provenance)
    accepted = (*earlier.accepted, *new.accepted)
    remaining = _without(job.keys, accepted)
    if remaining and not fault:
        fault = f"the tuner ended without a row for {len(remaining)} keys"
    hint = "run the same command again to continue" if fault == TIME_LIMIT else ""
    exit_problems = [Problem(fault, str(log), hint)] if fault else []
    return Tuned(accepted=accepted, remaining=remaining, problems=(*earlier.problems, *new.problems, *exit_problems))


def _collect(job: TuningJob, store: Store, provenance: RowProvenance) -> Tuned:
    """Move the output's valid rows into the store, and rename the output, so that other rows are tuned again."""
    output = job.folder / "tuned.csv"
    unreadable: list[Problem] = []
    accepted, invalid = check_rows(_read(output, unreadable), job)
    if accepted:
        store.add(accepted, provenance)
    with contextlib.suppress(FileNotFoundError):
        move(output, output.with_name("tuned.last.csv"))
    return Tuned(accepted=accepted, remaining=_without(job.keys, accepted), problems=(*unreadable, *invalid))


def check_rows(rows: Sequence[TunedRow], job: TuningJob) -> tuple[tuple[TunedRow, ...], tuple[Problem, ...]]:
    """Split rows into valid rows and problems of the others."""
    counts = Counter(row.identity for row in rows)
    faults = {row.location: _row_problem(row, job, duplicate=counts[row.identity] > 1) for row in rows}
    accepted = tuple(row for row in rows if not faults[row.location])
    return accepted, tuple(Problem(fault, location) for location, fault in faults.items() if fault)


def _row_problem(row: TunedRow, job: TuningJob, *, duplicate: bool) -> str:
    if row.key not in job.keys:
        return "row for another key"
    if duplicate:
        return "duplicate rows for the key"
    if math.isinf(row.us):
        return f"no time measured: `us` is `{row.cells.get('us', '')}`"
    if not row.kernels[0]:
        return "no kernel name"
    for name, column in zip(row.kernels, ("err1", "err2"), strict=True):
        if name and not (_share(row.cells.get(column, "")) <= ERROR_LIMIT):
            return f"`{column}` is `{row.cells.get(column, '')}`: above the limit of {ERROR_LIMIT:.0%} wrong results"
    verdict = job.names.check_all(row.kernels, row.key.shape) if job.names else NameVerdict.KNOWN
    return "" if verdict is NameVerdict.KNOWN else f"{verdict.value}: {' '.join(row.kernels)}"


def _share(text: str) -> float:
    """Parse an error ratio as a share: the tuner writes `0.9%`, for mxmoe `0.009`; NaN if invalid."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan


def _read(path: Path, problems: list[Problem]) -> list[TunedRow]:
    """Read the output; the last line may be incomplete while the tuner writes."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as lines:
            return list(read_rows(lines, name=str(path), origin=RowOrigin.MEASURED, problems=problems))
    except FileNotFoundError:
        return []


def _without(keys: Sequence[Key], rows: Sequence[TunedRow]) -> tuple[Key, ...]:
    done = {row.key for row in rows if row.looked_up}
    return tuple(key for key in keys if key not in done)
