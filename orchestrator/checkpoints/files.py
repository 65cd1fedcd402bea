"""Access to the files of a checkpoint, in a directory or on the hub (`hub.HubFiles`)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError
from orchestrator.core.safe_paths import CheckpointFile, UnsafeValueError, join


class CheckpointFiles(Protocol):
    """The files of a checkpoint. Reading raises OSError, HostError or UnsafeValueError."""

    location: str
    sizes: Mapping[CheckpointFile, int]  # bytes, by name
    headers_are_cheap: bool  # whether all headers can be read at little cost

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        """Read up to `length` bytes of a file."""


class LocalFiles:
    """The files of a checkpoint in a directory."""

    headers_are_cheap = True

    def __init__(self, directory: Path) -> None:
        """List the files. Raises CheckpointNotFoundError without a directory, CheckpointError if it is unreadable."""
        self.location = str(directory)
        self._directory = directory
        sizes: dict[CheckpointFile, int] = {}
        self.sizes: Mapping[CheckpointFile, int] = sizes
        try:
            for name, entry in _entries(directory):
                with suppress(UnsafeValueError):  # a checkpoint has no unsafe names
                    if entry.is_file():  # not a dangling link
                        sizes[CheckpointFile(name)] = entry.stat().st_size
        except FileNotFoundError as error:
            raise CheckpointNotFoundError("no directory found", location=self.location) from error
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoint: {error.strerror}", location=self.location) from error

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        """Read up to `length` bytes of a file."""
        with join(self._directory, name).open("rb") as file:
            file.seek(begin)
            return file.read(min(length, self.sizes[name]))  # `read` allocates the requested size


def file_stamps(directory: Path) -> dict[str, tuple[int, int]]:
    """Return the size and mtime of every file of a checkpoint, except in hidden folders (records of a download)."""
    stamps = ((name, entry.stat()) for name, entry in _entries(directory))
    return {name: (status.st_size, status.st_mtime_ns) for name, status in stamps}


def _entries(directory: Path) -> "Iterator[tuple[str, os.DirEntry[str]]]":
    """Yield every file below `directory` with its relative path."""
    folders = [str(directory)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    yield os.path.relpath(entry.path, directory), entry
