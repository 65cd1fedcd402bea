"""`deploy kernels tune`: aiter's tuner for untuned keys, or sglang's tuner for Triton on CUDA."""

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.verify import checkpoint_directory
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.paths import Home
from orchestrator.hosts.venvs.venv import engine_python
from orchestrator.kernels.disk.image import read_digest
from orchestrator.kernels.disk.pins import read_pins, read_tuner_pins
from orchestrator.kernels.disk.run_limited import TunerTimeouts
from orchestrator.kernels.disk.store import RowProvenance, Store
from orchestrator.kernels.disk.triton_tuner import TOKENS, TritonJob, TritonTuned, triton_job, tune_triton
from orchestrator.kernels.disk.tuner import Tuned, TuningJob, container_runner, tune, tuner_command
from orchestrator.kernels.disk.upstream import upstream_file
from orchestrator.kernels.keys import Key
from orchestrator.kernels.plan_coverage import RowSources, compute_coverage, require_moe, tables_in_image
from orchestrator.kernels.rows import RowOrigin
from orchestrator.plan.plan import Plan

_GPU_DEVICE = Path("/dev/kfd")
_NVIDIA_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A prepared tuning run of aiter's tuner."""

    store: Store
    job: TuningJob
    container: str
    image: str
    aiter_commit: str


def prepare_tuning(
    plan: Plan, sources: RowSources, home: Home, *, hours: float, retune_derived: bool, tokens: Sequence[int] = ()
) -> Tuning:
    """Prepare to tune the untuned keys, with `retune_derived` also the keys of derived rows; `tokens` selects buckets.

    Raises UsageError without an image.
    """
    require_moe(plan)
    image = sources.image or plan.engine.image
    if image is None or plan.engine.aiter_dir is None:
        raise UsageError(f"the engine of `{plan.profile}` has no image with aiter", hint="`--image IMAGE`")
    if sources.image:
        sources = replace(sources, aiter_commit=tables_in_image(plan, sources.image).aiter_commit)
    commit = sources.aiter_commit or plan.engine.aiter_commit
    store = Store.of(home, plan, commit)
    folder = store.tuning(plan)
    container = f"deploy-tune-{plan.profile}-{os.getpid()}-{secrets.token_hex(4)}"  # pids repeat in other namespaces
    job = TuningJob(
        argv=tuner_command(plan, image=image, folder=folder, container=container),
        keys=tuple(
            key
            for key in _keys_to_tune(plan, sources, home, retune_derived=retune_derived)
            if not tokens or key.token in tokens
        ),
        names=read_pins().names_of(commit),
        folder=folder,
        limits=TunerTimeouts(total=hours * 3600, shutdown=120, poll=5, grace=20),
    )
    return Tuning(store=store, job=job, container=container, image=image, aiter_commit=commit or "unknown")


def _keys_to_tune(plan: Plan, sources: RowSources, home: Home, *, retune_derived: bool) -> tuple[Key, ...]:
    store = Store.of(home, plan, sources.aiter_commit)
    if sources.tables or store.table(plan).is_file():  # the table includes the image's rows
        sources = replace(sources, image=None)
    coverage = compute_coverage(plan, sources, home).coverage
    unmeasured = {
        bucket.key
        for key in coverage.keys
        if key.expected is not False
        for bucket in key.buckets
        if retune_derived and bucket.row and bucket.row.origin is RowOrigin.DERIVED
    }
    measured = {row.key for row in store.measured() if not row.tag}
    return tuple(sorted(({*coverage.untuned, *unmeasured}) - measured))


def run_tuning(tuning: Tuning, progress: Callable[[int, int], None]) -> Tuned:
    """Run aiter's tuner. Raises HostError without an AMD GPU."""
    _require_device(_GPU_DEVICE)
    provenance = RowProvenance(
        host=socket.gethostname(),
        image=read_digest(tuning.image),
        aiter_commit=tuning.aiter_commit,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return tune(
        tuning.job, run=container_runner(tuning.container), store=tuning.store, provenance=provenance, progress=progress
    )


def prepare_triton_tuning(
    plan: Plan, home: Home, *, tokens: Sequence[int], full_search: bool, hours: float
) -> TritonJob:
    """Prepare to tune the shape of one rank of a CUDA server; `tokens` defaults to the tuner's own.

    Raises UsageError without the checkpoint's config.json, BuildError.
    """
    model = checkpoint_directory(plan.model, home)
    if not (model / CONFIG).is_file():
        raise UsageError(
            f"no `{CONFIG}` of `{plan.model.name}` found in `{model}`",
            hint="`deploy stage PROFILE` downloads it; `deploy up PROFILE` makes a generated one",
        )
    return triton_job(
        plan,
        program=(
            engine_python(plan.engine, home),
            str(Catalog.of(home).path(EntryKind.IMAGE_FILE, "tune_fused_moe.py")),
        ),
        model=model,
        kernels=home.kernels,
        tokens=tokens or TOKENS,
        full_search=full_search,
        hours=hours,
    )


def run_triton_tuning(job: TritonJob, home: Home, progress: Callable[[int, int], None]) -> TritonTuned:
    """Run sglang's tuner. Raises HostError without an NVIDIA GPU, KernelsError if the tuner cannot be downloaded."""
    _require_device(_NVIDIA_DEVICE)
    files = {pin.name: upstream_file(pin, home.kernels / "upstream").read_bytes() for pin in read_tuner_pins()}
    return tune_triton(job, files, progress=progress)


def _require_device(device: Path) -> None:
    if not device.exists():
        raise HostError(
            f"no `{device}` found: tuning needs the server's GPU",
            hint="run this on the server's host; `--dry-run` shows the command anywhere",
        )
