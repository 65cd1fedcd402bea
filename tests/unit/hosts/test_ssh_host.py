"""Test the parsing of `ssh://` URLs."""

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.hosts.ssh import SshHost, ssh_runner


@pytest.mark.parametrize(
    ("url", "address", "port", "socket"),
    [
        ("ssh://node", "node", None, "/var/run/docker.sock"),
        ("ssh://amd@node:2222", "amd@node", 2222, "/var/run/docker.sock"),
        ("ssh://GPU-Node1", "GPU-Node1", None, "/var/run/docker.sock"),  # an alias in the ssh configuration
        ("ssh://amd@[fe80::1%eth0]:22", "amd@fe80::1%eth0", 22, "/var/run/docker.sock"),
        ("ssh://amd@node/run/user/1000/docker.sock", "amd@node", None, "/run/user/1000/docker.sock"),
    ],
)
def test_ssh_url_is_parsed(url: str, address: str, port: int | None, socket: str) -> None:
    assert SshHost.parse(url) == SshHost(address=address, port=port, socket=socket)


@pytest.mark.parametrize(
    "url", ["ssh://", "ssh://node:99999", "ssh://node:abc", "ssh://-oProxyCommand=id", "ssh://a b"]
)
def test_invalid_ssh_url_is_rejected(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a remote host"):
        SshHost.parse(url)
    with pytest.raises(UsageError, match="is not the URL of a remote host"):
        ssh_runner(url)


def test_ssh_url_with_password_is_rejected_without_leaking_it() -> None:
    with pytest.raises(UsageError) as caught:
        SshHost.parse("ssh://amd:secret@node")
    assert "secret" not in f"{caught.value}{caught.value.hint}"
