"""The way to a pod from this machine: `kubectl port-forward`, which ends with this process at the latest."""

import os
import signal
import socket
import tempfile
import time
from typing import IO, Final

from orchestrator.core.subprocesses import Program
from orchestrator.runtimes.kubernetes.kubectl import Cluster

_HERE: Final = "127.0.0.1"  # alone: without it kubectl goes on with ::1 where somebody else has the port there
_OPENS: Final = 10.0  # seconds that it may take to be open
_LOOK: Final = 0.02
_PIECE: Final = 1 << 16


class Forward:
    """A local port that leads to a server's pod, whichever that is by now. It opens when there is one that runs."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        """`port` is the server's, in its pod."""
        self._cluster, self._inside = cluster, port
        self._local = _free_port()
        self._program: Program | None = None
        self._said: IO[bytes] | None = None
        self._run = ""

    @property
    def url(self) -> str:
        """Where it leads from."""
        return f"http://{_HERE}:{self._local}"

    def lead_to(self, pod: str, run: str) -> None:
        """Lead to a run of a pod; nothing to do where it does so already."""
        if self._program is not None and self._program.code is None and self._run == run:
            return
        self.close()
        self._run = run
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it writes a line for each connection: no pipe
        words = ("port-forward", "--address", _HERE, f"pod/{pod}", f"{self._local}:{self._inside}")
        self._program = self._cluster.start(*words, output=self._said, errors=self._said)
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


def _free_port() -> int:
    """Any port: the one that the pod has is what a server on this machine would take before kubectl does."""
    with socket.socket() as probe:
        probe.bind((_HERE, 0))
        return int(probe.getsockname()[1])
