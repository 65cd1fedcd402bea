"""Free ports for servers of the tests."""

import fcntl
import random
import socket
import tempfile
from collections import deque
from functools import cache
from pathlib import Path
from typing import IO, Final

_RANGE: Final = range(10_000, 32_000)  # below the ephemeral ports, because sglang opens many of them
_SHARE: Final = 1000  # ports reserved for one process
_DERIVED: Final = (0, 1, *range(8, 56, 8))  # offsets: a gateway uses +1 for metrics, and its servers +8, +16 …
_locks: list[IO[bytes]] = []  # kept open until the process ends
_recent: deque[int] = deque(maxlen=_SHARE // 2)  # not returned again soon: the server may not listen yet
_reserved: deque[int] = deque(maxlen=20 * len(_DERIVED))  # derived from recent ports: servers may be added later


def free_port() -> int:
    """Return a free port whose derived ports are free, too, and that no other test process uses.

    Ports are reserved by process, because a server starts long after its port was chosen.
    """
    rng = random.SystemRandom()
    while True:
        port = rng.choice(_share()[: -max(_DERIVED)])  # the ports above belong to another process
        ports = [port + offset for offset in _DERIVED]
        if port in _recent or port in _reserved or any(map(_is_taken, ports)):
            continue
        _recent.append(port)
        _reserved.extend(ports)
        return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@cache
def _share() -> range:
    """Return the ports reserved for this process and its forks; the whole range if all are reserved."""
    for start in random.SystemRandom().sample(_RANGE[::_SHARE], len(_RANGE) // _SHARE):
        lock = Path(tempfile.gettempdir(), f"deploy-test-ports-{start}").open("ab")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # reserved by another process
            lock.close()
            continue
        _locks.append(lock)
        return range(start, start + _SHARE)
    return _RANGE
