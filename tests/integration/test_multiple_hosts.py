"""Tests of one command on several hosts: this machine over real ssh under two names, and an unreachable host."""

import json
import signal
from pathlib import Path

import pytest
from command_line import CommandLine, processes_with
from loopback_ssh import needs_sshd, ssh_server
from waits import wait_for

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.hosts import head_address


@pytest.mark.docker
@needs_sshd
def test_unreachable_host_does_not_stop_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (folder := tmp_path / "ssh").mkdir()
    with ssh_server(folder, deploy_home=home, monkeypatch=monkeypatch) as url:
        known = (folder / "known").read_text()
        (folder / "known").write_text(known + known.replace("127.0.0.1", "localhost"))
        deploy = CommandLine(Home(home))
        hosts = ["--host", url, "--host", url.replace("127.0.0.1", "localhost"), "--host", "ssh://nowhere.invalid"]
        port = url.rpartition(":")[2]
        result = deploy.run("status", *hosts, "--json")
        report = json.loads(result.stdout)
        assert list(report) == [f"127-0-0-1-{port}", f"localhost-{port}", "nowhere-invalid"]
        assert [isinstance(report[name], list) for name in report] == [True, True, True]
        assert "nowhere-invalid: error: " in result.stderr
        assert result.returncode == 4
        outcomes = [line.split()[0] for line in result.stderr.splitlines()[-4:]]
        assert outcomes == ["node", *report]

        status = deploy.run("status", *hosts[:4])
        assert status.returncode == 0, status.stderr
        # Both hosts share this machine's Docker, in which another test worker may run servers.
        for name in list(report)[:2]:
            assert f"{name}: no server" in status.stderr or f"{name}: " in status.stdout


def test_signal_ends_command_on_every_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    mark = f"{tmp_path}/waits"
    Path(mark).write_text("#!/bin/sh\nwhile :; do sleep 0.1; done\n")
    ssh.write_text(f"#!/bin/sh\nexec /bin/sh {mark}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")
    words = ("status", "--host", "ssh://one.invalid", "--host", "ssh://two.invalid")
    with CommandLine(Home(tmp_path / "home")).running(*words) as command:
        wait_for(lambda: len(processes_with(mark)) == 2)
        assert command.end(signal.SIGTERM)[0] == 130
    wait_for(lambda: processes_with(mark) == [])
    assert processes_with("ssh://one.invalid") == []


@needs_sshd
def test_head_address_is_reachable_from_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "ssh").mkdir()
    with ssh_server(folder, deploy_home=tmp_path, monkeypatch=monkeypatch) as first:
        known = (folder / "known").read_text()
        (folder / "known").write_text(known + known.replace("127.0.0.1", "localhost"))
        second = first.replace("127.0.0.1", "localhost")
        network = head_address.rank_network(first, [second])
        assert (network.address, network.interfaces) == ("127.0.0.1", (("127.0.0.1", "lo"),) * 2)
        with pytest.raises(HostError, match="cannot check the network of ssh://nowhere"):
            head_address.rank_network(first, ["ssh://nowhere.invalid"])
        with pytest.raises(HostError, match="cannot check the network of ssh://nowhere") as failed:
            head_address.rank_network("ssh://nowhere.invalid", [first])
        assert "nowhere.invalid" in failed.value.details  # ssh's own message
        with monkeypatch.context() as changed:
            changed.setattr(head_address, "_reached", lambda host, _: {host: ""})
            with pytest.raises(HostError, match=f"{first} has no address that all hosts reach: 127.0.0.1") as failed:
                head_address.rank_network(first, [second])
            assert failed.value.details.splitlines()[1] == f"  {second} reaches {second}"
            changed.setattr(head_address, "_ssh_addresses", lambda _: [])
            changed.setattr(head_address, "_LISTEN", head_address._LISTEN.replace("hostname", "no-such-program"))
            with pytest.raises(HostError, match=f"{first} has no known IPv4 address"):
                head_address.rank_network(first, [second])
        # The listener answers with an unexpected word, as a listener of another host would.
        monkeypatch.setattr(head_address, "_LISTEN", head_address._LISTEN.replace("sys.argv[1]", "'other'"))
        with pytest.raises(HostError, match=f"cannot reach {first} from {first} at 127.0.0.1, "):
            head_address.rank_network(first, [second])
    wait_for(lambda: processes_with("create_server") == [])
