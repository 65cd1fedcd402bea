"""A private Docker daemon, which a test may stop and start."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from waits import TIMEOUT, wait_for

# Distinct from other test runs on this machine.
_BRIDGE = f"test{os.getpid()}"
_ADDRESS = f"172.31.{os.getpid() % 256}.1/24"


@dataclass
class PrivateDaemon:
    """`dockerd` with its files below `folder` and its own bridge, without changes to the host's firewall."""

    folder: Path
    options: tuple[str, ...]
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/sock"

    def docker(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["docker", "--host", self.url, *arguments], capture_output=True, text=True, check=False)

    def start(self) -> None:
        locations = {"--data-root": "root", "--exec-root": "exec", "--pidfile": "pid"}
        argv = [word for option, name in locations.items() for word in (option, str(self.folder / name))]
        argv += ["--host", self.url, "--bridge", _BRIDGE, "--iptables=false", "--ip6tables=false", *self.options]
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(["dockerd", *argv], stdout=log, stderr=log)
        wait_for(lambda: self.docker("info").returncode == 0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=TIMEOUT)
            self._process = None

    def end(self) -> None:
        """Remove all containers and stop the daemon; kill it if it does not stop."""
        if self._process is None:
            return
        try:
            if containers := self.docker("ps", "--all", "--quiet").stdout.split():
                self.docker("rm", "--force", *containers)
            self.stop()
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()


@contextmanager
def private_daemon(*options: str, disk: str | None = None) -> Iterator[PrivateDaemon]:
    """Run a daemon for the length of the block. `disk` limits its disk space, such as `400m`."""
    folder = Path(tempfile.mkdtemp(prefix="deploy-dockerd-", dir="/tmp"))  # the path of a socket must be short
    daemon = PrivateDaemon(folder=folder, options=options)
    with ExitStack() as last:  # runs each cleanup step even if another one fails
        last.callback(_remove, folder)
        _ip("link", "add", _BRIDGE, "type", "bridge")
        last.callback(_ip, "link", "delete", _BRIDGE)
        _ip("address", "add", _ADDRESS, "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        if disk is not None:
            (folder / "root").mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", str(folder / "root")], check=True)
        last.callback(daemon.end)
        daemon.start()
        yield daemon


def _remove(folder: Path) -> None:
    """Unmount everything below the folder, and remove it."""
    for mounted in Path("/proc/mounts").read_text().splitlines():
        if mounted.split()[1].startswith(str(folder)):
            subprocess.run(["umount", mounted.split()[1]], check=True)
    shutil.rmtree(folder)


def unavailable() -> str:
    """Return why this machine cannot run a daemon; empty if it can."""
    if os.getuid() != 0:
        return "only root starts a Docker daemon"
    missing = [program for program in ("dockerd", "docker", "ip") if shutil.which(program) is None]
    return f"needs {', '.join(missing)}" if missing else ""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
