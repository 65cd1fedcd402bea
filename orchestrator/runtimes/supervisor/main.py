"""The parent process of a server: writes its record and its redacted log, reaps it, and cleans up after it.

`python -m orchestrator.runtimes.supervisor.main LOCK` reads a request (JSON) from stdin and detaches a supervisor into
its own session. It exits with 0 once the server runs, else with 1 and the reason on stderr. The request comes through a
pipe because it may hold secrets; if the caller dies while writing it, nothing is started. LOCK is the descriptor of the
lock on the handover (`process/runtime.py`), held until the record exists. A job on a cluster node calls `serve`
itself and stays in the foreground.

::

    session ─┬─ supervisor      reads the server's output, redacts it, appends it to server.log
             └─ server ─┬─ …    its own process group; the kernel kills it if the supervisor is killed
                        └─ …    the supervisor inherits orphans, and ends them after the server
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from orchestrator.core.errors import HostError, StartError
from orchestrator.core.files import remove_file
from orchestrator.core.logs.lines import redacted
from orchestrator.core.logs.rotation import RotatingLog
from orchestrator.core.procfs import ProcessMarkers, process_identity, server_processes, signal_processes
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import set_known
from orchestrator.core.streams import write
from orchestrator.core.subprocesses import PIPE, Program, start
from orchestrator.engine.launch import key_file_words
from orchestrator.runtimes.base import LOG
from orchestrator.runtimes.supervisor.record import CONFIG, Record, write_record

STARTED: Final = b"started"

_PIPE: Final = 1 << 20  # bytes: the maximum for unprivileged users (pipe(7)); a larger buffer absorbs bursts
_CHUNK_BYTES: Final = 1 << 18
_INTERVAL: Final = 0.25  # seconds between two checks of a server that writes nothing
_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """The request to start a server. `config` is the text of sglang's `--config` file, which holds the API key."""

    run_dir: str
    cwd: str
    argv: tuple[str, ...]
    env: dict[str, str]
    secret_env: dict[str, str]
    config: str | None
    secrets: tuple[str, ...]  # all secrets known to the caller; none may appear in the log
    name: str
    profile: str
    plan_digest: str
    url: str
    token: str  # already in the environment of this process
    record: str  # file name of the record, in the run directory

    @classmethod
    def read(cls, text: str) -> "StartRequest":
        """Parse the JSON of `dataclasses.asdict(request)`."""
        data = json.loads(text)
        return cls(**{**data, **{key: tuple(data[key]) for key in ("argv", "secrets")}})


def main() -> int:
    """Detach a supervisor and wait for its report."""
    request = StartRequest.read(sys.stdin.read())
    set_known(request.secrets)
    lock = int(sys.argv[1])
    listen, speak = os.pipe()
    if os.fork():
        os.close(speak)
        with os.fdopen(listen, "rb") as pipe:
            word = pipe.read()
        if word != STARTED:
            write(sys.stderr, word.decode(errors="replace") or "the supervisor exited")
        return 0 if word == STARTED else 1
    os.close(listen)
    os.setsid()
    _detach_from_terminal()
    with os.fdopen(speak, "wb", buffering=0) as pipe:
        supervise(request, pipe, lock)
    return 0


def supervise(request: StartRequest, pipe: IO[bytes], lock: int) -> None:
    """Start the server, report it, release the lock, and wait until the server and all its children have ended."""

    def report_start(_: Program) -> None:
        with contextlib.suppress(BrokenPipeError):
            pipe.write(STARTED)
        pipe.close()
        os.close(lock)

    try:
        serve(request, report_start)
    except StartError as error:
        pipe.write(error.message.encode())


