"""The address of rank 0 for the other ranks of a server on several hosts.

A program on the first host listens briefly, and a program on each host connects to it. Both need Python 3.8 or newer.
"""

import secrets
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final, NamedTuple

from orchestrator.core.errors import HostError
from orchestrator.core.subprocesses import Program
from orchestrator.hosts.ssh import SshHost, ssh_hostname, ssh_runner, ssh_start

_PYTHON: Final = ("python3", "-I", "-c")
# Prints its port and its host's addresses, then sends a word on each connection until its standard input is closed.
_LISTEN: Final = """
import os, socket, subprocess, sys, threading
def end():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=end, daemon=True).start()
server = socket.create_server(("0.0.0.0", 0))
try:
    addresses = subprocess.run(["hostname", "-I"], stdout=subprocess.PIPE).stdout.decode()
except OSError:
    addresses = ""
print("listening", server.getsockname()[1], addresses, flush=True)
while True:
    peer = server.accept()[0]
    peer.sendall(sys.argv[1].encode())
    peer.close()
"""
# Prints each address at which the listener sends its word, followed by the address and the name of the local interface,
# separated by commas. 0x8915 is SIOCGIFADDR, see netdevice(7).
_CONNECT: Final = """
import fcntl, socket, struct, sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
port, word, *addresses = sys.argv[1:]
def interface(own):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                asked = fcntl.ioctl(any_socket, 0x8915, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(asked[20:24]) == own:
                    return name
    return ""
def reached(address):
    with suppress(OSError):
        with socket.create_connection((address, int(port)), 5) as peer:
            if peer.recv(99).decode() == word:
                own = peer.getsockname()[0]
                return ",".join((address, own, interface(own)))
    return ""
with ThreadPoolExecutor(len(addresses)) as pool:
    print(*pool.map(reached, addresses))
"""


class Interface(NamedTuple):
    """A network interface: its address and its name, "" if unknown."""

    address: str
    name: str


@dataclass(frozen=True, kw_only=True)
class RankNetwork:
    """The address of the first host, and the interface from which each host reaches it."""

    address: str
    interfaces: tuple[Interface, ...]


def rank_network(first: str, other_hosts: Sequence[str]) -> RankNetwork:
    """Return an IPv4 address of the host `first` that all hosts can reach, itself included. Hosts are ssh URLs.

    Prefers the address to which ssh connects, then the order of `hostname -I` on that host.
    Raises HostError if there is none.
    """
    word = secrets.token_hex(8)
    with tempfile.TemporaryFile() as stderr, ssh_start(first, [*_PYTHON, _LISTEN, word], stderr) as listener:
        port, listened = _listening(listener, first, stderr)
        addresses = list(dict.fromkeys(item for item in (*_ssh_addresses(first), *listened) if ":" not in item))
        if not addresses:
            hint = f"add an IPv4 address to its network; `ssh {SshHost.parse(first).address} hostname -I` shows them"
            raise HostError(f"{first} has no known IPv4 address, which other ranks need", hint=hint)
        reached = {host: _reached(host, [port, word, *addresses]) for host in (first, *other_hosts)}
        listener.end(signal.SIGTERM)
    for address in addresses:
        if all(address in item for item in reached.values()):
            interfaces = tuple(item[address] for item in reached.values())
            return RankNetwork(address=address, interfaces=interfaces)
    blind = next((host for host, item in reached.items() if not item), None)
    names = ", ".join(addresses)
    raise HostError(
        f"cannot reach {first} from {blind} at {names}"
        if blind
        else f"{first} has no address that all hosts reach: {names}",
        details="" if blind else "\n".join(f"  {host} reaches {', '.join(item)}" for host, item in reached.items()),
        hint="the hosts need a network without a firewall between them: the ranks of a server use any port",
    )


def _listening(listener: Program, host: str, stderr: IO[bytes]) -> tuple[str, list[str]]:
    for line in listener.lines():  # a login script may print other lines before
        match line.split():
            case ["listening", port, *addresses]:
                return port, addresses
    stderr.seek(0)
    raise _no_python(host, stderr.read().decode(errors="replace").strip())


def _reached(host: str, argv: Sequence[str]) -> dict[str, Interface]:
    """Return the interface that reaches each address, by address; addresses that cannot be reached are missing."""
    done = ssh_runner(host)([*_PYTHON, _CONNECT, *argv])
    if not done.ok:
        raise _no_python(host, done.stderr.strip())
    interfaces = {}
    for word in done.stdout.split():
        match word.split(","):
            case [address, own, name] if address in argv:  # a login script may print other words
                interfaces[address] = Interface(own, name)
    return interfaces


def _no_python(host: str, details: str) -> HostError:
    hint = f"`ssh {SshHost.parse(host).address} python3 --version` must work without a prompt, with Python 3.8 or newer"
    return HostError(f"cannot check the network of {host}", hint=hint, details=details)


def _ssh_addresses(url: str) -> list[str]:
    with suppress(OSError):  # a name that only a jump host knows
        return [str(info[4][0]) for info in socket.getaddrinfo(ssh_hostname(url), None, socket.AF_INET)]
    return []
