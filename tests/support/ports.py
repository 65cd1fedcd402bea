"""Ports of this machine for the tests' own servers."""

import fcntl
import random
import socket
import tempfile
from collections import deque
from functools import cache
from pathlib import Path
from typing import IO, Final

_RANGE: Final = range(10_000, 32_000)  # below the ephemeral ports, of which sglang opens many
_SHARE: Final = 1000  # ports that one process has to itself
_DERIVED: Final = (0, 1, 8, 16, 24)  # a gateway takes the next one for its metrics, its replicas every eighth
_held: list[IO[bytes]] = []  # the lock on them, as long as the process lives
_given: deque[int] = deque(maxlen=_SHARE // 2)  # not given again so soon: nobody may listen there yet


def free_port() -> int:
    """A port that no other process of any run of the tests takes: nobody listens on it or on those derived from it.

    Between the choice of a port and its use lies the start of a server: time enough for another run to choose it too.
    """
    dice = random.SystemRandom()
    while True:
        port = dice.choice(_share())
        if port in _given:
            continue
        if not any(map(_is_taken, (port + offset for offset in _DERIVED))):
            _given.append(port)
            return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@cache
def _share() -> range:
    """The ports of this process, its forks included; all of them where others have every share."""
    for start in random.SystemRandom().sample(_RANGE[::_SHARE], len(_RANGE) // _SHARE):
        lock = Path(tempfile.gettempdir(), f"deploy-test-ports-{start}").open("ab")  # noqa: SIM115 - held
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another's
            lock.close()
            continue
        _held.append(lock)
        return range(start, start + _SHARE)
    return _RANGE
