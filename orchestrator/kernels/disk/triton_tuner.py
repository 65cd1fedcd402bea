"""sglang's own tuner of fused-MoE configurations for Triton (CUDA), run with the engine's Python (`tune_fused_moe.py`).

::

    kernels/triton/<sglang version>/configs/triton_3_6_0/    sglang's own configurations, and those measured here
    kernels/triton/<sglang version>/tuning/<model>-<gpu>-tp1/  the tuner, its log, and `measured.jsonl`

sglang reads the folder that SGLANG_MOE_CONFIG_DIR names *instead of* its own: so copies of its own lie in it too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from orchestrator.core.errors import KernelsError, Problem
from orchestrator.core.files import atomic_write, copy_tree, remove_file
from orchestrator.core.safe_paths import FileName
from orchestrator.core.validation import StrictModel
from orchestrator.engine.options import Meaning
from orchestrator.kernels.disk.run_limited import ExitReason, TunerRunner, TunerTimeouts, run_with_limits
from orchestrator.plan.plan import Plan

VARIABLE: Final = "SGLANG_MOE_CONFIG_DIR"
# The tuner's own default (get_default_batch_sizes, common_utils.py at 702bddcee823).
TOKENS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
DTYPES: Final[Mapping[str, str]] = {"bf16": "auto", "fp8": "fp8_w8a8"}  # a model's quantization: the tuner's word
_MEASURED: Final = "measured.jsonl"


class TritonConfiguration(StrictModel):
    """The fastest configuration for a count of tokens; `us` is its time a call, `untuned_us` that of today's."""

    tokens: int
    file: str
    triton: str
    shipped: str
    config: Mapping[str, int]
    us: float
    untuned_us: float


@dataclass(frozen=True, kw_only=True)
class TritonJob:
    """One tuning: what is run, where its files lie, and where its configurations go."""

    argv: tuple[str, ...]  # without the counts of tokens
    arguments: tuple[str, ...]  # of the tuner itself
    tokens: tuple[int, ...]
    folder: Path
    target: Path
    limits: TunerTimeouts

    @property
    def measured(self) -> tuple[TritonConfiguration, ...]:
        """What was measured so far, the last word for each count of tokens."""
        try:
            lines = (self.folder / _MEASURED).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        found = {one.tokens: one for one in map(_read, lines) if one is not None}
        return tuple(found[tokens] for tokens in sorted(found))

    @property
    def wanted(self) -> tuple[int, ...]:
        """The counts of tokens that have no configuration yet."""
        done = {one.tokens for one in self.measured}
        return tuple(tokens for tokens in self.tokens if tokens not in done)

    @property
    def command(self) -> tuple[str, ...]:
        """The argv for what is wanted."""
        return (*self.argv, *map(str, self.wanted), "--", *self.arguments)


def triton_job(
    plan: Plan,
    *,
    program: Sequence[str],
    model: Path,
    kernels: Path,
    tokens: Sequence[int],
    every: bool,
    hours: float,
) -> TritonJob:
    """The tuning for what one rank of the plan's server sees.

    `program` is the engine's Python and `tune_fused_moe.py`; `every` tries the tuner's whole search space. Raises
    KernelsError for a quantization that the tuner does not know.
    """
    if (dtype := DTYPES.get(plan.model.quantization)) is None:
        known = " and ".join(DTYPES)
        raise KernelsError(f"`{plan.model.name}` is {plan.model.quantization}: sglang's tuner is run for {known} here")
    layout = plan.layout
    target = kernels / "triton" / FileName(f"sglang-{plan.engine.version}")
    folder = target / "tuning" / FileName(f"{plan.model.name}-{plan.hardware.name}-tp{layout.tp}-ep{layout.ep}")
    arguments = ["--model", str(model), "--tp", str(layout.tp), "--ep", str(layout.ep), "--dtype", dtype]
    if plan.serving.expert_fusion is False:
        arguments.append(f"--{Meaning.NO_EXPERT_FUSION}")  # the tuner calls it as the server does
    return TritonJob(
        argv=(*program, str(folder), "all" if every else "shipped"),
        arguments=tuple(arguments),
        tokens=tuple(sorted(set(tokens))),
        folder=folder,
        target=target,
        limits=TunerTimeouts(total=hours * 3600, shutdown=60, look=1, term=10),
    )


@dataclass(frozen=True, kw_only=True)
class TritonTuned:
    """What came of it."""

    kept: tuple[TritonConfiguration, ...]
    remaining: tuple[int, ...]
    problems: tuple[Problem, ...]


def tune_triton(
    job: TritonJob,
    tuner: Mapping[str, bytes],
    *,
    run: TunerRunner = run_with_limits,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> TritonTuned:
    """Tune what has no configuration yet, and write what is measured, also where the run is interrupted.

    `tuner` are the files of sglang's tuner by name; `progress` is told how many of how many counts are done.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    for name, content in tuner.items():
        atomic_write(job.folder / FileName(name), content)
    log = job.folder / "tuner.log"
    remove_file(log)
    problems: list[Problem] = []

    def finished() -> bool:
        progress(len(job.tokens) - len(job.wanted), len(job.tokens))
        return not job.wanted

    try:
        if job.wanted:
            ended = run(job.command, log=log, limits=job.limits, finished=finished)
            if ended.ending is ExitReason.TIME_LIMIT:
                problems.append(Problem("the tuner was stopped at the time limit", str(log)))
            elif ended.code:
                problems.append(Problem(f"the tuner exited with {ended.code}: {_last_line(log)}", str(log)))
    finally:
        _deliver(job)
    return TritonTuned(kept=job.measured, remaining=job.wanted, problems=tuple(problems))


def _deliver(job: TritonJob) -> None:
    """Write the configurations where sglang looks them up, beside copies of its own."""
    files: dict[Path, dict[str, Mapping[str, int]]] = {}
    configs = job.target / "configs"
    for one in job.measured:
        copy_tree(Path(one.shipped), configs)
        folder = configs / FileName(f"triton_{one.triton.replace('.', '_')}")
        files.setdefault(folder / FileName(one.file), {})[str(one.tokens)] = one.config
    for path, content in files.items():
        atomic_write(path, json.dumps(content, indent=4) + "\n")


def _read(line: str) -> TritonConfiguration | None:
    """A line of results; None for one that was cut off, or has a name that is no file's."""
    try:
        found = _LINES.validate_json(line)
    except ValidationError:
        return None
    return found if Path(found.file).name == found.file else None


_LINES: Final = TypeAdapter(TritonConfiguration)


def _last_line(log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as lines:
        return next((line.strip()[:200] for line in reversed(lines.readlines()[-50:]) if line.strip()), "")
