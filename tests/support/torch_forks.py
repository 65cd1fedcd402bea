"""Run programs with the engine's Python in forks of one process that has imported torch.

The common imports take 6 s of CPU time. The first request starts that process for all workers of a test run; it ends
with the run. Patches that a program makes to modules do not affect other programs.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import socketserver
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, TypeVar

from waits import TIMEOUT

IMPORTED: Final = ("torch", "torchvision.io", "transformers.modeling_layers", "openai")
# These modules read the environment when they are imported. Programs get the same values by default.
_ENVIRON: Final = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
FOLDER: Final = "TORCH_FORKS"  # variable with the folder of the sockets; its name ends with the pid of the test run
_BOUND: Final = 300  # seconds for the imports, on a busy machine
Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Program:
    """The path of a program, or its source as for `python -c`, with its arguments and stdin."""

    program: str
    argv: tuple[str, ...] = ()
    stdin: str = ""


def run_forked(
    python: Path, programs: Mapping[Key, Program], environ: Mapping[str, str] | None = None
) -> Mapping[Key, "subprocess.CompletedProcess[str]"]:
    """Run the programs, one on each core at a time; return their results."""
    requested = dict(os.environ if environ is None else environ)

    def ended(program: Program) -> "subprocess.CompletedProcess[str]":
        with TemporaryFile("w+") as stdin, TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
            stdin.write(program.stdin)
            stdin.seek(0)
            streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
            code = run(str(python), program.program, program.argv, environ=requested, streams=streams)
            out, errors = (stream.seek(0) or stream.read() for stream in (stdout, stderr))
            return subprocess.CompletedProcess([], code, out, errors)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(programs, pool.map(ended, programs.values()), strict=True))


def run(
    python: str, program: str, argv: "tuple[str, ...]", *, environ: Mapping[str, str], streams: "tuple[int, int, int]"
) -> int:
    """Run a program with these descriptors as standard streams; return its exit code, or -N for signal N.

    A program that takes too long is killed, and TimeoutError is raised.
    """
    request = {"program": program, "argv": argv, "environ": dict(environ), "cwd": os.getcwd()}  # noqa: PTH109
    with _connected(python) as connection:
        socket.send_fds(connection, [b"."], streams)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile() as answer:
            code = answer.readline()
    assert code, f"no answer of the process with torch:\n{_address(python).with_suffix('.log').read_text()[-3000:]}"
    return int(code)


def _address(python: str) -> Path:
    return Path(os.environ[FOLDER], Path(python).parent.parent.name)


def _connected(python: str) -> socket.socket:
    """Connect to the process of this interpreter; start it if none listens."""
    address = _address(python)
    address.parent.mkdir(exist_ok=True)
    connection = socket.socket(socket.AF_UNIX)
    with open(address.parent / "lock", "w") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(address))
        except (FileNotFoundError, ConnectionRefusedError):
            address.unlink(missing_ok=True)
            _start(python, address)
            connection.connect(str(address))
    connection.settimeout(TIMEOUT)  # with a timeout, `connect` fails if the backlog is full
    return connection


def _start(python: str, address: Path) -> None:
    log, environ = address.with_suffix(".log"), {"PATH": os.environ["PATH"], **_ENVIRON}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, __file__, str(address)],
            env=environ, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + _BOUND
    while not address.exists():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    process.returncode = 0  # it outlives this process; without this, Popen warns


class _Request(socketserver.StreamRequestHandler):
    """Runs in its own fork, which is the parent of the program."""

    def handle(self) -> None:
        _, streams, _, _ = socket.recv_fds(self.connection, 1, 3)
        requested = json.loads(self.rfile.readline())
        if not (child := os.fork()):
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.closerange(3, max(*streams, self.connection.fileno()) + 1)
            os._exit(_run_program(requested))
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(child)
        if ended not in select.select([ended, self.connection], [], [])[0]:
            os.kill(child, signal.SIGKILL)  # the client has closed the connection
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(f"{code}\n".encode())


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks for each request."""

    max_children = 100
    timeout = 1.0  # seconds between two checks whether the test run has ended


def _run_program(request: Mapping[str, Any]) -> int:
    """Run a program in this process; return its exit code."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update({**_ENVIRON, **request["environ"]})
    program, path = request["program"], [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        if Path(program).is_absolute():
            sys.argv, sys.path[:1] = [program, *request["argv"]], [str(Path(program).parent), *path]
            runpy.run_path(program, run_name="__main__")
        else:
            sys.argv, sys.path[:1] = ["-c", *request["argv"]], ["", *path]
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else bool(error.code)
    except BaseException:  # noqa: BLE001 - like the interpreter
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return code


def serve(address: Path) -> None:
    """Import the modules, and fork for each request until the test run has ended."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    run_of_tests = Path("/proc", address.parent.name.rpartition("-")[2])
    with _Server(f"{address}.new", _Request) as server:
        Path(f"{address}.new").rename(address)  # only now, because the file exists before the socket listens
        while run_of_tests.exists():
            server.handle_request()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
