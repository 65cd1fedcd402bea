"""A Docker daemon of the test's own, which it may stop and start: nobody else's containers are in it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_BRIDGE = "deploytest0"
_ADDRESS = "172.31.250.1/24"


@dataclass
class OwnDaemon:
    """`dockerd` with everything it has below `folder`, on a bridge of its own; it leaves the host's firewall alone."""

    folder: Path
    options: tuple[str, ...]
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/sock"

    def docker(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["docker", "--host", self.url, *arguments], capture_output=True, text=True, check=False)

    def start(self) -> None:
        places = {"--data-root": "root", "--exec-root": "exec", "--pidfile": "pid"}
        argv = [word for option, name in places.items() for word in (option, str(self.folder / name))]
        argv += ["--host", self.url, "--bridge", _BRIDGE, "--iptables=false", "--ip6tables=false", *self.options]
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(["dockerd", *argv], stdout=log, stderr=log)
        wait_for(lambda: self.docker("info").returncode == 0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)
            self._process = None


@contextmanager
def own_daemon(*options: str, disk: str | None = None) -> Iterator[OwnDaemon]:
    """A running daemon; its containers go with it. `disk` is the size of the disk it has, such as `400m`."""
    folder = Path(tempfile.mkdtemp(prefix="deploy-dockerd-", dir="/tmp"))  # a short path, for the socket
    daemon = OwnDaemon(folder=folder, options=options)
    _ip("link", "add", _BRIDGE, "type", "bridge")
    try:
        _ip("address", "add", _ADDRESS, "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        if disk is not None:
            (folder / "root").mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", str(folder / "root")], check=True)
        daemon.start()
        yield daemon
    finally:
        if left := daemon.docker("ps", "--all", "--quiet").stdout.split():
            daemon.docker("rm", "--force", *left)
        daemon.stop()
        _ip("link", "delete", _BRIDGE)
        for mounted in Path("/proc/mounts").read_text().splitlines():
            if mounted.split()[1].startswith(str(folder)):
                subprocess.run(["umount", mounted.split()[1]], check=True)
        shutil.rmtree(folder)


def unavailable() -> str:
    """Why there can be none on this machine, empty where there can."""
    if os.getuid() != 0:
        return "only root starts a Docker daemon"
    missing = [program for program in ("dockerd", "docker", "ip") if shutil.which(program) is None]
    return f"needs {', '.join(missing)}" if missing else ""


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
