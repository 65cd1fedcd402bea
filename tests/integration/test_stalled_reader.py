"""Tests that `deploy watch` drops its output while the reader stalls."""

import os
import subprocess
import sys

from waits import TIMEOUT

PROGRAM = """
import sys
from orchestrator.core.streams import drop_when_stalled, output_error, install_streams, write
install_streams()
drop_when_stalled()
for number in range(3):
    write(sys.stdout, f"event {number}\\n")
write(sys.stderr, output_error())
"""


def test_output_to_stalled_pipe_is_dropped() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"\0" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=writer, stderr=subprocess.PIPE, timeout=TIMEOUT, check=True
    )
    assert done.stderr == b"the reader is stalled"
    os.close(reader)
    os.close(writer)


def test_output_to_active_reader_is_complete() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=TIMEOUT, check=True)
    assert (done.stdout, done.stderr) == (b"event 0\nevent 1\nevent 2\n", b"")


def test_stalled_terminal_does_not_block_program() -> None:
    """A terminal reports that it is writable although only a part of a line fits."""
    master, terminal = os.openpty()
    lines = PROGRAM.replace("range(3)", "range(2000)")
    argv = [sys.executable, "-c", lines]
    done = subprocess.run(argv, stdout=terminal, stderr=subprocess.PIPE, timeout=TIMEOUT, check=True)
    assert done.stderr == b"the reader is stalled"
    os.close(terminal)
    os.close(master)
