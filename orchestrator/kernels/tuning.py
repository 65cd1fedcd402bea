"""`deploy kernels tune`: aiter's own tuner, for exactly the keys that no row answers; on CUDA, sglang's for Triton."""

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
from orchestrator.kernels.disk.tuner import Tuned, TuningJob, in_container, tune, tuner_command
from orchestrator.kernels.disk.upstream import upstream_file
from orchestrator.kernels.keys import Key
from orchestrator.kernels.plan_coverage import RowSources, compute_coverage, require_moe, tables_in_image
from orchestrator.kernels.rows import RowOrigin
from orchestrator.plan.plan import Plan

_GPU_DEVICE = Path("/dev/kfd")
_NVIDIA_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A tuning that is about to start: with which command, in which image, and where its rows are kept."""

    store: Store
    job: TuningJob
    container: str
    image: str
    aiter_commit: str


def prepare_tuning(
    plan: Plan, given: RowSources, home: Home, *, hours: float, retune_derived: bool, tokens: Sequence[int] = ()
) -> Tuning:
    """The tuning of exactly the keys that no row answers, and with `rekeyed` also those that a re-keyed row does.

    With `tokens` only those of such buckets. Raises UsageError without an image to run in.
    """
    require_moe(plan)
    image = given.image or plan.engine.image
    if image is None or plan.engine.aiter_dir is None:
        raise UsageError(f"the engine of `{plan.profile}` has no image with aiter", hint="name one with `--image`")
    if given.image:
        given = replace(given, aiter_commit=tables_in_image(plan, given.image).aiter_commit)
    commit = given.aiter_commit or plan.engine.aiter_commit
    store = Store.of(home, plan, commit)
    folder = store.tuning(plan)
    container = f"deploy-tune-{plan.profile}-{os.getpid()}-{secrets.token_hex(4)}"  # a pid is one of several namespaces
    job = TuningJob(
        argv=tuner_command(plan, image=image, folder=folder, container=container),
        keys=tuple(
            key for key in _to_tune(plan, given, home, rekeyed=retune_derived) if not tokens or key.token in tokens
        ),
        names=read_pins().names_of(commit),
        folder=folder,
        limits=TunerTimeouts(total=hours * 3600, shutdown=120, look=5, term=20),
    )
    return Tuning(store=store, job=job, container=container, image=image, aiter_commit=commit or "unknown")


def _to_tune(plan: Plan, given: RowSources, home: Home, *, rekeyed: bool) -> tuple[Key, ...]:
    store = Store.of(home, plan, given.aiter_commit)
    if given.tables or store.table(plan).is_file():  # the table holds the image's rows
        given = replace(given, image=None)
    found = compute_coverage(plan, given, home).found
    unmeasured = {
        bucket.key
        for one in found.keys
        if one.expected is not False
        for bucket in one.buckets
        if rekeyed and bucket.row and bucket.row.origin is RowOrigin.REKEYED
    }
    measured = {row.key for row in store.measured() if not row.tag}
    return tuple(sorted(({*found.missing, *unmeasured}) - measured))


def run_tuning(tuning: Tuning, progress: Callable[[int, int], None]) -> Tuned:
    """Run it. Raises HostError on a machine without an AMD GPU."""
    _require(_GPU_DEVICE)
    provenance = RowProvenance(
        host=socket.gethostname(),
        image=read_digest(tuning.image),
        aiter_commit=tuning.aiter_commit,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return tune(
        tuning.job, run=in_container(tuning.container), store=tuning.store, provenance=provenance, progress=progress
    )


def prepare_triton_tuning(
    plan: Plan, home: Home, *, tokens: Sequence[int], full_search: bool, hours: float
) -> TritonJob:
    """The tuning of what one rank of a CUDA server looks up; `tokens`, by default the tuner's own.

    Raises UsageError without the checkpoint's config.json, which says what is tuned; BuildError.
    """
    model = checkpoint_directory(plan.model, home)
    if not (model / CONFIG).is_file():
        raise UsageError(
            f"`{plan.model.name}` is not at `{model}`: its config.json says what is to be tuned",
            hint="`deploy stage PROFILE` fetches it; a generated one is made by `deploy up PROFILE`",
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
        every=full_search,
        hours=hours,
    )


def run_triton_tuning(job: TritonJob, home: Home, progress: Callable[[int, int], None]) -> TritonTuned:
    """Run it. Raises HostError on a machine without an NVIDIA GPU, KernelsError where the tuner cannot be had."""
    _require(_NVIDIA_DEVICE)
    files = {pin.name: upstream_file(pin, home.kernels / "upstream").read_bytes() for pin in read_tuner_pins()}
    return tune_triton(job, files, progress=progress)


def _require(device: Path) -> None:
    if not device.exists():
        raise HostError(
            f"there is no `{device}` here: a tuner measures on the GPU that its result is for",
            hint="run this on the server's own host; `--dry-run` shows the command anywhere",
        )
