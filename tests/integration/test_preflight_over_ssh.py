"""Tests of preflight of a remote host, through a real ssh server on loopback."""

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_ssh import needs_sshd, ssh_server
from plan_samples import plan_of
from ports import free_port

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.hosts.context import DiskNeed
from orchestrator.hosts.host_state import read_host_state
from orchestrator.hosts.ports import port_holder
from orchestrator.hosts.ssh import ssh_runner
from orchestrator.hosts.survey import HOST_SECTIONS, survey
from orchestrator.runtimes.base import HostRef
from orchestrator.servers.start.host import _weights_space, preflight_host


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ssh_server(tmp_path, deploy_home=tmp_path, monkeypatch=monkeypatch) as url:
        yield url


@needs_sshd
def test_remote_host_is_surveyed_in_one_round_trip(url: str) -> None:
    calls: list[str] = []
    runner = ssh_runner(url)
    output = survey(
        lambda argv: (calls.append(argv[0]), runner(argv))[1],
        HOST_SECTIONS,
        directories=["/var/lib/a model's weights"],
    )
    host_state = read_host_state(output)
    assert calls == ["sh"]
    assert host_state.user == getpass.getuser()
    assert host_state.cpus_online
    assert "/var/lib/a model's weights" in host_state.disks


@needs_sshd
def test_remote_port_holder_is_identified(url: str) -> None:
    port = int(url.rpartition(":")[2])
    holder = port_holder(port, ssh_runner(url))
    assert holder is not None
    assert "sshd" in (holder.command or "")


@needs_sshd
def test_remote_disk_needs_space_for_missing_weights_only(url: str, tmp_path: Path) -> None:
    """`up --host` once built or pulled the image before it found too little space for the weights."""
    plan, host_ref = plan_of("mi355x-tp8"), HostRef(home=Home(tmp_path / "here"), remote=url)
    staged = tmp_path / "models" / plan.model.name

    def required_space() -> list[DiskNeed]:
        return list(_weights_space(plan, host_ref))

    size = plan.model.weight_bytes
    assert required_space() == [DiskNeed(purpose="weights", directory=str(staged), size=size)]
    (staged / ".parts").mkdir(parents=True)
    (staged / "model-00001-of-00092.safetensors").write_bytes(b"x" * 4096)
    (staged / ".parts" / "model-00002-of-00092.safetensors.part").write_bytes(b"x" * 100)
    assert required_space() == [DiskNeed(purpose="weights", directory=str(staged), size=size - 4196)]
    disk = [finding for finding in preflight_host(plan, host_ref).findings if finding.check == "disk"]
    assert any("weights" in finding.needed for finding in disk)


def test_unreachable_host_is_reported() -> None:
    with pytest.raises(HostError, match="cannot inspect the host: ssh: connect to host"):
        survey(ssh_runner(f"ssh://root@127.0.0.1:{free_port()}"), HOST_SECTIONS)
