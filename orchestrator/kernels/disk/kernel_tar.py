"""Compiled kernels as a plain tar of absolute paths: for Docker, in volumes and in images."""

import io
import tarfile
import time
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import IO

from orchestrator.kernels.disk.archive import KernelArchive
from orchestrator.kernels.disk.ninja_times import stamped


def write_tar(stream: IO[bytes], archive: KernelArchive, folders: Mapping[str, str], *, private: bool = True) -> int:
    """Write the kernels of the `folders`, paths by name, and return the number of files.

    In an image they are not `private`: another user may run the server.
    """
    now, count = int(time.time()), 0
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for file in archive.files():
            name, _, below = file.path.partition("/")
            if name not in folders:
                continue
            entry = tarfile.TarInfo(f"{folders[name].lstrip('/')}/{below}")
            content = stamped(PurePosixPath(below).name, file.content, now * 10**9)
            entry.size, entry.mtime = len(content), now
            entry.mode = (0o700 if file.executable else 0o600) if private else (0o755 if file.executable else 0o644)
            tar.addfile(entry, io.BytesIO(content))
            count += 1
    return count
