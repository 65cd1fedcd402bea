"""Test the validation of untrusted values where each is read: index, receipt, lockfile, archive, diff."""

import json
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apply_patches
import pytest
from checkpoint_samples import write_checkpoint
from hostile_values import COMMITS, NAMES, SIZES
from pydantic import ValidationError

from orchestrator.checkpoints.checkpoint import Checkpoint, parse_index
from orchestrator.checkpoints.receipt import read_receipt, receipt_path
from orchestrator.checkpoints.verify import verify_checkpoint
from orchestrator.core.errors import BuildError, CheckpointError
from orchestrator.core.files import unpack, write_sparse
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import UnsafeValueError
from orchestrator.hosts.venvs.venv import engine_python
from orchestrator.plan.lock import _lock
from orchestrator.planner.planning import load
from orchestrator.profiles.schema import CheckpointSection, EngineSection

TEXTS = tuple(name for name in NAMES if isinstance(name, str) and "\ud800" not in name and "\udcff" not in name)
UNRESERVED_NAMES = tuple(
    name for name in TEXTS if not {part.lower() for part in name.split("/")} & {".parts", ".git", ".cache"}
)


WORDS = tuple(commit for commit in COMMITS if isinstance(commit, str) and commit.split() == [commit])


RECEIPT: dict[str, Any] = {
    "location": "glm",
    "revision": None,
    "mtp_layer": None,
    "shards": 3,
    "tensors": 3,
    "mismatches": [],
    "allow_mismatch": False,
    "files": {"config.json": [1, 1]},
}


def short(value: object) -> str:
    return ascii(value)[:30]


def test_index_with_unsafe_file_names_is_rejected() -> None:
    for name in NAMES:
        content = json.dumps({"weight_map": {"model.layers.0.mlp.experts.0.gate_proj.weight": name}}).encode()
        index = parse_index(content, single=False, location="glm")
        [problem] = index.problems
        assert (bool(index.shards), "names a file outside the checkpoint" in problem.message) == (False, True), short(
            name
        )


def test_index_cannot_point_outside_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 1}')
    for name in NAMES:
        index = {"weight_map": {"model.layers.1.x": name}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(CheckpointError, match="incomplete or modified") as caught:
            _ = Checkpoint.local(tmp_path).shards
        assert "names a file outside" in caught.value.problems[0].message, short(name)


@pytest.mark.parametrize("key", ["files", "revision", "size", "time"])
def test_receipt_with_hostile_value_is_ignored(key: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "glm")
    values: dict[str, tuple[object, ...]] = {"files": TEXTS, "revision": COMMITS, "size": SIZES, "time": SIZES}
    path = receipt_path(directory)
    path.write_text(json.dumps(RECEIPT))
    assert read_receipt(directory) is not None
    for value in values[key]:
        if key == "revision" and value is None:
            continue
        fields = {"files": {str(value): [1, 1]}, "size": {"x": [value, 1]}, "time": {"x": [1, value]}}.get(key, value)
        path.write_text(json.dumps(RECEIPT | {"revision" if key == "revision" else "files": fields}))
        assert read_receipt(directory) is None, value


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("files", [[], 5, None, "x", [["x", 1]], {"x": 5}, {"x": [1]}, {"x": [1, 1, 1]}]),
        ("location", [5, None, ["glm"]]),
        ("mtp_layer", ["78", 1.5, True, []]),
        ("shards", ["3", None, 1.5, [], True]),
        ("tensors", ["3", None, {}]),
        ("mismatches", [5, {}, "x", [5], [[]], [{}], [{"message": 5}], [{"message": "x", "sglang": 5}]]),
        ("allow_mismatch", ["false", 1, None, []]),
    ],
)
def test_receipt_of_wrong_shape_is_ignored(key: str, values: list[object], tmp_path: Path) -> None:
    """An invalid receipt once caused an internal error, and any text as `allow_mismatch` counted as consent."""
    directory = write_checkpoint(tmp_path / "glm")
    path = receipt_path(directory)
    for value in values:
        path.write_text(json.dumps(RECEIPT | {key: value}))
        assert read_receipt(directory) is None, value
    for text in ("", "null", "[]", "5", "{", "[" * 100_000, json.dumps({**RECEIPT, "files": None})):
        path.write_text(text)
        assert read_receipt(directory) is None, text[:20]


