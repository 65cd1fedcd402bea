"""Test that threads of the tool block the termination signals."""

import signal
import threading
from pathlib import Path

import httpx

from orchestrator.core.signals import TERMINATION_SIGNALS
from orchestrator.engine.client import EngineClient


def test_request_timer_thread_blocks_signals() -> None:
    all_blocked: list[bool] = []

    def respond(_: httpx.Request) -> httpx.Response:
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
                blocked = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")), 16)
                all_blocked.append(all(blocked >> (number - 1) & 1 for number in TERMINATION_SIGNALS))
        return httpx.Response(200)

    with EngineClient("http://node:30000", key=None, transport=httpx.MockTransport(respond)) as client:
        assert client.health() == 200
    assert all_blocked == [True]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {*TERMINATION_SIGNALS}
