"""`deploy quantize`: quantize a BF16 checkpoint with AMD Quark, verify it, and write a model's catalog entry."""

import math
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.files import file_stamps
from orchestrator.checkpoints.quantize.assemble import assemble, copied_size
from orchestrator.checkpoints.quantize.forecast import Forecast, forecast
from orchestrator.checkpoints.quantize.recipe import Recipe, load_recipe
from orchestrator.checkpoints.quantize.source import Source, read_source
from orchestrator.checkpoints.quantize.work_dir import QuantizationJob, WorkDir
from orchestrator.checkpoints.quantize.workers import (
    QuantizationProgress,
    WorkerPool,
    container_command,
    local_command,
    quark_version,
    run_workers,
)
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import Progress, format_duration, note, warn
from orchestrator.core.disk_space import require_disk_space
from orchestrator.core.errors import DeployError, HostError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import quote
from orchestrator.core.text import gb
from orchestrator.hosts.host_state import available_memory
from orchestrator.hosts.venvs.venv import ensure_venv
from orchestrator.kernels.disk.tuner import group_id
from orchestrator.plan.plan import Plan
from orchestrator.planner.add.file import EntryOutput
from orchestrator.planner.add.model import add_model

REQUIREMENTS: Final = "quark-0.13.txt"  # below images/: requirements of Quark's environment
PROGRAM: Final = "quantize_shards.py"
_BASE_MEMORY: Final = 700_000_000  # memory of a worker after importing Quark, in bytes
_OF_A_SHARD: Final = 2.3  # multiple of the largest shard's size; measured: 1.6, see docs/how-to/quantize.md
_SPARE: Final = 1 << 30  # disk space for headers, index and card, in bytes


@dataclass(frozen=True, kw_only=True)
class QuantizationRequest:
    """The input of `deploy quantize`. The plan provides image and GPUs."""

    source: Path
    target: Path
    recipe: str
    name: str | None = None  # name of the catalog entry; by default the target's name
    workers: int | None = None
    plan: Plan | None = None
    image: str | None = None  # replaces the plan's image


@dataclass(frozen=True, kw_only=True)
class QuantizedCheckpoint:
    """The new checkpoint, with sizes in bytes. `model` is None if no catalog entry was written."""

    target: Path
    shards: int
    size: int
    source_size: int
    model: EntryOutput | None


def quantize(request: QuantizationRequest, home: Home) -> QuantizedCheckpoint:
    """Quantize and verify a checkpoint, and write its catalog entry. A repeated call resumes after finished shards.

    Raises UsageError for an existing target, HostError if disk space, memory or Quark is missing, BuildError if Quark
    fails, CheckpointMismatchError or CheckpointError if the source or the result is invalid.
    """
    _require_new(request.target)
    source = read_source(request.source)
    recipe = load_recipe(request.recipe, Catalog.of(home))
    shard_forecast = forecast(source, recipe)
    _require_apart(source, request.target)
    folder = WorkDir(request.target)
    _require_space(request.target, shard_forecast, copied_size(request.source), folder)
    progress = Progress()
    with folder.lock(progress):
        _require_new(request.target)  # another command may have created it in the meantime
        folder.begin(_job(request, source, recipe))
        _make(request, source, shard_forecast, folder, home)
        note(f"verifying {len(shard_forecast.shards)} shards")
        folder.require_complete(shard_forecast)
        receipt = assemble(
            folder, request.target, source=source, recipe=recipe, recipe_name=request.recipe, forecast=shard_forecast
        )
    return QuantizedCheckpoint(
        target=request.target,
        shards=receipt.shards,
        size=sum(size for file, (size, _) in receipt.files.items() if file.endswith(".safetensors")),
        source_size=source.size,
        model=_added_model(request.target, request.name or request.target.name.lower(), home),
    )


def _make(request: QuantizationRequest, source: Source, shard_forecast: Forecast, folder: WorkDir, home: Home) -> None:
    """Run workers for the remaining shards; on failure, report the finished shards."""
    done = folder.resume(shard_forecast)
    if done:
        note(f"{len(done)} of {len(shard_forecast.shards)} shards are done")
    remaining = len(shard_forecast.shards) - len(done)
    if not remaining:
        return
    try:
        pool = _pool(request, source, folder, home, shards=remaining)
    except BaseException:
        if not done:
            folder.remove()
        raise

    def show(state: QuantizationProgress) -> None:
        remaining = f"about {format_duration(state.eta)} left" if state.eta else ""
        text = f"quantizing: {state.shards} of {state.total_shards} shards, {gb(state.done)} of {gb(state.total)}"
        progress.update(text, stage="quantizing", transient=remaining)

    try:
        with Progress() as progress:
            run_workers(pool, folder, source.sizes, show)
    except BaseException:
        finished = folder.finished([*shard_forecast.shards])
        saved = f"{len(finished)} of {len(shard_forecast.shards)} shards are done and saved"
        note(f"{saved} in `{folder.root}`: repeat the command to resume")
        raise


