"""Test when `up` downloads a checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_samples import write_checkpoint

from orchestrator.checkpoints import staging
from orchestrator.checkpoints.verify import VerifiedCheckpoint
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load

PLAN = load("mi355x-tp8").plan


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    directories: list[Path] = []

    def stage(_: Plan, directory: Path) -> VerifiedCheckpoint:
        directories.append(directory)
        return VerifiedCheckpoint(
            directory=directory,
            revision=None,
            files=0,
            size=0,
            shards=0,
            tensors=0,
            from_receipt=False,
            mismatches=(),
        )

    monkeypatch.setattr(staging, "download", stage)
    return directories


def write_incomplete(directory: Path) -> None:
    write_checkpoint(directory, mtp_layer=78)
    (directory / "model-00001-of-00003.safetensors").unlink()


@pytest.mark.parametrize("prepare", [lambda _: None, write_incomplete], ids=["missing", "incomplete"])
def test_incomplete_checkpoint_is_downloaded(
    prepare: Callable[[Path], None], downloads: list[Path], tmp_path: Path
) -> None:
    prepare(tmp_path / "glm")
    staging.ensure_staged(PLAN, tmp_path / "glm", allowed=True)
    assert downloads == [tmp_path / "glm"]


def test_download_can_be_disabled(downloads: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        staging.ensure_staged(PLAN, tmp_path / "glm", allowed=False)
    assert downloads == []


def test_complete_checkpoint_is_verified_and_modified_one_is_rejected(downloads: list[Path], tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "glm", mtp_layer=78)
    assert staging.ensure_staged(PLAN, directory, allowed=True).shards == 3
    (directory / "model-00001-of-00003.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError):
        staging.ensure_staged(PLAN, directory, allowed=True)
    assert downloads == []


def test_local_checkpoint_is_never_downloaded(downloads: list[Path], tmp_path: Path) -> None:
    plan = replace(PLAN, model=replace(PLAN.model, checkpoint=replace(PLAN.model.checkpoint, source="local")))
    with pytest.raises(CheckpointNotFoundError):
        staging.ensure_staged(plan, tmp_path / "glm", allowed=True)
    assert downloads == []
