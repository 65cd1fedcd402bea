"""A program that is attended: Ctrl-C reaches it once, and is not over before the program is."""

import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import pathlib, sys, time
here = pathlib.Path(sys.argv[1])
try:
    (here / "started").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    (here / "cleaned").touch()
    sys.exit(130)
"""
PARENT = (
    "import sys; from orchestrator.core.shell import attend; sys.exit(attend([sys.executable, '-c', *sys.argv[1:]]))"
)


def test_an_exit_code_comes_back() -> None:
    argv = [sys.executable, "-c", PARENT, "import sys; sys.exit(7)"]
    assert subprocess.run(argv, timeout=60, check=False).returncode == 7


def test_ctrl_c_waits_for_the_clean_up(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD, str(tmp_path)], stderr=subprocess.DEVNULL) as parent:
        while not (tmp_path / "started").exists():
            time.sleep(0.02)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(timeout=60) != 0
    assert (tmp_path / "cleaned").exists()
