"""Staging of checkpoints with progress, for `deploy stage` and `deploy up`."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from orchestrator.checkpoints.download import DownloadProgress, stage_checkpoint
from orchestrator.checkpoints.hub import Hub
from orchestrator.checkpoints.receipt import read_receipt
from orchestrator.checkpoints.remote_download import RemoteDownload, remote_program
from orchestrator.checkpoints.verify import VerifiedCheckpoint, VerifyOptions, needs_mtp, verify_checkpoint
from orchestrator.core.console import Progress, warn
from orchestrator.core.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointModifiedError,
    CheckpointNotFoundError,
    UsageError,
)
from orchestrator.core.secrets import hub_token
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.core.text import gb
from orchestrator.hosts.ssh import ssh_start
from orchestrator.plan.plan import Plan


def download(plan: Plan, directory: Path, *, allow_mismatch: bool = False) -> VerifiedCheckpoint:
    """Download missing files of the plan's checkpoint into `directory` and verify it. Raises as `stage_checkpoint`.

    With `allow_mismatch`, accept tensors that do not match the config, until a file changes.
    """
    options = _verify_options(plan, allow_mismatch=allow_mismatch)
    with Progress() as line:
        verified = stage_checkpoint(plan.model, directory, options, hub=hub_of(os.environ), progress=_show_in(line))
    return _warn_mismatches(verified)


def _verify_options(plan: Plan, *, allow_mismatch: bool) -> VerifyOptions:
    layer = plan.model.mtp_layer if needs_mtp(plan) else None
    return VerifyOptions(
        layer=layer, revision=None, sizes={}, sglang=plan.engine.version, allow_mismatch=allow_mismatch
    )


def _warn_mismatches(verified: VerifiedCheckpoint) -> VerifiedCheckpoint:
    """Warn of mismatches between the tensors, the config and the profile."""
    for mismatch in verified.mismatches:
        warn(mismatch.message, hint=mismatch.hint)
    return verified


def stage_remote(
    plan: Plan, directory: str, host: str, *, allow_mismatch: bool = False, mirror: Path | None = None
) -> VerifiedCheckpoint:
    """Stage a checkpoint on a remote host, which needs only Python; `directory` may be relative to its home.

    `mirror` is a directory for its config and headers. Raises UsageError for a generated checkpoint, and the errors of
    `RemoteDownload.run`.
    """
    if plan.model.checkpoint.source == "generated":
        message = f"cannot stage `{plan.model.name}`: its checkpoint is generated on its host"
        raise UsageError(message, hint="`deploy up PROFILE` generates it")
    return _verify_remote(plan, directory, host, hub_of(os.environ), allow_mismatch=allow_mismatch, mirror=mirror)


def _verify_remote(
    plan: Plan, directory: str, host: str, hub: Hub | None, *, allow_mismatch: bool, mirror: Path | None
) -> VerifiedCheckpoint:
    """Verify a checkpoint on a remote host; with a `hub`, first download missing files."""
    if hub is not None:
        ignore_sigpipe()
    with Progress() as line, TemporaryFile() as stderr, ssh_start(host, remote_program(), stderr) as program:
        staging = RemoteDownload(
            host=host,
            directory=directory,
            model=plan.model,
            options=_verify_options(plan, allow_mismatch=allow_mismatch),
            hub=hub,
            progress=_show_in(line),
            mirror=mirror,
        )
        verified = staging.run(program, lambda: _read_text(stderr))
    return _warn_mismatches(verified)


def hub_of(environ: Mapping[str, str]) -> Hub:
    """Return the hub and the token from environment variables."""
    return Hub(endpoint=environ.get("HF_ENDPOINT"), token=hub_token(environ))


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def ensure_staged(plan: Plan, directory: Path, *, allowed: bool) -> VerifiedCheckpoint:
    """Verify the plan's checkpoint; if `allowed`, stage a missing or incomplete one from the hub.

    A modified checkpoint is not downloaded again. Raises CheckpointError, HostError.
    """
    try:
        return _warn_mismatches(
            verify_checkpoint(directory, plan.model, speculative=needs_mtp(plan), sglang=plan.engine.version)
        )
    except CheckpointMismatchError:
        raise
    except CheckpointError as error:
        modified = read_receipt(directory) is not None and not isinstance(error, CheckpointNotFoundError)
        if plan.model.checkpoint.source != "hub" or modified or not allowed:
            raise
    return download(plan, directory)


def ensure_staged_remote(
    plan: Plan, directory: str, host: str, *, allowed: bool, mirror: Path | None
) -> VerifiedCheckpoint:
    """Verify the plan's checkpoint on a remote host; if `allowed`, stage it. Raises as `stage_remote`."""
    try:
        return _verify_remote(plan, directory, host, None, allow_mismatch=False, mirror=mirror)
    except (CheckpointModifiedError, CheckpointMismatchError):
        raise
    except CheckpointError:
        if plan.model.checkpoint.source != "hub" or not allowed:
            raise
    return stage_remote(plan, directory, host, mirror=mirror)


def _show_in(line: Progress) -> Callable[[DownloadProgress], None]:
    """Return a function that shows the progress of a download."""

    def show(download: DownloadProgress) -> None:
        share = download.done / download.total if download.total else 1.0
        text = f"{share:4.0%} of {gb(download.total)}"
        eta = f", {download.eta / 60:.0f} min to go" if download.eta is not None else ""
        line.update(text, stage="download", transient=f"{download.rate / 1e6:.0f} MB/s{eta}")

    return show
