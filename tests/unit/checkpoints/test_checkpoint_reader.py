"""Test that the checkpoint reader reads each file lazily and once."""

from collections import Counter
from pathlib import Path

import pytest
from quark_samples import Tiny, write_tiny

from orchestrator.checkpoints.checkpoint import INDEX, SINGLE, Checkpoint, local_checkpoint
from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.files import LocalFiles
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError
from orchestrator.core.safe_paths import CheckpointFile


class CountingFiles(LocalFiles):
    """A directory that counts how often each file is read from the start."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reads: Counter[str] = Counter()

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        self.reads[name] += begin == 0
        return super().read(name, begin, length)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny", Tiny().config(), Tiny().header())


def test_files_are_read_lazily_and_once(folder: Path) -> None:
    files = CountingFiles(folder)
    checkpoint = Checkpoint(files)
    assert not files.reads
    for _ in range(2):
        assert checkpoint.config.count("layers") is not None
        assert files.reads == {CONFIG: 1}
    for _ in range(2):
        assert sum(len(checkpoint.header(shard)) for shard in checkpoint.shards) == len(Tiny().header())
    assert files.reads == dict.fromkeys((CONFIG, INDEX, *checkpoint.shards), 1)


def test_shard_in_subdirectory_must_not_link_outside_checkpoint(folder: Path, tmp_path: Path) -> None:
    (folder / "inner").mkdir()
    (folder / SINGLE).rename(folder / "inner/one.safetensors")
    (tmp_path / "elsewhere").mkdir()
    (folder / "outer").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/one.safetensors").write_bytes((folder / "inner/one.safetensors").read_bytes())
    checkpoint = Checkpoint.local(folder)
    assert checkpoint.header(CheckpointFile("inner/one.safetensors"))
    with pytest.raises(CheckpointError, match="a link leads out of"):
        checkpoint.header(CheckpointFile("outer/one.safetensors"))


def test_missing_file_is_reported_on_access(folder: Path, tmp_path: Path) -> None:
    assert local_checkpoint(tmp_path) is None
    with pytest.raises(CheckpointNotFoundError):
        Checkpoint.local(tmp_path / "nowhere")
    (folder / CONFIG).unlink()
    (folder / SINGLE).unlink()
    (folder / SINGLE).symlink_to("nothing")
    (folder / INDEX).write_text("{")
    checkpoint = Checkpoint.local(folder)
    with pytest.raises(CheckpointError, match=r"no `config\.json`"):
        _ = checkpoint.config
    with pytest.raises(CheckpointError, match="incomplete or modified"):
        _ = checkpoint.shards
    with pytest.raises(CheckpointError, match=r"`model\.safetensors` is missing"):
        checkpoint.header(SINGLE)


def test_dtypes_are_readable_from_truncated_shard(folder: Path) -> None:
    with (folder / SINGLE).open("r+b") as file:
        file.truncate((folder / SINGLE).stat().st_size - 1)
    checkpoint = Checkpoint.local(folder)
    assert "BF16" in checkpoint.dtypes(SINGLE).values()
    with pytest.raises(CheckpointError, match="is truncated"):
        checkpoint.header(SINGLE)
