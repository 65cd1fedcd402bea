"""`deploy kernels tune`: aiter's tuner for untuned keys."""

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.paths import Home
from orchestrator.kernels.disk.image import read_digest
from orchestrator.kernels.disk.pins import read_pins
from orchestrator.kernels.disk.store import RowProvenance, Store
from orchestrator.kernels.disk.tuner import Tuned, TunerTimeouts, TuningJob, run_with_limits, tune, tuner_command
from orchestrator.kernels.keys import Key
from orchestrator.kernels.plan_coverage import RowSources, compute_coverage, require_moe, tables_in_image
from orchestrator.kernels.rows import RowOrigin
from orchestrator.plan.plan import Plan

_GPU_DEVICE = Path("/dev/kfd")


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
    """Prepare to tune untuned keys and, with `retune_derived`, keys of derived rows; `tokens` selects buckets.

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
    container = f"deploy-tune-{plan.profile}-{os.getpid()}-{secrets.token_hex(4)}"  # pids repeat across namespaces
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
    coverage = compute_coverage(plan, sources, home)
    unmeasured = {
        bucket.key
        for key in coverage.keys
        if key.looked_up is not False
        for bucket in key.buckets
        if retune_derived and bucket.origin is RowOrigin.DERIVED
    }
    measured = {row.key for row in store.measured_rows() if not row.tag}
    return tuple(sorted(({*coverage.untuned_keys, *unmeasured}) - measured))


def run_tuning(tuning: Tuning, progress: Callable[[int, int], None]) -> Tuned:
    """Run aiter's tuner. Raises HostError without an AMD GPU."""
    _require_gpu()
    provenance = RowProvenance(
        host=socket.gethostname(),
        image=read_digest(tuning.image),
        aiter_commit=tuning.aiter_commit,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    run = partial(run_with_limits, container=tuning.container)
    return tune(tuning.job, run=run, store=tuning.store, provenance=provenance, progress=progress)


def _require_gpu() -> None:
    if not _GPU_DEVICE.exists():
        raise HostError(
            f"no `{_GPU_DEVICE}` found: tuning needs the server's GPU",
            hint="run this on the server's host; `--dry-run` shows the command anywhere",
        )
