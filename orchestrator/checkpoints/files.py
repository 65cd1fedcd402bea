"""The files of a checkpoint where they lie: in a directory, or on the hub (`hub.HubFiles`)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError
from orchestrator.core.safe_paths import CheckpointFile, UnsafeValueError, join


class CheckpointFiles(Protocol):
    """Files by name. Reading raises OSError, HostError or UnsafeValueError."""

    location: str
    sizes: Mapping[CheckpointFile, int]  # bytes, by name
    headers_are_cheap: bool  # whether reading a header costs nothing

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        """So many bytes of a file, fewer at its end."""


class LocalFiles:
    """A directory."""

    headers_are_cheap = True

    def __init__(self, directory: Path) -> None:
        """Raise CheckpointNotFoundError where there is none, CheckpointError for one that cannot be read."""
        self.location = str(directory)
        self._directory = directory
        sizes: dict[CheckpointFile, int] = {}
        self.sizes: Mapping[CheckpointFile, int] = sizes
        try:
            for name, entry in _entries(directory):
                with suppress(UnsafeValueError):  # no checkpoint holds such a file
                    if entry.is_file():  # a link may lead to nothing
                        sizes[CheckpointFile(name)] = entry.stat().st_size
        except FileNotFoundError as error:
            raise CheckpointNotFoundError("there is no such directory", where=self.location) from error
        except OSError as error:
            raise CheckpointError(f"the checkpoint cannot be read: {error.strerror}", where=self.location) from error

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        """As its protocol says."""
        with join(self._directory, name).open("rb") as file:
            file.seek(begin)
            return file.read(min(length, self.sizes[name]))  # room is made for all that is asked for


def file_stamps(directory: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of a checkpoint, hidden folders (a download's own records) left out."""
    stamps = ((name, entry.stat()) for name, entry in _entries(directory))
    return {name: (status.st_size, status.st_mtime_ns) for name, status in stamps}


def _entries(directory: Path) -> "Iterator[tuple[str, os.DirEntry[str]]]":
    """What is no folder, by its path below `directory`."""
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
