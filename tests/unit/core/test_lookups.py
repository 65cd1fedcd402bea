"""Look-ups of names: what is found, what is not, and what never answers."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from orchestrator.core import lookups
from orchestrator.engine.client import EngineClient
from orchestrator.engine.responses import NoAnswerError


@pytest.fixture(autouse=True)
def in_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Look-ups of this tool, as long as the test runs; `swallows.test` is never answered."""
    over = threading.Event()
    real = lookups._look_up  # what a command that ran before has put in place of `socket.getaddrinfo` asks this again

    def look_up(host: str, *asked: object, **more: object) -> object:
        if host == "swallows.test":
            over.wait(60)
        return real(host, *asked, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(lookups, "_look_up", look_up)
    monkeypatch.setattr(lookups, "_LONGEST", 60.0)
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    lookups.look_up_in_time()
    yield over
    over.set()


def test_a_nameserver_that_swallows_what_it_is_asked_outlasts_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "_LONGEST", 0.3)
    begun = time.monotonic()
    late = pytest.raises(NoAnswerError, match=r"no nameserver has answered within 0\.3 s")
    with EngineClient("http://swallows.test:1", key=None) as client, late:
        client.models()
    assert time.monotonic() - begun < 30


def test_what_is_found_and_what_is_not_is_told_as_ever() -> None:
    assert socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)[0][4] == ("127.0.0.1", 80)
    with pytest.raises(socket.gaierror) as caught:
        socket.getaddrinfo("nowhere.invalid", 80, flags=socket.AI_NUMERICHOST)
    assert caught.value.errno == socket.EAI_NONAME


def test_a_lookup_that_is_abandoned_is_not_waited_for() -> None:
    threading.Timer(0.1, lookups.abandon_lookups).start()
    begun = time.monotonic()
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("swallows.test", 80)
    assert time.monotonic() - begun < 30
