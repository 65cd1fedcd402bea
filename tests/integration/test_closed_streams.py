"""Tests of commands whose output cannot be written; each command is a process of its own."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

SETUP = "import sys; from orchestrator.core import streams; streams.install_streams(); "
WRITE = "[streams.write(sys.stdout, f'line {number}\\n') for number in range(3)]; "
REPORT = "sys.stderr.write(f'still here, {streams.output_error()}')"


def run(
    code: str,
    *,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    before: Callable[[], object] | None = None,
    **environ: str,
) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", SETUP + code]
    return subprocess.run(
        argv,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **environ},
        text=True,
        check=False,
        preexec_fn=before,
    )


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """Return the write end of a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_closed_pipe_ends_command_quietly(closed_pipe: int) -> None:
    result = run(WRITE + REPORT, stdout=closed_pipe)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize(
    ("code", "environ"),
    [("streams.ignore_sigpipe(); ", {}), ("", {"DEPLOY_IGNORE_SIGPIPE": "1"})],
    ids=["by the command", "by its parent"],
)
def test_closed_pipe_is_ignored_after_irreversible_step(closed_pipe: int, code: str, environ: dict[str, str]) -> None:
    result = run(code + WRITE + REPORT, stdout=closed_pipe, **environ)
    assert (result.returncode, result.stderr) == (0, "still here, Broken pipe")


STEPS = (
    "files.atomic_write(here / 'a', '')",
    "files.remove_file(here / 'a')",
    "subprocesses.follow(['true'], str)",
    "subprocesses.run_attached(['true'])",
    "patched._remove(here / 'folder', here, ())",
)


@pytest.mark.parametrize("step", [*STEPS, "files.write_cache(here / 'a', '')"])
def test_irreversible_steps_disable_sigpipe(closed_pipe: int, tmp_path: Path, step: str) -> None:
    """Writing to a cache does not: the next command rebuilds a lost entry."""
    (tmp_path / "folder").mkdir()
    imports = "from orchestrator.core import files, subprocesses; from orchestrator.runtimes.supervisor import patched"
    code = f"from pathlib import Path; here = Path({str(tmp_path)!r}); {imports}\n{step}; {WRITE}"
    result = run(code, stdout=closed_pipe)
    assert result.returncode == (0 if step in STEPS else 141), result.stderr


def test_lost_message_does_not_end_command(closed_pipe: int) -> None:
    result = run("print('message', file=sys.stderr); streams.write(sys.stdout, 'result')", stderr=closed_pipe)
    assert (result.returncode, result.stdout) == (0, "result")


def test_lost_message_in_shared_pipe_ends_command(closed_pipe: int) -> None:
    result = run("print('message', file=sys.stderr)", stdout=closed_pipe, stderr=closed_pipe)
    assert result.returncode == 141


def test_thread_does_not_end_command_on_closed_pipe(closed_pipe: int) -> None:
    threads = "import threading; t = threading.Thread(target=print, args=('x',)); t.start(); t.join(); "
    assert run(threads + REPORT, stdout=closed_pipe).stderr == "still here, Broken pipe"


def test_library_output_to_full_disk_is_dropped() -> None:
    with Path("/dev/full").open("wb") as full:
        result = run(f"print('x' * 100_000); import rich; rich.print('y'); {REPORT}", stdout=full)
    assert (result.returncode, result.stderr) == (0, "still here, No space left on device")


def test_closed_descriptor_numbers_are_not_reused() -> None:
    code = "file = open('/proc/self/stat'); sys.exit(10 + file.fileno() + 50 * (None in (sys.stdin, sys.stdout)))"
    assert run(code, before=lambda: [os.close(number) for number in (0, 1, 2)]).returncode == 13


def test_child_programs_inherit_usable_standard_streams() -> None:
    code = "import subprocess; sys.exit(subprocess.run(['sh', '-c', 'echo x && echo y >&2']).returncode)"
    assert run(code, before=lambda: [os.close(number) for number in (1, 2)]).returncode == 0


def test_unencodable_characters_are_escaped() -> None:
    result = run("streams.write(sys.stdout, 'caf\\u00e9')", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stdout) == (0, "caf\\xe9")


def test_line_after_truncated_line_starts_on_new_line(tmp_path: Path) -> None:
    """The disk is full for a while, so that only half of the first line is written."""
    limit = "import resource; hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]; "
    set_to = "resource.setrlimit(resource.RLIMIT_FSIZE, ({}, hard)); "
    code = limit + set_to.format(4) + "streams.write(sys.stdout, 'first event\\n'); "
    code += set_to.format("hard") + "streams.write(sys.stdout, 'second event\\n')"
    path = tmp_path / "log"
    with path.open("wb") as file:
        result = run(code, stdout=file)
    assert (result.returncode, path.read_text()) == (0, "firs\nsecond event\n")


def test_nonblocking_pipe_receives_all_output() -> None:
    """`ssh` and shells make shared pipes non-blocking; output larger than the pipe's buffer used to fail."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    argv = [sys.executable, "-c", SETUP + "streams.write(sys.stdout, 'x' * 1_000_000)"]
    with subprocess.Popen(argv, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        select.select([reader], [], [])
        with os.fdopen(reader, "rb") as pipe:
            assert len(pipe.read()) == 1_000_000
        assert process.wait() == 0


def test_reproduce_step_succeeds_when_output_is_lost(closed_pipe: int) -> None:
    """`deploy reproduce` runs steps for hours and used to report such a step as failed."""
    step = "from orchestrator.cli.reproduce import _run_step; sys.exit(_run_step(['{}']))"
    with Path("/dev/full").open("wb") as full:
        assert run(step.format("profiles"), stdout=full).returncode == 0
    assert run(step.format("profiles"), stdout=closed_pipe).returncode == 0
    assert run(step.format("nonsense"), stdout=closed_pipe).returncode == 2
