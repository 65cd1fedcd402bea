"""Test the archive of compiled kernels: which files it contains, and which archives are rejected."""

import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.errors import KernelsError
from orchestrator.core.safe_paths import RelativePath
from orchestrator.engine.kernel_caches import FOLDERS, is_kernel_file, kernel_folders
from orchestrator.kernels.disk import archive as archive_module
from orchestrator.kernels.disk import kernel_folders as kernel_folders_module
from orchestrator.kernels.disk.archive import KernelFile, KernelUse, read_archive, write_archive
from orchestrator.kernels.disk.kernel_folders import KernelFolders
from orchestrator.kernels.disk.ninja_times import stamped

USE = KernelUse(arch="sm90", driver="580.159", engine={"sglang": "0.5.16", "torch": "2.11.0"}, plan="a" * 64)


def kernel(path: str, content: bytes = b"code", *, executable: bool = False) -> KernelFile:
    return KernelFile(path=RelativePath(path), content=content, executable=executable)


def folders(home: Path) -> KernelFolders:
    return KernelFolders({folder_.name: (folder_, home / folder_.default.lstrip("/")) for folder_ in FOLDERS}, dict)


def put(home: Path, path: str, content: bytes = b"code") -> Path:
    file = home / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_kernel_directories_follow_server_environment() -> None:
    env = {"SGLANG_CACHE_DIR": "/fast/sglang", "FLASHINFER_WORKSPACE_BASE": "/fast"}
    paths = {
        folder.name: path for folder, path in kernel_folders(env, home="/home/u", user="u", aiter_dir="/src/aiter")
    }
    assert paths["sglang"] == "/fast/sglang"
    assert paths["flashinfer"] == "/fast/.cache/flashinfer"
    assert paths["triton"] == "/home/u/.triton/cache"
    assert paths["aiter"] == "/src/aiter/aiter/jit"
    assert paths["inductor"] == "/tmp/torchinductor_u"


@pytest.mark.parametrize(
    ("folder", "path", "archived"),
    [
        ("triton", "K/kernel.cubin", True),
        ("triton", "K/tmp.pid_1/kernel.cubin", False),
        ("flashinfer", "0.6/90a/cached_ops/sampling/sampling.so", True),
        ("flashinfer", "0.6/90a/cached_ops/sampling.lock", False),
        ("sglang", "triton/K/kernel.cubin", True),
        ("sglang", "ple/model/table.bin", False),
        ("sglang", "gpu_p2p_access_cache_for_0,1.json", False),
        ("aiter", "module_norm.so", True),
        ("aiter", "flydsl_cache/k.pkl", True),
        ("aiter", "core.py", False),
        ("aiter", "build/module_norm/build/norm.so", False),
    ],
)
def test_only_finished_kernels_are_archived(folder: str, path: str, archived: bool) -> None:
    assert is_kernel_file(next(folder_ for folder_ in FOLDERS if folder_.name == folder), path) is archived


def test_archive_populates_empty_host(tmp_path: Path) -> None:
    source, target, path = tmp_path / "source", tmp_path / "target", tmp_path / "kernels.tar.gz"
    put(source, ".triton/cache/K/kernel.cubin").chmod(0o755)
    put(source, ".cache/flashinfer/0.6/op/op.so")
    (source / ".triton/cache/link").symlink_to("/etc/passwd")
    assert write_archive(path, USE, [], folders(source).files()) == 2
    archive = read_archive(path)
    assert list(archive.receipt.problems(USE)) == []
    assert folders(target).lack(archive)
    assert folders(target).add(archive) == 2
    assert not folders(target).lack(archive)
    file = target / ".triton/cache/K/kernel.cubin"
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"code", 0o700)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert folders(target).add(archive) == 0
    assert [item.name for item in (target / ".triton").iterdir()] == ["cache"]  # no temporary file remains


def test_unpacking_keeps_existing_kernels(tmp_path: Path) -> None:
    path = tmp_path / "kernels.tar.gz"
    write_archive(path, USE, [], [kernel("triton/K/a.cubin", b"new"), kernel("triton/L/b.cubin", b"new")])
    existing = put(tmp_path, ".triton/cache/K/a.cubin", b"own")
    assert folders(tmp_path).add(read_archive(path)) == 1
    assert existing.read_bytes() == b"own"
    assert (tmp_path / ".triton/cache/L/b.cubin").read_bytes() == b"new"


def test_equal_kernels_yield_identical_archives(tmp_path: Path) -> None:
    one, two = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
    for path in (one, two):
        write_archive(path, USE, ["b" * 64], [kernel("triton/K/a.cubin")])
    assert read_archive(one).digest == read_archive(two).digest
    assert read_archive(one).receipt.plans == ("a" * 64, "b" * 64)


