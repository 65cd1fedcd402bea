"""Tests of the start and the end of child programs."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waits import TIMEOUT, wait_for

from orchestrator.core import subprocesses
from orchestrator.core.secrets import Secret

CHILD = """
import pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    (here / "started").touch()
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.3)
    (here / "cleaned").touch()
    sys.exit(130)
"""
PARENT = """
import signal, sys
from orchestrator.core.subprocesses import run_attached
signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.exit(run_attached([sys.executable, '-c', *sys.argv[1:]]))
"""
WITH_WORKER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)
time.sleep(600)
"""
TIED = """
import sys
from orchestrator.core.subprocesses import start
print(start([sys.executable, '-c', 'import time; time.sleep(600)'], tied=True).pid, flush=True)
sys.stdin.read()
"""
FOLLOWED = """
import sys
from orchestrator.core.subprocesses import follow
program = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'
follow([sys.executable, '-c', program], lambda line: print(line, flush=True))
"""


@contextmanager
def running(argv: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_exit_code_is_returned() -> None:
    argv = [sys.executable, "-c", PARENT, "import sys; sys.exit(7)"]
    assert subprocess.run(argv, timeout=TIMEOUT, check=False).returncode == 7


def test_ctrl_c_waits_for_cleanup_of_program(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PARENT, CHILD, str(tmp_path)]
    with running(argv) as parent:
        wait_for((tmp_path / "started").exists)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(timeout=TIMEOUT) != 0
    assert (tmp_path / "cleaned").exists()


def test_program_ignoring_sigint_is_ended_by_sigterm(tmp_path: Path) -> None:
    argv = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", PARENT, CHILD, str(tmp_path)]
    with running(argv) as parent:
        wait_for((tmp_path / "started").exists)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(timeout=TIMEOUT) != 0
    assert (tmp_path / "cleaned").exists()


def test_aborted_follow_ends_worker_processes() -> None:
    pids: list[int] = []

    def abort(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        subprocesses.follow([sys.executable, "-c", WITH_WORKER], abort)
    wait_for(lambda: not is_running(pids[0]))


@pytest.mark.parametrize("script", [TIED, FOLLOWED], ids=["tied", "followed"])
def test_child_program_ends_with_its_parent(script: str) -> None:
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    wait_for(lambda: not is_running(pid))


def test_environment_variables_are_added_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOVED", "1")
    monkeypatch.setenv("UNCHANGED", "2")
    lines: list[str] = []
    program = "import os; print(*(os.environ.get(name) for name in ('REMOVED', 'UNCHANGED', 'ADDED')))"
    code = subprocesses.follow([sys.executable, "-c", program], lines.append, env={"REMOVED": None, "ADDED": "3"})
    assert (code, lines) == (0, ["None 2 3"])


def test_program_reads_stdin_and_progress_updates_become_lines() -> None:
    lines: list[str] = []
    program = "import sys; sys.stdout.write('10%\\r20%\\r' + sys.stdin.read())"
    assert subprocesses.follow([sys.executable, "-c", program], lines.append, stdin=b"done\n") == 0
    assert lines == ["10%", "20%", "done"]


def test_child_inherits_only_explicitly_passed_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API", "COPY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, "sk-0123456789")
    monkeypatch.setenv("HF_TOKEN", "hf_not_known_to_be_one")
    Secret("sk-0123456789")
    program = (
        "import os; print(sorted(os.environ.keys() & {'API', 'COPY', 'HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN', 'PATH'}))"
    )
    assert subprocesses.run([sys.executable, "-c", program]).stdout == "['PATH']\n"
    result = subprocesses.run([sys.executable, "-c", program], env={"API": "sk-0123456789"})
    assert result.stdout == "['API', 'PATH']\n"
