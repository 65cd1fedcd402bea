"""Ctrl-C and SIGTERM at any moment of a command end it with their own exit code and not a word of Python's."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waits import TIMEOUT, wait_for

ENDED = {0, 130, -signal.SIGINT, -signal.SIGTERM}  # a shell calls an end by SIGINT 130 too


def catches_sigint(pid: int) -> bool:
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGINT - 1) & 1)


def wait_until_ours(process: "subprocess.Popen[bytes]", imported: Path) -> None:
    """Until Python itself has started, whose own imports nobody can guard, and our first line has had its moment."""
    wait_for(lambda: b" orchestrator\n" in imported.read_bytes())
    moment = time.monotonic() + 1
    while catches_sigint(process.pid) and time.monotonic() < moment:
        pass


@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", ["profiles", "status"])
def test_interrupted_command_prints_no_traceback(verb: str, tmp_path: Path) -> None:
    """In the first half second, that of the imports, 1 in 8 was a traceback of forty lines."""
    moments = random.Random(10)
    argv = [sys.executable, "-P", "-X", "importtime", "-m", "orchestrator", verb]
    for _ in range(15):
        with (tmp_path / "said").open("wb") as output:
            process = subprocess.Popen(
                argv, env={"DEPLOY_HOME": str(tmp_path / "home")}, stdout=subprocess.DEVNULL, stderr=output
            )
        wait_until_ours(process, tmp_path / "said")
        time.sleep(moments.uniform(0, 0.6))
        process.send_signal(moments.choice([signal.SIGINT, signal.SIGTERM]))
        code = process.wait(TIMEOUT)
        words = re.sub(r"^import time:.*\n", "", (tmp_path / "said").read_text(), flags=re.MULTILINE)
        assert "Traceback" not in words
        assert "KeyboardInterrupt" not in words
        assert code in ENDED


HOLDS = """
import os, signal, threading, time
from orchestrator.core.signals import defer_signals, start_thread_without_signals
signal.signal(signal.SIGINT, signal.default_int_handler)
start_thread_without_signals(threading.Timer(600, print))
try:
    with defer_signals():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        print("whole", flush=True)
except KeyboardInterrupt:
    print("then interrupted", flush=True)
os._exit(0)
"""


def test_deferred_interrupt_waits_while_another_thread_runs() -> None:
    """The kernel gave it to the other thread, and Python raised it in this one all the same."""
    done = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, text=True, check=True, timeout=TIMEOUT)
    assert done.stdout == "whole\nthen interrupted\n"
