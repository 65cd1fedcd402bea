"""A tunnel from this host to a pod: `kubectl port-forward`, which ends with this process at the latest."""

import os
import signal
import tempfile
import time
from typing import IO, Final

from orchestrator.core.subprocesses import Program
from orchestrator.hosts.ports import free_port
from orchestrator.runtimes.kubernetes.kubectl import Cluster

_LOOPBACK: Final = "127.0.0.1"  # else kubectl continues with ::1 alone if another process has the port
_OPENS: Final = 10.0  # seconds for the tunnel to open
_INTERVAL: Final = 0.02
_CHUNK_BYTES: Final = 1 << 16


class Forward:
    """A local port that leads to the server's current pod. It opens once a pod is running."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        """Prepare a tunnel to `port`, the server's port in its pod."""
        self._cluster, self._inside = cluster, port
        self._local = free_port()  # the pod's own number would often collide with a server on this host
        self._program: Program | None = None
        self._output: IO[bytes] | None = None
        self._run = ""

    @property
    def url(self) -> str:
        """Return the local URL of the tunnel."""
        return f"http://{_LOOPBACK}:{self._local}"

    def connect(self, pod: str, run: str) -> None:
        """Open the tunnel to a run of a pod, unless it is already open to that run."""
        if self._program is not None and self._program.code is None and self._run == run:
            return
        self.close()
        self._run = run
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - kubectl writes a line per connection: a pipe fills up
        words = ("port-forward", "--address", _LOOPBACK, f"pod/{pod}", f"{self._local}:{self._inside}")
        self._program = self._cluster.start(*words, output=self._output, errors=self._output)
        end = time.monotonic() + _OPENS
        while b"Forwarding" not in os.pread(self._output.fileno(), _CHUNK_BYTES, 0) and self._program.code is None:
            if time.monotonic() > end:
                break
            time.sleep(_INTERVAL)

    def close(self) -> None:
        """Close the tunnel."""
        if self._program is not None:
            self._program.end(signal.SIGTERM, grace=1)
        if self._output is not None:
            self._output.close()
        self._program = self._output = None