def serve(request: StartRequest, started: Callable[[Program], None]) -> int:
    """Start the server, call `started`, wait until the server and its children have ended; return the exit code.

    Raises StartError if it cannot be started, and leaves nothing behind.
    """
    run_dir = Path(request.run_dir)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    record = Record(
        name=request.name,
        profile=request.profile,
        plan_digest=request.plan_digest,
        url=request.url,
        argv=_argv(request),
        started_at=_now(),
        token=request.token,
        supervisor=process_identity(os.getpid()),
        server=None,
        output=None,
        exit_code=None,
        ended_at=None,
        stopped=False,
    )
    try:
        log = RotatingLog(run_dir / LOG)
        write_record(run_dir, record, request.record)  # first: a server without a record could not be found again
        server = _spawn(request)
        output = f"pipe:[{os.fstat(server.output.fileno()).st_ino}]"
        record = replace(record, server=process_identity(server.pid), output=output)
        write_record(run_dir, record, request.record)
    except (OSError, HostError) as error:
        for name in (request.record, CONFIG):
            with contextlib.suppress(OSError):
                remove_file(run_dir / FileName(name))
        reason = error.message if isinstance(error, HostError) else f"{error.strerror}: `{error.filename}`"
        raise StartError(reason) from error
    started(server)
    for text in redacted(_output(server, record.markers)):
        with contextlib.suppress(OSError):  # a full disk must not end a healthy server
            log.write(text.encode())
    code = server.wait()
    code = 128 - code if code < 0 else code
    with contextlib.suppress(OSError):  # a full disk; even without the record, /proc shows that the server has ended
        write_record(run_dir, replace(record, exit_code=code, ended_at=_now()), request.record)
    return code


def _argv(request: StartRequest) -> tuple[str, ...]:
    return (*request.argv, *key_file_words(f"{request.run_dir}/{CONFIG}")) if request.config else request.argv


def _spawn(request: StartRequest) -> Program:
    # A working directory on sys.path could shadow a module; without a terminal, output would arrive in blocks.
    fixed = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    config = Path(request.run_dir, CONFIG)
    if request.config:
        remove_file(config)  # left by an earlier start that was killed
        os.mkfifo(config, 0o600)
    server = start(
        _argv(request),
        cwd=request.cwd,
        env={**fixed, **request.env, **request.secret_env},
        output=PIPE,
        tied=True,
    )
    with contextlib.suppress(OSError):  # the system, or this user, allows no larger pipe
        fcntl.fcntl(server.output, fcntl.F_SETPIPE_SZ, _PIPE)
    signal.signal(signal.SIGTERM, lambda *_: server.send(signal.SIGTERM))
    if request.config:
        threading.Thread(target=_hand_over, args=(config, request.config.encode(), server), daemon=True).start()
    return server


def _hand_over(fifo: Path, text: bytes, server: Program) -> None:
    """Write the config to its one reader, and remove the FIFO."""
    try:
        while server.code is None:
            with contextlib.suppress(OSError):  # ENXIO: no reader yet
                pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, text)
                os.close(pipe)
                return
            time.sleep(0.02)
    finally:
        remove_file(fifo)


def _output(server: Program, markers: ProcessMarkers) -> Iterator[bytes]:
    """Yield the output of the server and its children until all of them have ended."""
    source = [server.output.fileno()]
    while True:
        _collect_orphans(server)
        if ended := server.code is not None:
            _end_children(server, markers)
        readable, _, _ = select.select(source, [], [], 0 if ended else _INTERVAL if source else _INTERVAL / 5)
        if readable and (piece := os.read(source[0], _CHUNK_BYTES)):
            yield piece
        elif ended:
            return
        elif readable:  # closed while the server runs: only wait for its end
            source = []


def _collect_orphans(server: Program) -> None:
    """Reap ended orphans of the server, which are children of this process."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid != server.pid:
                os.waitid(os.P_PID, ended.si_pid, os.WEXITED | os.WNOHANG)
            elif server.code is None:  # another thread is reaping it, and keeps its exit code
                return


def _end_children(server: Program, markers: ProcessMarkers) -> None:
    """Kill the remaining processes of the server in all sessions."""
    pid = os.getpid()
    while running := [process for process in server_processes(markers) if process.pid != pid]:
        signal_processes(running, signal.SIGKILL)
        time.sleep(0.02)
        _collect_orphans(server)


def _detach_from_terminal() -> None:
    """Detach from the caller's terminal: survive its end, and close its files."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null_device = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null_device, stream)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
