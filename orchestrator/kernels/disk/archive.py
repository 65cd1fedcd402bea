"""Compiled kernels in one file: an archive of folders, with a receipt for the starts that they fit.

Compiled kernels are code that a server runs. `deploy` unpacks an archive only after checking its digest and receipt. An
archive contains only regular files, with paths inside their folders.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Final, Literal, Protocol

from orchestrator.core.errors import KernelsError, Problem
from orchestrator.core.files import move, open_new, remove_file
from orchestrator.core.safe_paths import FileName, RelativePath, UnsafeValueError, display
from orchestrator.core.validation import type_adapter
from orchestrator.kernels.disk.ninja_times import stamped

SUFFIX: Final = ".tar.gz"
_RECEIPT: Final = "receipt.json"
_MAX_RECEIPT: Final = 1 << 20  # bytes
_MAX_UNPACKED: Final = 16 << 30  # bytes; the kernels of a Qwen3-MoE on an H200 have 27 MB


@dataclass(frozen=True, kw_only=True)
class KernelFile:
    """A file of a kernel; its path begins with the name of a folder in `engine/kernel_caches.py`."""

    path: RelativePath
    content: bytes
    executable: bool


@dataclass(frozen=True, kw_only=True)
class KernelUse:
    """A start that needs compiled kernels: GPU, driver, build of the engine, and plan."""

    arch: str
    driver: str
    engine: Mapping[str, str]  # an image, or versions of packages and interpreter
    plan: str  # digest of model, layout and flags

    @property
    def key(self) -> str:
        """A digest of everything except the plan: one archive has the kernels of several plans."""
        text = json.dumps([self.arch, self.driver, dict(self.engine)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class KernelReceipt:
    """The GPU, driver and build of the engine that compiled an archive's kernels, and the plans of the servers."""

    format: Literal[1]
    arch: str
    driver: str
    engine: dict[str, str]
    plans: tuple[str, ...]

    def problems(self, use: KernelUse) -> Iterator[Problem]:
        """Yield a problem for each field that differs from the start's."""
        compiled, needed = {"arch": self.arch, "driver": self.driver}, {"arch": use.arch, "driver": use.driver}
        compiled |= {f"engine.{name}": value for name, value in self.engine.items()}
        needed |= {f"engine.{name}": value for name, value in use.engine.items()}
        for field in dict.fromkeys((*compiled, *needed)):
            if compiled.get(field) != needed.get(field):
                before, now = compiled.get(field, "none"), needed.get(field, "none")
                yield Problem(f"`{field}`: compiled for `{before}`, this start has `{now}`")
        if use.plan not in self.plans:
            plans = ", ".join(plan[:12] for plan in self.plans)
            yield Problem(f"`plan`: compiled for `{plans}`, this start has `{use.plan[:12]}` (model, layout, flags)")


class KernelStore(Protocol):
    """The folders of compiled kernels on a server's host."""

    def engine(self) -> Mapping[str, str]:
        """Return the build of the engine that compiles the kernels. Raises HostError if unknown."""

    def files(self) -> Iterator[KernelFile]:
        """Yield the kernels. Raises HostError."""

    def lack(self, archive: "KernelArchive") -> bool:
        """Return whether files of an archive are missing. Raises HostError."""

    def add(self, archive: "KernelArchive") -> int:
        """Unpack missing files; return the number of added files. Raises HostError, OSError."""


@dataclass(frozen=True, kw_only=True)
class KernelArchive:
    """An archive with valid paths and a valid receipt."""

    path: Path
    digest: str  # sha256:…
    receipt: KernelReceipt
    sizes: Mapping[RelativePath, int]  # bytes, by path

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(self.sizes.values())

    def files(self) -> Iterator[KernelFile]:
        """Yield the files. Raises KernelsError if the archive has changed since it was read."""
        with self.path.open("rb") as stream:
            if _digest(stream) != self.digest:
                raise KernelsError(f"`{self.path}` has changed while it was read", hint="repeat the command")
            for entry, content in _entries(stream):
                if entry.name != _RECEIPT:
                    yield KernelFile(
                        path=RelativePath(entry.name), content=content.read(), executable=bool(entry.mode & 0o100)
                    )


