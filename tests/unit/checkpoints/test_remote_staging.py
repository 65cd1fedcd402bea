"""Test how the output of a remote staging program is read: complete, invalid or missing."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_samples import write_checkpoint
from plan_samples import model

from orchestrator.checkpoints.hub import Hub
from orchestrator.checkpoints.remote_download import RemoteDownload
from orchestrator.checkpoints.remote_fetch import _file_records
from orchestrator.checkpoints.verify import VerifiedCheckpoint, VerifyOptions
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError, HostError

HOST = "ssh://node"


class FakeProgram:
    """A remote program that prints these lines and exits with this code."""

    def __init__(self, *lines: object, code: int = 0) -> None:
        self.output, self.code, self.fed = lines, code, list[str]()

    def feed(self, text: str) -> None:
        self.fed.append(text)

    def lines(self) -> Iterator[str]:
        yield "Welcome to node"
        yield '"a banner"'
        yield from (json.dumps(line) for line in self.output)

    def wait(self) -> int:
        return self.code


def staged(program: FakeProgram, stderr: str = "") -> VerifiedCheckpoint:
    model_ = model("/share/glm")
    download = RemoteDownload(
        host=HOST,
        directory="/share/glm",
        model=model_,
        options=VerifyOptions(layer=3, revision=None, sizes={}),
        hub=Hub(endpoint=None, token=None),
        progress=lambda _: None,
    )
    return download.run(program, lambda: stderr)  # type: ignore[arg-type]


def end_record() -> dict[str, object]:
    return {"end": True, "directory": "/share/glm"}


def test_complete_checkpoint_is_verified_and_receipt_is_returned(tmp_path: Path) -> None:
    remote = write_checkpoint(tmp_path / "remote", size=5 * 10**9)
    program = FakeProgram(*_file_records(remote), end_record())
    verified = staged(program)
    assert (verified.shards, verified.directory) == (3, Path("/share/glm"))
    assert verified.size > 15 * 10**9
    receipt = json.loads(program.fed[1])
    assert receipt["files"] == {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in remote.iterdir()}


def test_truncated_remote_file_is_rejected(tmp_path: Path) -> None:
    remote = write_checkpoint(tmp_path / "remote")
    shard = remote / "model-00001-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(CheckpointError) as caught:
        staged(FakeProgram(*_file_records(remote), end_record()))
    assert caught.value.location == "ssh://node: /share/glm"
    assert [problem.location for problem in caught.value.problems] == [f"ssh://node: /share/glm/{shard.name}"]


@pytest.mark.parametrize(
    ("program", "stderr", "message", "hint"),
    [
        (FakeProgram(code=127), "no python3", "cannot stage on ssh://node", "`python3 --version` (3.8)"),
        (FakeProgram(code=255), "Permission denied", "cannot stage on ssh://node", "without a prompt"),
        (
            FakeProgram({"done": 5}, code=255),
            "Connection reset",
            "download failed: Connection reset",
            "run the same command again",
        ),
        (FakeProgram({"done": 5}, code=-9), "", "download failed: exit code -9", "run the same command again"),
        (FakeProgram({"error": "No space left", "full": True}), "", "the disk is full", "run the same command again"),
        (FakeProgram({"room": {"missing": 9 * 10**9, "free": 1}}), "", "9.0 GB needed, 1 B free", "--dir DIR"),
    ],
)
def test_failed_remote_staging_has_a_hint(program: FakeProgram, stderr: str, message: str, hint: str) -> None:
    with pytest.raises(HostError) as caught:
        staged(program, stderr)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_missing_remote_checkpoint_is_reported() -> None:
    with pytest.raises(CheckpointNotFoundError) as caught:
        staged(FakeProgram({"nothing": "/share/glm"}))
    assert caught.value.location == "ssh://node: /share/glm"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_unsafe_file_names_from_remote_host_are_rejected(name: str) -> None:
    file = {"file": name, "size": 1, "time": 0, "data": base64.b64encode(b"x").decode()}
    with pytest.raises(CheckpointError, match="from the remote host"):
        staged(FakeProgram(file, end_record()))
