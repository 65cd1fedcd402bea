"""Names of hosts, looked up within a time, and so that Ctrl-C ends it.

The C library asks each nameserver twice for 5 s, or as resolv.conf(5) says, and hears no signal meanwhile: one that
swallows what it is asked outlasts the time limit of every request.
"""

import socket
import threading
from typing import Any, Final

from orchestrator.core.signals import start_deaf

_LONGEST: Final = 12.0  # seconds: the two tries of one nameserver, and a bit
_waiting: set[threading.Event] = set()
_look_up = socket.getaddrinfo


def look_up_in_time() -> None:
    """From here on each look-up of a name ends in time, whichever library asks for it."""
    socket.getaddrinfo = _in_time


def abandon_lookups() -> None:
    """Let none of those that go on be waited for any longer."""
    for each in [*_waiting]:
        each.set()


def _in_time(*asked: Any, **more: Any) -> Any:  # noqa: ANN401 - handed on as they are
    answers: list[tuple[Any, Exception | None]] = []
    answered = threading.Event()

    def ask() -> None:
        try:
            answers.append((_look_up(*asked, **more), None))
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            answers.append((None, error))
        answered.set()

    _waiting.add(answered)
    try:
        start_deaf(threading.Thread(target=ask, daemon=True))
        answered.wait(_LONGEST)
    finally:
        _waiting.discard(answered)
    if not answers:
        raise socket.gaierror(socket.EAI_AGAIN, f"no nameserver has answered within {_LONGEST:g} s")
    found, error = answers[0]
    if error is not None:
        raise error
    return found
