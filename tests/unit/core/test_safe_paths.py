"""Test the types that validate untrusted values as paths, and what `join` and `remove_tree` reject."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hostile_values import COMMITS, CONTENTS, NAMES, SIZES

from orchestrator.core.safe_paths import (
    CheckpointFile,
    CommitHash,
    ContentHash,
    FileName,
    ImageReference,
    RelativePath,
    RepositoryId,
    UnsafeValueError,
    atomic_write_all,
    byte_count,
    join,
    move,
    open_to_append,
    remove_tree,
)

RESERVED = {".parts", ".git", ".cache"}
FORBIDDEN_REPOSITORIES = (
    *("", " ", "/", "a/", "/a", "a/b/c", "a//b", "../b", "a/..", ".", "..", "a/.", "-a/b", "a/-b", "a/b-", "a/b."),
    *("https://huggingface.co/amd/GLM", "http://x/y", "hf.co/amd/GLM", "huggingface.co/amd/GLM/tree/main", "amd/GLM "),
    *(
        " amd/GLM",
        "amd /GLM",
        "amd/GL M",
        "amd/GLM\n",
        "amd/GLM\x00",
        "amd/GLM@main",
        "amd/GLM:main",
        "amd/GLM?x",
        "amd/GLM#x",
    ),
    *(
        "amd\\GLM",
        "amd/GLM.git",
        "a--b/c",
        "a/b--c",
        "a..b/c",
        "amd/GLM/",
        "~/glm",
        "$HOME/x",
        "a/" + "b" * 97,
        None,
        5,
        [],
        {},
    ),
    *(
        "/models/glm",
        "./glm",
        "../glm",
        "hf://amd/GLM",
        "git@hf.co:amd/GLM",
        "amd/GLM\x1b[2J",
        "amd/é",
        "amd/GLM\u202e",
    ),
    *(
        "file:///x",
        "amd%2fGLM",
        "a/b?revision=x",
        "'a/b'",
        '"a/b"',
        "a/b;id",
        "$(id)/x",
        "a/b|c",
        "a/*",
        "[a]/b",
        "{}/b",
        "a,b",
    ),
)


def rejection(kind: Callable[[object], object], value: object) -> str:
    """Return the message if a value is rejected, else an empty string."""
    try:
        kind(value)
    except UnsafeValueError as error:
        return str(error)
    return ""


def accepted(kind: Callable[[object], object], values: Iterable[object]) -> list[str]:
    """Return the values that are not rejected with a short one-line message."""
    rejections = {ascii(value)[:200]: rejection(kind, value) for value in values}
    return [
        value for value, reason in rejections.items() if not (reason and reason.isprintable() and len(reason) < 250)
    ]


def test_hostile_names_are_rejected_as_paths() -> None:
    assert accepted(CheckpointFile, NAMES) == []
    names = [name for name in NAMES if not (isinstance(name, str) and {*name.lower().split("/")} & RESERVED)]
    assert accepted(RelativePath, names) == accepted(FileName, names) == []


def test_hostile_hashes_are_rejected() -> None:
    assert accepted(CommitHash, COMMITS) == accepted(ContentHash, CONTENTS) == []


def test_hostile_sizes_are_rejected() -> None:
    assert accepted(byte_count, SIZES) == []


def test_invalid_repository_error_shows_expected_form() -> None:
    for value in FORBIDDEN_REPOSITORIES:
        assert "write `org/name`" in rejection(RepositoryId, value), value


@pytest.mark.parametrize("value", ["amd/GLM-5.2-MXFP4", "gpt2", "a/b", "zai-org/GLM-4.5_x", "A1/_x", "a/" + "b" * 96])
def test_valid_repository_is_accepted(value: str) -> None:
    assert RepositoryId(value) == value


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        ".gitattributes",
        "a/b/c.safetensors",
        "README.md",
        "x y.txt",
        "größe.txt",
        "..x",
        "x..",
        "a/...",
        "中/文.json",
    ],
)
def test_valid_checkpoint_file_is_accepted(name: str, tmp_path: Path) -> None:
    assert join(tmp_path, CheckpointFile(name)) == tmp_path / name


def test_join_rejects_links_outside_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "inner").mkdir(parents=True)
    outside.mkdir()
    (root / "away").symlink_to(outside)
    (root / "up").symlink_to("..")
    (root / "beside").symlink_to(tmp_path / "root-2")
    (root / "own").symlink_to("inner")
    (root / "inner/deep").symlink_to(outside)
    (root / "loop").symlink_to("loop")
    for name in ("away/x", "up/x", "beside/x", "inner/deep/x", "up/root/../x"):
        with pytest.raises(UnsafeValueError):
            join(root, RelativePath(name))
    assert join(root, RelativePath("own/x")) == root / "own/x"
    assert join(root, RelativePath("away")) == root / "away", "the file itself may be a link"
    linked = tmp_path / "linked"
    linked.symlink_to(root)
    assert join(linked, RelativePath("inner/x")) == linked / "inner/x"


def test_remove_tree_works_only_inside_its_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "inner/deep", outside / "deep", tmp_path / "root-2"):
        folder.mkdir(parents=True)
        (folder / "kept").write_text("x")
    (root / "away").symlink_to(outside)
    for path in (
        root,
        tmp_path,
        outside,
        tmp_path / "root-2",
        root / "..",
        root / "inner/../..",
        root / "away/deep",
        Path("/"),
    ):
        with pytest.raises(UnsafeValueError, match="cannot remove"):
            remove_tree(path, within=root)
    remove_tree(root / "away", within=root)  # a link is removed, not its target
    assert (outside / "deep/kept").read_text() == "x"
    remove_tree(root / "inner", within=root)
    remove_tree(root / "missing", within=root)
    assert sorted(path.name for path in root.iterdir()) == ["away"]


def test_append_does_not_follow_links(tmp_path: Path) -> None:
    outside, link = tmp_path / "outside", tmp_path / "link"
    outside.write_text("x")
    link.symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        open_to_append(link)
    new = tmp_path / "new"
    new.write_text("y")
    move(new, link)
    assert (outside.read_text(), link.read_text(), link.is_symlink()) == ("x", "y", False)


@pytest.mark.parametrize(
    ("text", "host", "path"),
    [
        ("tiny", None, "tiny"),
        ("lmsysorg/sglang-rocm:v0.5.16-rocm720-mi35x-20260728", None, "lmsysorg/sglang-rocm"),
        ("localhost/x", "localhost", "x"),
        ("127.0.0.1:5000/a/b__c--d:1", "127.0.0.1:5000", "a/b__c--d"),
        ("[::1]:5000/x", "[::1]:5000", "x"),
        ("Registry/x", "Registry", "x"),
        (f"ghcr.io/a/b@sha256:{'0' * 64}", "ghcr.io", "a/b"),
        (f"sha256:{'0' * 64}", None, "sha256"),  # an image ID, which docker accepts too
    ],
)
def test_image_reference_is_parsed_like_docker(text: str, host: str | None, path: str) -> None:
    parts = ImageReference(text).parts
    assert (parts["host"], parts["path"]) == (host, path)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "UPPER/Repo:tag",
            "a/../b",
            "../a",
            "/a",
            "a/",
            "a//b",
            "a b",
            "",
            ":tag",
            "a:",
            "a:b:c",
            "a@b",
            "-a",
            "a_",
            "A",
        ),
        *("A", "a..b", "a/.b", "x:tag@", f"x:{'t' * 129}", "a" * 256, "x\n", "x@sha256:1", "host:x/y", "ü/x"),
    ],
)
def test_invalid_image_reference_is_rejected(text: str) -> None:
    with pytest.raises(UnsafeValueError, match="is not the name of an image"):
        ImageReference(text)


def test_file_set_is_written_atomically(tmp_path: Path) -> None:
    old, new, blocked = tmp_path / "old", tmp_path / "new", tmp_path / "file" / "inside"
    old.write_text("before")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="inside"):
        atomic_write_all([(old, "after", 0o644), (new, "new", 0o755), (blocked, "", 0o644)])
    assert old.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "old"]
    atomic_write_all([(old, "after", 0o644), (new, "new", 0o755)])
    assert (old.read_text(), new.read_text(), new.stat().st_mode & 0o777) == ("after", "new", 0o755)
