"""sglang's own tuner of fused-MoE configurations for Triton (CUDA), run with the engine's Python (`tune_fused_moe.py`).

::

    kernels/triton/<sglang version>/configs/triton_3_6_0/    sglang's own configurations and the measured ones
    kernels/triton/<sglang version>/tuning/<model>-<gpu>-tp1/  the tuner, its log, and `measured.jsonl`

sglang reads the folder SGLANG_MOE_CONFIG_DIR *instead of* its own, so the folder includes copies of sglang's own.
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

CONFIG_DIR_VARIABLE: Final = "SGLANG_MOE_CONFIG_DIR"
# The tuner's own default (get_default_batch_sizes, common_utils.py at 702bddcee823).
TOKENS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
DTYPES: Final[Mapping[str, str]] = {"bf16": "auto", "fp8": "fp8_w8a8"}  # quantization: the tuner's `--dtype`
_MEASURED: Final = "measured.jsonl"


class TritonConfiguration(StrictModel):
    """The fastest configuration for a number of tokens; `us` and `untuned_us` are microseconds per call."""

    tokens: int
    file: str
    triton: str
    shipped: str
    config: Mapping[str, int]
    us: float
    untuned_us: float


@dataclass(frozen=True, kw_only=True)
class TritonJob:
    """A run of the tuner: working files in `folder`, configurations in `target`."""

    argv: tuple[str, ...]  # without the numbers of tokens
    arguments: tuple[str, ...]  # of the tuner itself
    tokens: tuple[int, ...]
    folder: Path
    target: Path
    limits: TunerTimeouts

    @property
    def measured(self) -> tuple[TritonConfiguration, ...]:
        """The measured configurations, the latest for each number of tokens."""
        try:
            lines = (self.folder / _MEASURED).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        latest = {config.tokens: config for config in map(_parse, lines) if config is not None}
        return tuple(latest[tokens] for tokens in sorted(latest))

    @property
    def remaining(self) -> tuple[int, ...]:
        """The numbers of tokens without a measured configuration."""
        done = {config.tokens for config in self.measured}
        return tuple(tokens for tokens in self.tokens if tokens not in done)

    @property
    def command(self) -> tuple[str, ...]:
        """The argv for the remaining numbers of tokens."""
        return (*self.argv, *map(str, self.remaining), "--", *self.arguments)


def triton_job(
    plan: Plan,
    *,
    program: Sequence[str],
    model: Path,
    kernels: Path,
    tokens: Sequence[int],
    full_search: bool,
    hours: float,
) -> TritonJob:
    """Describe the run of the tuner for one rank of the plan's server.

    `program` is the engine's Python and `tune_fused_moe.py`; `full_search` tries the tuner's whole search space. Raises
    KernelsError for an unsupported quantization.
    """
    if (dtype := DTYPES.get(plan.model.quantization)) is None:
        known = " or ".join(DTYPES)
        raise KernelsError(f"cannot tune `{plan.model.name}`: quantization {plan.model.quantization} is not {known}")
    layout = plan.layout
    target = kernels / "triton" / FileName(f"sglang-{plan.engine.version}")
    folder = target / "tuning" / FileName(f"{plan.model.name}-{plan.hardware.name}-tp{layout.tp}-ep{layout.ep}")
    arguments = ["--model", str(model), "--tp", str(layout.tp), "--ep", str(layout.ep), "--dtype", dtype]
    if plan.serving.expert_fusion is False:
        arguments.append(f"--{Meaning.NO_EXPERT_FUSION}")  # same name as the server's flag
    return TritonJob(
        argv=(*program, str(folder), "all" if full_search else "shipped"),
        arguments=tuple(arguments),
        tokens=tuple(sorted(set(tokens))),
        folder=folder,
        target=target,
        limits=TunerTimeouts(total=hours * 3600, shutdown=60, poll=1, grace=10),
    )


@dataclass(frozen=True, kw_only=True)
class TritonTuned:
    """Result of a run of the tuner."""

    measured: tuple[TritonConfiguration, ...]
    remaining: tuple[int, ...]
    problems: tuple[Problem, ...]


def tune_triton(
    job: TritonJob,
    tuner: Mapping[str, bytes],
    *,
    run: TunerRunner = run_with_limits,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> TritonTuned:
    """Tune the remaining numbers of tokens; write the measured configurations even if the run is interrupted.

    `tuner` are the files of sglang's tuner by name; `progress` receives the done and total number of configurations.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    for name, content in tuner.items():
        atomic_write(job.folder / FileName(name), content)
    log = job.folder / "tuner.log"
    remove_file(log)
    problems: list[Problem] = []

    def finished() -> bool:
        progress(len(job.tokens) - len(job.remaining), len(job.tokens))
        return not job.remaining

    try:
        if job.remaining:
            end = run(job.command, log=log, limits=job.limits, finished=finished)
            if end.reason is ExitReason.TIME_LIMIT:
                problems.append(Problem("the tuner reached its time limit", str(log)))
            elif end.code:
                problems.append(Problem(f"the tuner failed with exit code {end.code}: {_last_line(log)}", str(log)))
    finally:
        _write_configs(job)
    return TritonTuned(measured=job.measured, remaining=job.remaining, problems=tuple(problems))


def _write_configs(job: TritonJob) -> None:
    """Write the configurations for sglang, with copies of its own."""
    files: dict[Path, dict[str, Mapping[str, int]]] = {}
    configs = job.target / "configs"
    for tuned in job.measured:
        copy_tree(Path(tuned.shipped), configs)
        folder = configs / FileName(f"triton_{tuned.triton.replace('.', '_')}")
        files.setdefault(folder / FileName(tuned.file), {})[str(tuned.tokens)] = tuned.config
    for path, content in files.items():
        atomic_write(path, json.dumps(content, indent=4) + "\n")


def _parse(line: str) -> TritonConfiguration | None:
    """Parse a line of results; None for a truncated line or an unsafe file name."""
    try:
        result = _LINES.validate_json(line)
    except ValidationError:
        return None
    return result if Path(result.file).name == result.file else None


_LINES: Final = TypeAdapter(TritonConfiguration)


def _last_line(log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as lines:
        return next((line.strip()[:200] for line in reversed(lines.readlines()[-50:]) if line.strip()), "")
