"""The way to a pod from this machine: `kubectl port-forward`, which ends with this process at the latest."""

import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Final

from orchestrator.core.errors import HostError
from orchestrator.core.log_lines import split_lines, whole_lines
from orchestrator.core.shell import DEVNULL, Program
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.manifests import CONTAINER

_OPENS: Final = 10.0  # seconds that it may take to be open
_LOOK: Final = 0.02
_PIECE: Final = 1 << 16


class Forward:
    """A local port that leads to a server's pod, whichever that is by now. It opens when there is one that runs."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        """`port` is the server's, in its pod."""
        self._cluster, self._inside = cluster, port
        self._local = _free_port(port)
        self._program: Program | None = None
        self._said: IO[bytes] | None = None
        self._run = ""

    @property
    def url(self) -> str:
        """Where it leads from."""
        return f"http://127.0.0.1:{self._local}"

    def lead_to(self, pod: str, run: str) -> None:
        """Lead to a run of a pod; nothing to do where it does so already."""
        if self._program is not None and self._program.code is None and self._run == run:
            return
        self.close()
        self._run = run
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it writes a line for each connection: no pipe
        ports = f"{self._local}:{self._inside}"
        self._program = self._cluster.start("port-forward", f"pod/{pod}", ports, output=self._said, errors=self._said)
        end = time.monotonic() + _OPENS
        while b"Forwarding" not in os.pread(self._said.fileno(), _PIECE, 0) and self._program.code is None:
            if time.monotonic() > end:
                break
            time.sleep(_LOOK)

    def close(self) -> None:
        """End it."""
        if self._program is not None:
            self._program.end(signal.SIGTERM, grace=1)
        if self._said is not None:
            self._said.close()
        self._program = self._said = None


class PodTail:
    """The new lines of a server's log at each call, through restarts."""

    def __init__(self, cluster: Cluster, runs: Callable[[], tuple[str, str] | None]) -> None:
        """`runs` gives the pod and what tells its run from others, None where none runs."""
        self._cluster, self._runs = cluster, runs
        self._program: Program | None = None
        self._seen = ""  # the run that was read
        self._rest = b""

    def __call__(self) -> Iterator[str]:
        """The lines written since the last call."""
        if self._program is None:
            found = self._runs()
            if found is None or found[1] == self._seen:
                return
            pod, self._seen = found
            self._program = self._cluster.start("logs", "--follow", "--container", CONTAINER, pod, errors=DEVNULL)
        data, ended = self._read(self._program)
        data = self._rest + data
        end = len(data) if ended else data.rfind(b"\n") + 1
        self._rest = data[end:]
        if ended:
            self.close()
        yield from split_lines(whole_lines([data[:end]]))

    def close(self) -> None:
        """End it."""
        if self._program is not None:
            self._program.end(signal.SIGKILL)
            self._program = None

    def _read(self, program: Program) -> tuple[bytes, bool]:
        """What is there to be read, without waiting for more, and whether that was all."""
        descriptor = program.output.fileno()
        pieces: list[bytes] = []
        while select.select([descriptor], [], [], 0)[0]:
            if not (piece := os.read(descriptor, _PIECE)):
                return b"".join(pieces), True
            pieces.append(piece)
        return b"".join(pieces), False


def _free_port(wanted: int) -> int:
    """The same port as in the pod, or any other where somebody has that one here."""
    for port in (wanted, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise HostError("this machine has no free port")