def test_lockfile_with_unsafe_file_names_is_rejected() -> None:
    texts: dict[str, object] = {key: {} for key in ("checkpoint", "patches", "files", "unknown", "plan")}
    valid = {**texts, "tool": "1", "profile": "x", "overrides": [], "files": {"tiny_model.py": "0" * 64}}
    assert _lock(valid).files
    for name in filter(None, TEXTS):
        with pytest.raises(ValueError, match=r"invalid file name|valid string"):
            _lock(valid | {"files": {name: "0" * 64}})


def test_profile_with_unsafe_file_names_is_rejected() -> None:
    valid = {"version": "0.5.14", "platform": "cpu", "dockerfile": "sglang", "requirements": "sglang.txt"}
    assert EngineSection.model_validate(valid)
    for name in filter(None, TEXTS):
        with pytest.raises(ValidationError):
            CheckpointSection(source="generated", path=name)
        for key in ("dockerfile", "requirements"):
            with pytest.raises(ValidationError):
                EngineSection.model_validate(valid | {key: name})


@pytest.mark.parametrize("name", ["requirements.txt", "../requirements.txt", "{here}/requirements.txt"])
def test_modified_plan_cannot_reference_requirements_outside_images(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages in a requirement file are installed and run."""
    (tmp_path / "below").mkdir()
    for folder in (tmp_path, tmp_path / "below"):
        (folder / "requirements.txt").write_text("evil==1\n")
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.setattr("orchestrator.hosts.venvs.venv.ensure_venv", lambda *_, **__: pytest.fail("must not be built"))
    engine = replace(load("cpu-tiny").plan.engine, python=None, requirements=name.format(here=tmp_path))
    with pytest.raises(BuildError, match="no requirement file"):
        engine_python(engine, Home(tmp_path / "home"))


def test_diff_cannot_modify_files_outside_source_tree(tmp_path: Path) -> None:
    """A path that does not exist below the sources was once resolved by its last part alone."""
    root = tmp_path / "sources"
    root.mkdir()
    for path in (tmp_path / "x", root / "x", tmp_path / "b"):
        path.write_text("old\n")
    for name in UNRESERVED_NAMES:
        if "\n" not in name and "\r" not in name:
            (root / "x").write_text("old\n")
            diff = f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-old\n+new\n"
            with suppress(apply_patches.SourceError, OSError):
                apply_patches.apply_diff(root, diff)
            assert [(tmp_path / item).read_text() for item in ("x", "b")] == ["old\n", "old\n"], short(name)


@pytest.mark.parametrize("name", ["../../x", "../x", "a/../x", "./x", "/x", "a//x"])
def test_diff_with_outside_path_is_rejected(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old\n")
    with pytest.raises(apply_patches.SourceError, match=", not a path below the sources"):
        apply_patches.apply_diff(tmp_path, f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-old\n+new\n")
    assert (tmp_path / "x").read_text() == "old\n"


def test_archive_cannot_extract_outside_its_directory(tmp_path: Path) -> None:
    wheel, folder = tmp_path / "x.whl", tmp_path / "folder"
    folder.mkdir()
    for name in filter(None, UNRESERVED_NAMES):
        if "\x00" not in name and not name.endswith("/"):
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(zipfile.ZipInfo(name[:60_000]), "content")
            with zipfile.ZipFile(wheel) as archive, pytest.raises(UnsafeValueError):
                unpack(archive, archive.namelist(), folder)
            assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "x.whl"], short(name)


def test_staged_file_is_never_written_through_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(FileExistsError):
        write_sparse(tmp_path / "link", b"x", size=1, time_ns=0)
    assert outside.read_text() == "kept"


def test_checkpoint_with_directory_link_outside_is_rejected(tmp_path: Path) -> None:
    from plan_samples import model

    directory, outside = write_checkpoint(tmp_path / "glm"), tmp_path / "outside"
    outside.mkdir()
    shard = directory / "model-00001-of-00003.safetensors"
    shard.rename(outside / shard.name)
    (directory / "away").symlink_to(outside)
    index = directory / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(shard.name, f"away/{shard.name}"))
    with pytest.raises(CheckpointError) as error:
        verify_checkpoint(directory, model(str(directory)), speculative=False)
    assert any("a link leads out of" in problem.message for problem in error.value.problems)