def write_archive(path: Path, use: KernelUse, plans: Iterable[str], files: Iterable[KernelFile]) -> int:
    """Write an archive atomically; return the number of its files. Without files, write no archive.

    Equal files give equal bytes. Raises OSError, and KernelsError above 16 GiB.
    """
    receipt = KernelReceipt(
        format=1, arch=use.arch, driver=use.driver, engine=dict(use.engine), plans=tuple(sorted({*plans, use.plan}))
    )
    fresh, count, total = path.parent / FileName(f".{path.name}.{os.getpid()}"), 0, 0
    try:
        with (
            open_new(fresh) as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for file in files:
                _add(tar, file.path, file.content, 0o700 if file.executable else 0o600)
                count, total = count + 1, total + len(file.content)
                if total > _MAX_UNPACKED:
                    raise KernelsError(f"more than {_MAX_UNPACKED >> 30} GiB of kernels")
            _add(tar, _RECEIPT, json.dumps(asdict(receipt), indent=2).encode(), 0o600)
        if count:
            move(fresh, path)
    finally:
        remove_file(fresh)
    return count


def read_archive(path: Path) -> KernelArchive:
    """Read an archive's digest, receipt and paths. Raises KernelsError if it is invalid."""
    try:
        with path.open("rb") as stream:
            digest, receipt, sizes = _digest(stream), b"", dict[RelativePath, int]()
            for entry, content in _entries(stream):
                if entry.name == _RECEIPT:
                    receipt = content.read(_MAX_RECEIPT)
                elif (name := RelativePath(entry.name)) in sizes or "/" not in name:
                    raise UnsafeValueError(f"`{display(entry.name)}` occurs twice, or is in no folder")
                else:
                    sizes[name] = entry.size
        parsed = type_adapter(KernelReceipt).validate_json(receipt)
        return KernelArchive(path=path, digest=digest, receipt=parsed, sizes=sizes)
    except (gzip.BadGzipFile, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        hint = "`deploy up PROFILE` writes one below `$DEPLOY_HOME` after a verified start"
        raise KernelsError(f"`{path}` is not an archive of compiled kernels", details=str(error), hint=hint) from error
    except OSError as error:
        raise KernelsError(f"cannot read `{path}`: {error.strerror}") from error


def _entries(stream: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield the entries of an archive. Raises UnsafeValueError if any is not a regular file, or above 16 GiB."""
    total = 0
    with gzip.GzipFile(fileobj=stream, mode="rb") as zipped, tarfile.open(fileobj=zipped, mode="r|") as tar:
        for entry in tar:
            total += entry.size
            content = tar.extractfile(entry) if entry.isreg() else None
            if content is None:
                raise UnsafeValueError(f"`{display(entry.name)}` is not a regular file")
            if total > _MAX_UNPACKED:
                raise UnsafeValueError(f"more than {_MAX_UNPACKED >> 30} GiB")
            yield entry, content


def write_tar(stream: IO[bytes], archive: KernelArchive, folders: Mapping[str, str], *, private: bool = True) -> int:
    """Write the kernels in `folders` (paths by name) as a tar for Docker; return the number of files.

    In an image, files are not `private`: another user may run the server.
    """
    now, count = int(time.time()), 0
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for file in archive.files():
            name, _, below = file.path.partition("/")
            if name in folders:
                content = stamped(PurePosixPath(below).name, file.content, now * 10**9)
                mode = (0o700 if file.executable else 0o600) if private else (0o755 if file.executable else 0o644)
                _add(tar, f"{folders[name].lstrip('/')}/{below}", content, mode, now)
                count += 1
    return count


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int, mtime: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), mode, mtime
    tar.addfile(entry, io.BytesIO(content))


def _digest(stream: BufferedReader) -> str:
    """Return the digest of a file, and rewind it."""
    digest = hashlib.file_digest(stream, "sha256").hexdigest()
    stream.seek(0)
    return f"sha256:{digest}"
