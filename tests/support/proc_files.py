"""Files of /proc of every process; a process may end at any moment."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def proc_files(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the pid and the content of a file, such as `cmdline`, of each process that still runs."""
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes()
