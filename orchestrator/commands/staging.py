"""Checkpoints from the hub: fetched with progress, by `deploy stage` and by an `up` that finds none."""

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.console import Progress
from orchestrator.core.errors import NoWeightsError, WeightsError
from orchestrator.core.secret import HUB_TOKEN, Secret
from orchestrator.plan import Plan
from orchestrator.weights import (
    DownloadProgress,
    Hub,
    Verified,
    needs_mtp,
    read_receipt,
    stage_checkpoint,
    verify_checkpoint,
)


def stage(plan: Plan, directory: Path, environ: Mapping[str, str] = os.environ) -> Verified:
    """Fetch what is missing of the plan's checkpoint into `directory` and verify it. Raises as `stage_checkpoint`."""
    token = environ.get(HUB_TOKEN)
    hub = Hub(endpoint=environ.get("HF_ENDPOINT"), token=Secret(token) if token else None)
    progress = Progress()
    try:
        return stage_checkpoint(
            plan.model,
            directory,
            speculative=needs_mtp(plan),
            hub=hub,
            progress=lambda arrived: _show(progress, arrived),
        )
    finally:
        progress.done()


def stage_missing(plan: Plan, directory: Path, *, allowed: bool) -> Verified:
    """The plan's checkpoint, verified; one of the hub that is not here, or not all of it, is staged where `allowed`.

    One that was whole once and has changed since is not fetched over. Raises WeightsError, HostError.
    """
    try:
        return verify_checkpoint(directory, plan.model, speculative=needs_mtp(plan))
    except WeightsError as error:
        changed = read_receipt(directory) is not None and not isinstance(error, NoWeightsError)
        if plan.model.source.kind != "hub" or changed or not allowed:
            raise
    return stage(plan, directory)


def _show(progress: Progress, arrived: DownloadProgress) -> None:
    share = arrived.done / arrived.total if arrived.total else 1.0
    text = f"{share:4.0%} of {arrived.total / 1e9:.1f} GB"
    left = f", {arrived.eta / 60:.0f} min to go" if arrived.eta is not None else ""
    progress.update(text, transient=f"{arrived.rate / 1e6:.0f} MB/s{left}")