def test_no_archive_is_written_without_kernels(tmp_path: Path) -> None:
    assert write_archive(tmp_path / "kernels.tar.gz", USE, [], []) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(USE, arch="gfx950"), "`arch`: compiled for `sm90`, this start has `gfx950`"),
        (replace(USE, driver="575.1"), "`driver`: compiled for `580.159`, this start has `575.1`"),
        (
            replace(USE, engine={"sglang": "0.5.16", "torch": "2.12.0"}),
            "`engine.torch`: compiled for `2.11.0`, this start has `2.12.0`",
        ),
        (replace(USE, engine={"image": "x"}), "`engine.image`: compiled for `none`, this start has `x`"),
        (replace(USE, plan="c" * 64), "`plan`: compiled for `aaaaaaaaaaaa`, this start has `cccccccccccc`"),
    ],
)
def test_receipt_mismatch_names_each_field(tmp_path: Path, other: KernelUse, message: str) -> None:
    path = tmp_path / "kernels.tar.gz"
    write_archive(path, USE, [], [kernel("triton/K/a.cubin")])
    assert any(problem.message.startswith(message) for problem in read_archive(path).receipt.problems(other))
    assert (other.key == USE.key) is (other.plan != USE.plan)


def write_unsafe_archive(path: Path, change: Callable[[tarfile.TarInfo], None]) -> None:
    """Write an archive with one entry that `write_archive` would never write."""
    write_archive(path, USE, [], [kernel("triton/K/a.cubin")])
    content = io.BytesIO()
    with tarfile.open(path) as source, tarfile.open(fileobj=content, mode="w:gz") as target:
        for entry in source:
            target.addfile(entry, source.extractfile(entry))
        bad = tarfile.TarInfo("triton/K/bad")
        change(bad)
        target.addfile(bad, io.BytesIO(b""))
    path.write_bytes(content.getvalue())


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: setattr(entry, "name", "triton/../../outside"),
        lambda entry: setattr(entry, "name", "/etc/cron.d/outside"),
        lambda entry: setattr(entry, "name", "triton/K/a.cubin"),
        lambda entry: setattr(entry, "name", "no-folder"),
        lambda entry: (setattr(entry, "type", tarfile.SYMTYPE), setattr(entry, "linkname", "/etc")),
        lambda entry: (setattr(entry, "type", tarfile.LNKTYPE), setattr(entry, "linkname", "triton/K/a.cubin")),
        lambda entry: setattr(entry, "type", tarfile.FIFOTYPE),
        lambda entry: setattr(entry, "type", tarfile.DIRTYPE),
    ],
)
def test_archive_with_unsafe_entries_is_rejected(tmp_path: Path, change: Callable[[tarfile.TarInfo], None]) -> None:
    path = tmp_path / "kernels.tar.gz"
    write_unsafe_archive(path, change)
    with pytest.raises(KernelsError, match="not an archive of compiled kernels"):
        read_archive(path)


def test_oversized_archive_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "_MAX_UNPACKED", 7)
    with pytest.raises(KernelsError, match="of kernels"):
        write_archive(tmp_path / "k.tar.gz", USE, [], [kernel("triton/K/a.cubin"), kernel("triton/K/b.cubin")])
    assert list(tmp_path.iterdir()) == []


def test_user_without_name_has_kernel_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as any user id, without a name or a home directory."""

    def fail() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(kernel_folders_module, "getuser", fail)
    monkeypatch.delenv("HOME", raising=False)
    kernel_dirs = KernelFolders.of({}, dict, aiter_dir=None)
    assert str(kernel_dirs.folders["inductor"][1]).endswith(f"torchinductor_{os.geteuid()}")


@pytest.mark.parametrize("content", [b"", b"not gzip", b"\x1f\x8b\x08\x00cut"])
def test_corrupt_archive_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kernels.tar.gz"
    path.write_bytes(content)
    with pytest.raises(KernelsError, match="not an archive of compiled kernels"):
        read_archive(path)


def test_archive_modified_after_verification_is_rejected(tmp_path: Path) -> None:
    path, home = tmp_path / "kernels.tar.gz", tmp_path / "home"
    write_archive(path, USE, [], [kernel("triton/K/a.cubin")])
    archive = read_archive(path)
    write_archive(path, USE, [], [kernel("triton/K/a.cubin", b"other code")])
    with pytest.raises(KernelsError, match="has changed"):
        folders(home).add(archive)
    assert not (home / ".triton/cache/K").exists()


def test_directory_of_another_user_gets_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernels.tar.gz"
    write_archive(path, USE, [], [kernel("triton/K/a.cubin")])
    (tmp_path / ".triton/cache").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert folders(tmp_path).add(read_archive(path)) == 0


def test_ninja_files_of_other_versions_are_unchanged() -> None:
    assert stamped(".ninja_deps", b"# ninjadeps\n\x03\x00\x00\x00rest", 7) == b"# ninjadeps\n\x03\x00\x00\x00rest"
    assert (
        stamped(".ninja_log", b"# ninja log v5\n1\t2\t3\top.so\tabc\n", 7) == b"# ninja log v5\n1\t2\t7\top.so\tabc\n"
    )
    assert stamped("op.so", b"1\t2\t3\top.so\tabc\n", 7) == b"1\t2\t3\top.so\tabc\n"
