"""Read files of /proc for all processes."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def proc_files(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the pid and the content of a file, such as `cmdline`, of each running process."""
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes()


def environ_of(text: str) -> dict[str, str]:
    """Return the environment of the process whose command line contains a text."""
    for pid, line in proc_files("cmdline"):
        if text in line.replace(b"\0", b" ").decode() and pid != os.getpid():
            pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            return dict(pair.partition("=")[::2] for pair in pairs)
    raise AssertionError(text)
