"""A private ssh server on loopback, with its own keys: this machine is the remote host."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import processes_with
from ports import free_port

_TUNNELS = f"tunnels-{os.getpid()}-"
needs_sshd = pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="needs openssh-server")


@contextmanager
def ssh_server(
    folder: Path, *, deploy_home: Path, monkeypatch: pytest.MonkeyPatch, home: Path | None = None
) -> Iterator[str]:
    """Run a server that `ssh` on the PATH can reach; yield its URL.

    On the remote side, DEPLOY_HOME is `deploy_home` and commands start in `home`.
    """
    port = free_port()
    _write_files(folder, port, deploy_home, home)
    ssh = folder / "bin/ssh"  # a wrapper, because ssh ignores HOME and reads the account's configuration
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/client "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    short = tempfile.mkdtemp(prefix=_TUNNELS, dir="/tmp")  # the path of a unix socket must be short
    monkeypatch.setenv("TMPDIR", short)
    monkeypatch.setattr(tempfile, "tempdir", short)
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "server")], stderr=subprocess.DEVNULL)
    try:
        requested = ["ssh", "-p", str(port), "127.0.0.1", "true"]
        while subprocess.run(requested, capture_output=True, check=False).returncode:
            assert server.poll() is None, "sshd has exited"
            time.sleep(0.05)
        yield f"ssh://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(short)


def tunnels() -> list[str]:
    """Return the ssh connections of this test process."""
    return processes_with(f"/{_TUNNELS}")


def _write_files(folder: Path, port: int, deploy_home: Path, home: Path | None) -> None:
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "client").write_text(
        f"Host *\nIdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
        "KexAlgorithms curve25519-sha256\n"  # the default takes 65 ms more CPU time for each connection
    )
    (folder / "server").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nPasswordAuthentication no\nUsePAM no\nPidFile none\n"
        f"SetEnv DEPLOY_HOME={deploy_home} {f'HOME={home}' if home else _without_login_script()}\n"
        + ('ForceCommand cd && exec bash -c "$SSH_ORIGINAL_COMMAND"\n' if home else "")
    )


def _without_login_script() -> str:
    """Return variables with which bash skips .bashrc, which may take 0.1 s of CPU time (pyenv's does).

    bash reads it if sshd started it and SHLVL was below 1 (bash 5.2, shell.c, `run_startup_files`).
    """
    bin_dir = Path(sys.executable).parent.as_posix()
    path = [folder for folder in os.environ["PATH"].split(":") if folder != bin_dir]
    return f"SHLVL=1 PATH={sys.base_prefix}/bin:{':'.join(path)}"
