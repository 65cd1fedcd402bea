"""Ctrl-C and SIGTERM end a command at any moment with the right exit code and without a traceback."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waits import TIMEOUT, wait_for

EXIT_CODES = {0, 130, -signal.SIGINT, -signal.SIGTERM}  # a shell reports an end by SIGINT as 130


def catches_sigint(pid: int) -> bool:
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGINT - 1) & 1)


def wait_until_guarded(process: "subprocess.Popen[bytes]", imported: Path) -> None:
    """Wait until our first line has run: nothing can guard Python's own imports before it."""
    wait_for(lambda: b" orchestrator\n" in imported.read_bytes())
    moment = time.monotonic() + 1
    while catches_sigint(process.pid) and time.monotonic() < moment:
        pass


@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", ["profiles", "status"])
def test_interrupted_command_prints_no_traceback(verb: str, tmp_path: Path) -> None:
    """During the imports, in the first half second, 1 of 8 interrupts once printed a traceback of forty lines."""
    moments = random.Random(10)
    argv = [sys.executable, "-P", "-X", "importtime", "-m", "orchestrator", verb]
    for _ in range(15):
        with (tmp_path / "stderr").open("wb") as output:
            process = subprocess.Popen(
                argv, env={"DEPLOY_HOME": str(tmp_path / "home")}, stdout=subprocess.DEVNULL, stderr=output
            )
        wait_until_guarded(process, tmp_path / "stderr")
        time.sleep(moments.uniform(0, 0.6))
        process.send_signal(moments.choice([signal.SIGINT, signal.SIGTERM]))
        code = process.wait(TIMEOUT)
        errors = re.sub(r"^import time:.*\n", "", (tmp_path / "stderr").read_text(), flags=re.MULTILINE)
        assert "Traceback" not in errors
        assert "KeyboardInterrupt" not in errors
        assert code in EXIT_CODES


PROGRAM = """
import os, signal, threading, time
from orchestrator.core.signals import defer_signals, start_thread_without_signals
signal.signal(signal.SIGINT, signal.default_int_handler)
start_thread_without_signals(threading.Timer(600, print))
try:
    with defer_signals():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        print("finished", flush=True)
except KeyboardInterrupt:
    print("then interrupted", flush=True)
os._exit(0)
"""


def test_deferred_interrupt_waits_while_another_thread_runs() -> None:
    """The kernel may deliver the signal to the other thread; Python still raises it in the main thread."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=TIMEOUT)
    assert done.stdout == "finished\nthen interrupted\n"
