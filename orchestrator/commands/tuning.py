"""`deploy kernels tune`: aiter's own tuner, for exactly the keys that no row answers."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.commands.coverage import RowSources, cover, plan_in_image, require_moe
from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.paths import Home
from orchestrator.kernels import Key, RowOrigin
from orchestrator.kernels.disk import (
    RowProvenance,
    Store,
    Tuned,
    TuningJob,
    WatchLimits,
    in_container,
    read_digest,
    read_pins,
    tune,
    tuner_command,
)
from orchestrator.plan import Plan

_GPU_DEVICE = Path("/dev/kfd")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A tuning that is about to start: with which command, in which image, and where its rows are kept."""

    store: Store
    job: TuningJob
    container: str
    image: str
    aiter_commit: str


def prepare_tuning(plan: Plan, given: RowSources, home: Home, *, hours: float, rekeyed: bool) -> Tuning:
    """The tuning of exactly the keys that no row answers, and with `rekeyed` also those that a re-keyed row does.

    Raises UsageError without an image to run in.
    """
    require_moe(plan)
    image = given.image or plan.engine.image
    if image is None or plan.engine.aiter_dir is None:
        raise UsageError(f"the engine of `{plan.profile}` has no image with aiter", hint="name one with `--image`")
    if given.image:
        _, plan = plan_in_image(plan, given.image)
    store = Store.of(home, plan)
    folder = store.tuning(plan)
    container = f"deploy-tune-{plan.profile}-{os.getpid()}"
    job = TuningJob(
        argv=tuner_command(plan, image=image, folder=folder, container=container),
        keys=_to_tune(plan, given, home, rekeyed=rekeyed),
        names=read_pins().names_of(plan.engine.aiter_commit),
        folder=folder,
        limits=WatchLimits(total=hours * 3600, shutdown=120, look=5, term=20),
    )
    return Tuning(
        store=store, job=job, container=container, image=image, aiter_commit=plan.engine.aiter_commit or "unknown"
    )


def _to_tune(plan: Plan, given: RowSources, home: Home, *, rekeyed: bool) -> tuple[Key, ...]:
    store = Store.of(home, plan)
    if given.tables or store.table(plan).is_file():  # the table holds the image's rows
        given = replace(given, image=None)
    found = cover(plan, given, home).found
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
    if not _GPU_DEVICE.exists():
        raise HostError(
            f"there is no `{_GPU_DEVICE}` here: aiter's tuner measures on the GPU the table is for",
            hint="run this on the server's own host; `--dry-run` shows the command and the keys anywhere",
        )
    provenance = RowProvenance(
        host=socket.gethostname(),
        image=read_digest(tuning.image),
        aiter_commit=tuning.aiter_commit,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return tune(
        tuning.job, run=in_container(tuning.container), store=tuning.store, provenance=provenance, progress=progress
    )
