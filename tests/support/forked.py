"""Run `deploy` as a fork of a process that has already imported it, or with a new interpreter.

The tests start hundreds of commands, and imports are most of the cost of one. As a program, this file forks a child for
each request on its socket and reports how the child ended.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import socketserver
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO, TypeAlias

from orchestrator.core import subprocesses

Fault: TypeAlias = Literal["full", "closed", "gone"]
BOUND = 300  # seconds after which a command counts as hanging
# Includes lazy imports: the Docker SDK alone is half of the CPU time of `status`. None of these modules reads the
# environment when it is imported, except huggingface_hub, which gets endpoint and token as arguments.
_PRELOADED = (
    *(
        f"orchestrator.cli.{name}"
        for name in (
            "main", "ask", "bench", "down", "eval", "history", "inspect", "kernels", "logs", "logprobs", "profiles",
            "quantize", "render", "restart", "rollback", "show", "smoke", "stage", "status", "up", "watch",
        )
    ),
    *(
        f"orchestrator.runtimes.{name}"
        for name in (
            "docker.host", "docker.runtime", "docker.spec", "kubernetes.checks", "kubernetes.creation",
            "kubernetes.runtime", "kubernetes.spec", "process.checks", "process.runtime", "slurm.checks",
            "slurm.runtime", "slurm.spec", "supervisor.interpreter", "supervisor.prepare",
        )
    ),
    *("docker", "encodings.idna", "encodings.unicode_escape", "httpcore", "huggingface_hub.hf_api", "jinja2.sandbox"),
    *("multiprocessing.dummy", "multiprocessing.pool", "multiprocessing.queues", "netrc", "tenacity"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The result of a command. The code is -N for signal N, and None for a command that hung and was killed."""

    words: tuple[str, ...]
    code: int | None
    stdout: str
    stderr: str
    cpu_s: float
    peak_kib: int

    @property
    def in_python_itself(self) -> bool:
        """Return whether the command was interrupted while the interpreter started, before any line of `deploy`."""
        return "KeyboardInterrupt" in self.stderr and "orchestrator" not in self.stderr

    def faults(self, *codes: int) -> Iterator[str]:
        """Yield problems that no command may have: a hang, a traceback, or a code that is not in `codes`."""
        command, text = f"`{' '.join(self.words)[:200]}`", self.stderr[-1500:]
        if self.code is None:
            yield f"{command} hangs: {text}"
        elif self.code not in codes:
            yield f"{command} ends with {self.code}: {text}"
        if "Traceback" in self.stderr or "internal error" in self.stderr:
            yield f"{command} shows a traceback: {text}"


