"""Test the verification of a checkpoint, which reports all problems together."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_samples import write_checkpoint, write_shard
from plan_samples import flag, model, plan_of

from orchestrator.checkpoints.receipt import read_receipt, receipt_path
from orchestrator.checkpoints.verify import needs_mtp, verify_checkpoint
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError

INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"


def problems_of(directory: Path, *, speculative: bool = True) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        verify_checkpoint(directory, model(str(directory)), speculative=speculative)
    return [problem.message for problem in caught.value.problems]


def test_complete_checkpoint_is_verified(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small")
    verified = verify_checkpoint(directory, model(str(directory)), speculative=True)
    assert (verified.shards, verified.tensors, verified.files, verified.from_receipt) == (3, 8, 7, False)


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small", shards=1)
    (directory / INDEX).unlink()
    (directory / "model-00001-of-00001.safetensors").rename(directory / "model.safetensors")
    assert verify_checkpoint(directory, model(str(directory)), speculative=True).shards == 1


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def overlap(path: Path) -> None:
    header = {"a": {"data_offsets": [0, 10]}, "b": {"data_offsets": [5, 15]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(15))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (SECOND, Path.unlink, f"`{SECOND}` is missing"),
        (SECOND, cut, "is truncated"),
        (SECOND, lambda path: os.truncate(path, 5), "has no safetensors header"),
        (SECOND, lambda path: os.truncate(path, 40), "is truncated inside its header"),
        (SECOND, lambda path: path.write_bytes(path.read_bytes() + b"x"), "is too long"),
        (SECOND, lambda path: path.write_bytes(b"\xff" * 2000), "has no safetensors header"),
        (SECOND, lambda path: path.write_bytes(b"\x10" + bytes(7) + b"{" * 16), "has a header that is not JSON"),
        (SECOND, lambda path: path.write_bytes(b"\x02" + bytes(7) + b"[]"), "not a JSON object"),
        (SECOND, overlap, "has a hole or an overlap at byte 10"),
        (SECOND, lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "is a git-lfs pointer"),
        (SECOND, lambda path: write_shard(path, {"other": 9}), "lacks 3 tensors of the index: `model.layers.0.mlp"),
        ("config.json", Path.unlink, "`config.json` is missing"),
        ("config.json", cut, "`config.json` is not JSON"),
        ("config.json", lambda path: path.write_text("[" * 10_000), "`config.json` is not JSON"),
        ("tokenizer.json", Path.unlink, "no tokenizer found"),
        ("tokenizer.json", cut, "`tokenizer.json` is not JSON"),
        (INDEX, Path.unlink, "no weights found"),
        (INDEX, cut, f"cannot read `{INDEX}`"),
        (INDEX, lambda path: path.write_text('{"weight_map": {}}'), "names no tensor"),
        (INDEX, lambda path: path.write_text('{"weight_map": {"a": "../a"}}'), "outside the checkpoint: `../a`"),
    ],
)
def test_each_kind_of_corruption_is_reported(
    tmp_path: Path, name: str, damage: Callable[[Path], object], message: str
) -> None:
    directory = write_checkpoint(tmp_path / "small")
    damage(directory / name)
    assert any(message in problem for problem in problems_of(directory)), problems_of(directory)


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small")
    for name in (SECOND, "config.json", "tokenizer.json"):
        (directory / name).unlink()
    assert len(problems_of(directory)) == 3


def test_metadata_alone_is_not_a_checkpoint(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small")
    for shard in directory.glob("*.safetensors"):
        shard.unlink()
    assert len(problems_of(directory)) == 3


def test_mtp_layer_is_required_for_speculative_decoding(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small", mtp_layer=None)
    assert problems_of(directory) == [
        "no tensor of the MTP layer (`model.layers.3.`) found, which speculative decoding needs"
    ]
    verify_checkpoint(directory, model(str(directory)), speculative=False)
    assert len(problems_of(directory)) == 1  # the receipt was written without the MTP check


def test_plan_needs_mtp_layer_only_for_mtp_drafting() -> None:
    assert needs_mtp(plan_of("mi355x-tp8"))
    assert not needs_mtp(plan_of("cpu-tiny"))
    plan = plan_of("mi355x-tp8")
    assert not needs_mtp(plan_of("mi355x-tp8", flags=(*plan.flags, flag("speculative-draft-model-path", "/draft"))))


def test_missing_or_removed_checkpoint_is_not_found(tmp_path: Path) -> None:
    directory = tmp_path / "small"
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of `small` found"):
        verify_checkpoint(directory, model(str(directory)), speculative=True)
    verify_checkpoint(write_checkpoint(directory), model(str(directory)), speculative=True)
    shutil.rmtree(directory)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of `small` found"):
        verify_checkpoint(directory, model(str(directory)), speculative=True)


def test_dangling_shard_link_is_a_read_error(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small")
    (directory / "lost.safetensors").symlink_to(tmp_path / "unmounted")
    with pytest.raises(CheckpointError, match="cannot read the checkpoint of `small`: No such file") as caught:
        verify_checkpoint(directory, model(str(directory)), speculative=True)
    assert not isinstance(caught.value, CheckpointNotFoundError)
    assert caught.value.location.endswith("lost.safetensors")


def test_checkpoint_on_read_only_share_is_reverified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "read-only file system")

    directory = write_checkpoint(tmp_path / "small")
    monkeypatch.setattr("orchestrator.checkpoints.receipt.write_cache", fail)
    for _ in range(2):
        assert not verify_checkpoint(directory, model(str(directory)), speculative=True).from_receipt


def test_receipt_skips_verification_until_files_change(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small")
    verify_checkpoint(directory, model(str(directory)), speculative=True)
    assert verify_checkpoint(directory, model(str(directory)), speculative=True).from_receipt
    os.utime(directory / SECOND, (1, 1))
    assert not verify_checkpoint(directory, model(str(directory)), speculative=True).from_receipt
    cut(directory / "tokenizer.json")
    assert problems_of(directory) == ["`tokenizer.json` has 17 bytes instead of 18"]
    write_shard(directory / SECOND, dict.fromkeys(["model.layers.0.mlp.weight"], 5))
    assert any(f"`{SECOND}` has" in problem for problem in problems_of(directory))


def test_receipt_is_stored_next_to_its_checkpoint(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small")
    verify_checkpoint(directory, model(str(directory)), speculative=True)
    assert receipt_path(directory) == tmp_path / "small.receipt.json"
    assert not any("receipt" in path.name for path in directory.iterdir())
    receipt = read_receipt(directory)
    assert receipt is not None
    assert not receipt.is_for(model("another/repository"))
    receipt_path(directory).write_text("{")
    assert read_receipt(directory) is None
    assert not verify_checkpoint(directory, model(str(directory)), speculative=True).from_receipt


@pytest.mark.slow
def test_large_checkpoints_are_verified_in_bounded_memory(tmp_path: Path) -> None:
    big = write_checkpoint(tmp_path / "big", shards=10, size=5 * 10**9, layers=20)
    small = write_checkpoint(tmp_path / "many", shards=400, size=100)
    tracemalloc.start()
    try:
        verified = verify_checkpoint(big, model(str(big)), speculative=True)
        assert verified.size > 50 * 10**9
        verify_checkpoint(small, model(str(small)), speculative=True)
        assert verify_checkpoint(small, model(str(small)), speculative=True).from_receipt
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
