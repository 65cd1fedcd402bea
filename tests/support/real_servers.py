"""Count the real sglang servers that a run of the tests starts, whatever starts them: a process, Docker, Slurm, a pod.

All of them run on this machine, so that /proc shows them. A server is real when it has loaded torch, which the scripted
engine has not, and it belongs to this run when it uses a file below the temporary directory of this run.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_INTERVAL_S: Final = 3.0  # a real server needs 10 s and more until it serves; a look takes 10 ms of CPU time
_LAUNCHES: Final = b"\0sglang.launch_server\0"


class RealServers:
    """Look for servers in a thread until `stop` is called."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the temporary directory of this run."""
        self._directory = directory
        self._found: set[tuple[str, str]] = set()  # pid and time of its start: a pid is used again
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="real servers", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> int:
        """End the thread; the number of servers that were started."""
        self._stopped.set()
        self._thread.join()
        return len(self._found)

    def _look(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self._found |= real_servers(self._directory)


def real_servers(directory: Path) -> set[tuple[str, str]]:
    """Pid and start time of each process that is a real server and uses something below `directory`."""
    return {found for process in Path("/proc").glob("[0-9]*") if (found := _real_server(process, directory))}


def _real_server(process: Path, directory: Path) -> tuple[str, str] | None:
    with suppress(OSError):  # it has ended, or is another user's
        if _LAUNCHES not in (process / "cmdline").read_bytes():
            return None
        if "/libtorch" not in (process / "maps").read_text(errors="replace") or not _uses(process, directory):
            return None
        return process.name, (process / "stat").read_text().rsplit(")", 1)[1].split()[19]
    return None


def _uses(process: Path, directory: Path) -> bool:
    """Whether its directory, its output, its environment or, in a container, one of its mounts lies below."""
    # Its last two parts, because a mount is named by its path in its file system.
    name = f"/{directory.parent.name}/{directory.name}/"
    links = (str(link.readlink()) for link in (process / "cwd", process / "fd/1"))
    files = ((process / item).read_text(errors="replace") for item in ("environ", "mountinfo"))
    return any(name in f"{text}/" for text in (*links, *files))
