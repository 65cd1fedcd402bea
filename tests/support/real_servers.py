"""Count the real sglang servers that a test run starts, in any runtime.

All of them run on this machine, so /proc lists them. A server is real if it has loaded torch; it belongs to this run
if it uses a file below the temporary directory of the run.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_INTERVAL_S: Final = 3.0  # a real server needs at least 10 s to get ready; one poll takes 10 ms of CPU time
_LAUNCHES: Final = b"\0sglang.launch_server\0"


class RealServers:
    """Polls for servers in a thread until `stop` is called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: set[tuple[str, str]] = set()  # pid and start time, because pids are reused
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="real servers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """Stop polling; return the number of servers that were started."""
        self._stopped.set()
        self._thread.join()
        return len(self._servers)

    def _poll(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self._servers |= real_servers(self._directory)


def real_servers(directory: Path) -> set[tuple[str, str]]:
    """Return the pid and start time of each real server that uses a file below `directory`."""
    return {server for process in Path("/proc").glob("[0-9]*") if (server := _real_server(process, directory))}


def _real_server(process: Path, directory: Path) -> tuple[str, str] | None:
    with suppress(OSError):  # the process has exited, or belongs to another user
        if _LAUNCHES not in (process / "cmdline").read_bytes():
            return None
        if "/libtorch" not in (process / "maps").read_text(errors="replace") or not _uses(process, directory):
            return None
        return process.name, (process / "stat").read_text().rsplit(")", 1)[1].split()[19]
    return None


def _uses(process: Path, directory: Path) -> bool:
    """Return whether its working directory, output, environment or mounts refer to `directory`."""
    # Only the last two components: mountinfo has the path within its own file system.
    name = f"/{directory.parent.name}/{directory.name}/"
    links = (str(link.readlink()) for link in (process / "cwd", process / "fd/1"))
    files = ((process / item).read_text(errors="replace") for item in ("environ", "mountinfo"))
    return any(name in f"{text}/" for text in (*links, *files))
