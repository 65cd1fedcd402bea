"""Preflight of a far machine: the same script through a real ssh server on loopback."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from waits import wait_for

from orchestrator.core.errors import HostError
from orchestrator.hosts.machine import read_machine
from orchestrator.hosts.ports import port_holder
from orchestrator.hosts.ssh import ssh_runner
from orchestrator.hosts.survey import MACHINE_SECTIONS, survey

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The url of an ssh server that knows a key of the test's own, which `ssh` on the PATH then uses."""
    if SSHD is None or os.getuid() != 0:
        pytest.skip("an ssh server takes openssh-server and root")
    Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    options = [f"HostKey={tmp_path}/host", f"AuthorizedKeysFile={tmp_path}/user.pub", "StrictModes=no", "UsePAM=no"]
    server = [SSHD, "-D", "-e", "-f", "/dev/null", "-p", str(port), "-o", "ListenAddress=127.0.0.1"]
    real = shutil.which("ssh")
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    known = f"-o UserKnownHostsFile={tmp_path}/known -o StrictHostKeyChecking=no -o LogLevel=ERROR"
    ssh.write_text(f'#!/bin/sh\nexec {real} -F /dev/null -i {tmp_path}/user {known} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    argv = [*server, *(word for option in options for word in ("-o", option))]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: port_holder(port) is not None or process.poll() is not None)
            yield f"ssh://root@127.0.0.1:{port}"
        finally:
            process.terminate()


def test_remote_host_is_surveyed_in_one_round_trip(far: str) -> None:
    calls: list[str] = []
    runner = ssh_runner(far)
    look = survey(
        lambda argv: (calls.append(argv[0]), runner(argv))[1],
        MACHINE_SECTIONS,
        directories=["/var/lib/a model's weights"],
    )
    machine = read_machine(look)
    assert calls == ["sh"]
    assert machine.user == "root"
    assert machine.cpus_online
    assert "/var/lib/a model's weights" in machine.disks


def test_remote_port_holder_is_identified(far: str) -> None:
    port = int(far.rpartition(":")[2])
    holder = port_holder(port, ssh_runner(far))
    assert holder is not None
    assert "sshd" in (holder.command or "")


def test_unreachable_host_is_reported() -> None:
    with pytest.raises(HostError, match="cannot inspect the host: ssh: connect to host"):
        survey(ssh_runner(f"ssh://root@127.0.0.1:{free_port()}"), MACHINE_SECTIONS)