class Command:
    def __init__(self, words: tuple[str, ...], stream: socket.socket, output: Path) -> None:
        """Read the pid from `stream`, which also reports the end. The command writes below `output`."""
        self._words, self._stream, self._output = words, stream, output
        self._ended: Ended | None = None
        weakref.finalize(self, stream.close)  # an open socket of a failed test would fail a later test
        self.pid = int(_line(stream))

    @property
    def stdout(self) -> str:
        return (self._output / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self._output / "stderr").read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the command still runs; afterwards another process may have its pid."""
        if not self.ends_within(0):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def ends_within(self, seconds: float) -> bool:
        return self._ended is not None or bool(select.select([self._stream], [], [], seconds)[0])

    def wait(self) -> Ended:
        """Wait for the end and return the result; kill the command if it hangs."""
        self._ended = self._ended or self._wait()
        return self._ended

    def open(self, name: Literal["stdout", "stderr"]) -> TextIO:
        """Open an output for reading while the command runs."""
        file = (self._output / name).open(errors="replace")
        weakref.finalize(self, file.close)
        return file

    def _wait(self) -> Ended:
        if hangs := not self.ends_within(BOUND):
            self.send(signal.SIGKILL)
        line = _line(self._stream)
        self._stream.close()
        end = json.loads(line)
        stdout, stderr = ((self._output / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return Ended(
            words=self._words,
            code=None if hangs else end["code"],
            stdout=stdout,
            stderr=stderr,
            cpu_s=end["cpu_s"],
            peak_kib=end["peak_kib"],
        )


@dataclass(frozen=True)
class Forks:
    """The process that commands are forked from."""

    address: Path

    def start(
        self,
        words: tuple[str, ...],
        *,
        env: dict[str, str],
        output: Path,
        cwd: Path | None = None,
        fresh: bool = False,
        broken: Mapping[int, Fault] | None = None,
        ignores: Sequence[signal.Signals] = (),
    ) -> Command:
        """Start `deploy` with these words, in `cwd` or in its output folder; `fresh`: with a new interpreter.

        The descriptors in `broken` are a full disk, closed, or a pipe without a reader. The signals in `ignores` are
        ignored, as SIGHUP is under nohup.
        """
        folder = output / str(time.monotonic_ns())
        folder.mkdir(parents=True)
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(str(self.address))
        request = {"words": words, "env": env, "output": str(folder), "cwd": str(cwd or folder), "fresh": fresh}
        request["broken"], request["ignores"] = tuple((broken or {}).items()), tuple(ignores)
        stream.sendall(json.dumps(request).encode() + b"\n")
        return Command(words, stream, folder)


@contextmanager
def forking(folder: Path) -> Iterator[Forks]:
    """Run the process that commands are forked from, for the length of the block."""
    address = folder / "forks"
    log, argv = folder / "forks.log", [sys.executable, __file__, str(address)]
    with log.open("wb") as output, subprocesses.start(argv, output=output, tied=True) as program:
        deadline = time.monotonic() + BOUND
        while not address.exists():
            assert program.code is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield Forks(address)


class _Request(socketserver.StreamRequestHandler):
    """Runs in its own fork, which is the parent of the command."""

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        begun, begins = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.connection.close()
            _become(request, begins)
        os.close(begins)
        os.read(begun, 1)
        self.wfile.write(f"{pid}\n".encode())
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        end = {"code": code, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_kib": usage.ru_maxrss}
        with suppress(BrokenPipeError):
            self.wfile.write(json.dumps(end).encode() + b"\n")


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    max_children = 100


def _become(request: dict[str, Any], begins: int) -> NoReturn:
    """Become the command: set its environment, directory, output and default signals, and run it."""
    os.setsid()
    os.chdir(request["output"])
    for number, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
    _break(request["broken"])
    os.chdir(request["cwd"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ignored in request["ignores"]:
        signal.signal(ignored, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # read TMPDIR again
    words = request["words"]
    if request["fresh"]:
        os.write(begins, b".")
        os.execv(sys.executable, [sys.executable, "-m", "orchestrator", *words])  # noqa: S606
    sys.argv = ["deploy", *words]
    os._exit(_run(begins))


def _break(descriptors: Iterable[tuple[int, Fault]]) -> None:
    """Make descriptors fail as documented in `Forks.start`; broken pipes are the same pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    for number, fault in descriptors:
        if fault == "closed":
            os.close(number)
        else:
            os.dup2(writer if fault == "gone" else os.open("/dev/full", os.O_WRONLY), number)
    os.close(writer)


def _run(begins: int) -> int:
    from orchestrator.__main__ import main

    try:
        os.write(begins, b".")
        os.close(begins)
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - like the interpreter
        traceback.print_exc()
        return 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined] # like the interpreter: threads first
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _warm_up() -> None:
    """Fill the caches: known issues, failure signatures, templates and the parsers of plans and requests."""
    from orchestrator.core.catalog import Catalog
    from orchestrator.core.validation import type_adapter
    from orchestrator.diagnose.signatures import load_catalog
    from orchestrator.plan.plan import Plan
    from orchestrator.planner.planning import load, render_artifacts
    from orchestrator.servers.start.request import UpRequest

    render_artifacts(load("cpu-tiny", catalog=Catalog.shipped()).plan)
    type_adapter(Plan), type_adapter(UpRequest)
    load_catalog()


def _line(stream: socket.socket) -> bytes:
    """Read one line byte by byte, because a later call reads the rest."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := stream.recv(1)):
            raise ConnectionError(line)
        line += byte
    return line


if __name__ == "__main__":
    for module in _PRELOADED:
        importlib.import_module(module)
    _warm_up()
    gc.freeze()
    with _Server(f"{sys.argv[1]}.new", _Request) as server:
        Path(f"{sys.argv[1]}.new").rename(sys.argv[1])  # only now, because the file exists before the socket listens
        server.serve_forever()
