"""An ssh server of the tests' own on loopback, with keys of its own: the far machine is this one."""

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
    """Its URL; `ssh` on the PATH knows it, and DEPLOY_HOME is `deploy_home` at its end; commands begin in `home`."""
    port = free_port()
    _write_files(folder, port, deploy_home, home)
    ssh = folder / "bin/ssh"  # ssh reads its configuration from the home of the account, whatever HOME says
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/client "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    short = tempfile.mkdtemp(prefix=_TUNNELS, dir="/tmp")  # the path of a unix socket has to be
    monkeypatch.setenv("TMPDIR", short)
    monkeypatch.setattr(tempfile, "tempdir", short)
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "server")], stderr=subprocess.DEVNULL)
    try:
        requested = ["ssh", "-p", str(port), "127.0.0.1", "true"]
        while subprocess.run(requested, capture_output=True, check=False).returncode:
            assert server.poll() is None, "sshd has ended"
            time.sleep(0.05)
        yield f"ssh://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(short)


def tunnels() -> list[str]:
    """The ssh connections that runtimes of this run of the tests hold."""
    return processes_with(f"/{_TUNNELS}")


def _write_files(folder: Path, port: int, deploy_home: Path, home: Path | None) -> None:
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "client").write_text(
        f"Host *\nIdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
        "KexAlgorithms curve25519-sha256\n"  # the default one takes OpenSSH 65 ms of CPU time more a connection
    )
    (folder / "server").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nPasswordAuthentication no\nUsePAM no\nPidFile none\n"
        f"SetEnv DEPLOY_HOME={deploy_home} {f'HOME={home}' if home else _without_login_script()}\n"
        + ('ForceCommand cd && exec bash -c "$SSH_ORIGINAL_COMMAND"\n' if home else "")
    )


def _without_login_script() -> str:
    """Environment in which bash reads no .bashrc, which may take 0.1 s of CPU time a connection (pyenv's does).

    bash reads it where sshd started it and SHLVL was below 1 (bash 5.2, shell.c, `run_startup_files`).
    """
    here = Path(sys.executable).parent.as_posix()
    path = [folder for folder in os.environ["PATH"].split(":") if folder != here]
    return f"SHLVL=1 PATH={sys.base_prefix}/bin:{':'.join(path)}"