def _job(request: QuantizationRequest, source: Source, recipe: Recipe) -> QuantizationJob:
    return QuantizationJob(
        source=str(source.directory),
        files={name: (*stamp,) for name, stamp in file_stamps(source.directory).items()},
        shards=tuple(source.shards),
        model_type=source.summary.config.model_type,
        scheme=recipe.scheme,
        exclude=recipe.excluded(source.layers),
        layers=recipe.schemes(source.layers),
        made_by=_image(request) or REQUIREMENTS,
    )


def _image(request: QuantizationRequest) -> str:
    """Return the image of the workers; "" for none."""
    if request.plan is None:
        return ""
    image = request.image or request.plan.engine.image
    if image is None:
        raise UsageError(f"the engine of `{request.plan.profile}` has no image", hint="set one: `--image IMAGE`")
    return image


def _pool(request: QuantizationRequest, source: Source, folder: WorkDir, home: Home, *, shards: int) -> WorkerPool:
    """Return the workers for `shards` shards. Raises HostError if this host cannot run them, or BuildError."""
    program = Catalog.of(home).path(EntryKind.IMAGE_FILE, PROGRAM)
    if request.plan is not None:
        needs, image = request.plan.hardware.container, _image(request)
        note(f"amd-quark {quark_version(image)} of `{image}`")
        return container_command(
            image, program, folder, source=source.directory, needs=needs,
            workers=min(request.workers or shards, request.plan.hardware.gpus or 1, shards), group=group_id,
        )  # fmt: skip
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++"))):
        raise HostError("no C++ compiler found; Quark needs one for its kernels", hint="`apt-get install g++`")
    cores = len(os.sched_getaffinity(0))
    workers = _workers(request, source, cores=cores, shards=shards)
    requirements = Catalog.of(home).path(EntryKind.IMAGE_FILE, REQUIREMENTS)
    environment = ensure_venv(requirements, home=home, progress=Progress())
    note(f"{workers} {'worker' if workers == 1 else 'workers'} on {cores} cores")
    return local_command(environment.python, program, folder, workers=workers, cores=cores)


def _workers(request: QuantizationRequest, source: Source, *, cores: int, shards: int) -> int:
    """Return the number of workers: the requested number, else one per core within memory. Raises HostError."""
    per_worker, free = int(_BASE_MEMORY + _OF_A_SHARD * max(source.sizes.values())), available_memory()
    fit = math.inf if free is None else free // per_worker
    text = f"a worker needs about {gb(per_worker)} of memory, and {gb(free or 0)} are free"
    if request.workers is not None:
        if request.workers > fit:
            warn(text)
        return min(request.workers, shards)
    if fit < 1:
        raise HostError(text, hint="free up memory; `--workers 1` starts anyway")
    return int(min(cores, shards, fit))


def _require_apart(source: Source, target: Path) -> None:
    """Raise UsageError for a target inside the source, whose other files are copied into the target."""
    if target.resolve().is_relative_to(source.directory.resolve()):
        raise UsageError(
            "the target is inside the source", location=str(target), hint="choose a directory outside the source"
        )


def _require_new(target: Path) -> None:
    if os.path.lexists(target):
        raise UsageError("the target exists", location=str(target), hint="choose a directory that does not exist")
    if not target.parent.is_dir():
        raise UsageError(
            "the directory does not exist",
            location=str(target.parent),
            hint=f"`mkdir -p {shlex.quote(str(target.parent))}`",
        )


def _require_space(target: Path, shard_forecast: Forecast, other_bytes: int, folder: WorkDir) -> None:
    """Raise HostError if the disk space does not suffice for the result."""
    done = sum(map(shard_forecast.size_of, folder.finished([*shard_forecast.shards])))
    missing = shard_forecast.size - done + other_bytes + _SPARE
    require_disk_space(target.parent, missing, hint="choose a target on another disk")


def _added_model(target: Path, name: str, home: Home) -> EntryOutput | None:
    """Return the new checkpoint's catalog entry; None if the name exists, for example as a shipped model.

    Only reports errors, because the checkpoint is valid without an entry.
    """
    if Catalog.of(home).find(EntryKind.MODEL, name):
        note(f"the catalog has a model `{name}`; no entry is written")
        return None
    try:
        return add_model(str(target), home, name=name)
    except DeployError as error:
        warn(error.message, hint=f"`{quote(['deploy', 'add', 'model', str(target)])}` names each missing value")
        return None
