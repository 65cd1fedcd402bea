"""The `process` runtime: a server as a process of this machine, for rented pods that have no Docker.

A start is handed to a supervisor (`supervisor.py` beside this file) which outlives the command that asked for it.
What runs is read from the record beside the log and checked against /proc, so a server is found again after its starter
was killed, at whatever moment, and a pid that now belongs to somebody else is not taken for it.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from orchestrator.core import shell
from orchestrator.core.errors import DeployError, NameTakenError, StartError
from orchestrator.core.log_lines import LogTail
from orchestrator.core.paths import Home
from orchestrator.core.procfs import family, find_process
from orchestrator.core.secret import Secret
from orchestrator.core.signals import held
from orchestrator.core.waiting import look_until
from orchestrator.engine import delivery
from orchestrator.render import Artifacts
from orchestrator.runtimes.base import LOG, Handle, ServerState, Status
from orchestrator.runtimes.process.record import FILE, Record, read_record, write_record
from orchestrator.runtimes.process.supervisor import CONFIG, StartRequest

_POLL: Final = 0.05  # seconds between two looks at /proc
_LAST_WORD: Final = 3.0  # seconds a supervisor has to record the end of its server
_AFTER_KILL: Final = 5.0  # seconds the kernel has to end what was killed


class ProcessRuntime:
    """Servers as processes; their working directory is the tool's home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Handle:
        """See `Runtime.start`. `run_dir` is a directory below `runs/<name>/` of the tool's home."""
        request = self._request(artifacts, name=name, run_dir=run_dir, secrets=secrets)
        with self._claim(name):
            if taken := self.find(name):
                raise NameTakenError(
                    f"there is a server `{name}`", where=taken[0].run_dir, hint=f"`deploy down {name}`"
                )
            try:
                with held():
                    supervisor = shell.own("orchestrator.runtimes.process.supervisor")
                    result = shell.run(supervisor, stdin=json.dumps(dataclasses.asdict(request)))
            except BaseException:  # Ctrl-C, above all: nobody will know of this server
                _end(run_dir, grace=0)
                raise
        record = read_record(run_dir)
        if not result.ok or record is None:
            raise StartError(f"`{request.argv[0]}` was not started", where=str(run_dir), details=result.stderr.strip())
        return _handle(record, run_dir)

    def find(self, name: str | None = None) -> tuple[Handle, ...]:
        """See `Runtime.find`."""
        names = [name] if name is not None else sorted(path.name for path in self._home.runs.glob("*"))
        found = (_latest(self._home.runs / each) for each in names)
        return tuple(_handle(record, run_dir) for run_dir, record in filter(None, found) if not record.stopped)

    def state(self, handle: Handle) -> ServerState:
        """See `Runtime.state`."""
        record = read_record(Path(handle.run_dir))
        if record is None or record.stopped or record.supervisor != handle.identity:
            return ServerState(status=Status.ABSENT, exit_code=None, restarts=0, started_at=None, detail="")
        running = record.exit_code is None and bool(family(record.supervisor))
        return ServerState(
            status=Status.RUNNING if running else Status.EXITED,
            exit_code=record.exit_code,
            restarts=0,
            started_at=record.started_at,
            detail="" if running else _how_it_ended(record.exit_code),
        )

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[str]:
        """See `Runtime.logs`. What is stored is redacted already."""
        tail = LogTail(Path(handle.run_dir, LOG))
        while follow and self.state(handle).status is Status.RUNNING:
            yield from tail()
            time.sleep(_POLL * 4)
        yield from tail.to_end()

    def tail(self, handle: Handle) -> Callable[[], Iterator[str]]:
        """See `Runtime.tail`."""
        return LogTail(Path(handle.run_dir, LOG))

    def close(self) -> None:
        """See `Runtime.close`. Nothing is held."""

    def stop(self, handle: Handle, *, grace: float) -> None:
        """See `Runtime.stop`. Raises DeployError for a process that the kernel does not end."""
        run_dir = Path(handle.run_dir)
        record = read_record(run_dir)
        if record is not None and record.supervisor == handle.identity:
            _end(run_dir, grace=grace)

    def _request(
        self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]
    ) -> StartRequest:
        plan, ways = artifacts.plan, delivery(secrets, api_key_env=artifacts.plan.server.api_key_env)
        return StartRequest(
            run_dir=str(run_dir.absolute()),
            cwd=str(self._home.root),
            argv=artifacts.command.argv,
            env=dict(artifacts.command.env),
            without=tuple(secrets),
            secret_env={variable: secret.reveal() for variable, secret in ways.env.items()},
            config=ways.config.reveal() if ways.config else None,
            secrets=tuple(secret.reveal() for secret in secrets.values()),
            name=name,
            profile=plan.profile,
            plan_digest=plan.digest,
            url=plan.server.url,
        )

    @contextlib.contextmanager
    def _claim(self, name: str) -> Iterator[None]:
        """Let one start of a name happen at a time: the second one finds the first one's record."""
        folder = self._home.runs / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _latest(folder: Path) -> tuple[Path, Record] | None:
    """The newest record of a name: a start refuses a taken one, so no older server runs."""
    records = [(path.parent, read_record(path.parent)) for path in folder.glob(f"*/{FILE}")]
    known = [(run_dir, record) for run_dir, record in records if record is not None]
    return max(known, key=lambda pair: (pair[1].started_at, pair[0].name), default=None)


def _handle(record: Record, run_dir: Path) -> Handle:
    return Handle(
        runtime="process",
        name=record.name,
        profile=record.profile,
        plan_digest=record.plan_digest,
        url=record.url,
        run_dir=str(run_dir.absolute()),
        identity=record.supervisor,
    )


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "its supervisor was killed, and the server with it"
    if code <= 128:
        return f"exit code {code}"
    return f"killed by {signal.Signals(code - 128).name}" if code - 128 in set(signal.Signals) else f"exit code {code}"


def _end(run_dir: Path, *, grace: float) -> None:
    """SIGTERM to the server, `grace` seconds to drain, SIGKILL to all that is left; then the record says so."""
    record = read_record(run_dir)
    if record is None or record.stopped:
        return
    if record.server is not None and (server := find_process(record.server)):
        _signal([server.pid], signal.SIGTERM)
    if not _ended(record, within=grace):
        supervisor = find_process(record.supervisor)
        _kill(record, spare=supervisor.pid if supervisor else None)
        if not _ended(record, within=_LAST_WORD):
            _kill(record, spare=None)
    if not _ended(record, within=_AFTER_KILL):
        left = ", ".join(str(process.pid) for process in family(record.supervisor))
        raise DeployError(f"processes of `{record.name}` do not end: {left}", hint="`ps -o stat,wchan -p PID` says why")
    (run_dir / CONFIG).unlink(missing_ok=True)
    write_record(run_dir, dataclasses.replace(read_record(run_dir) or record, stopped=True))


def _kill(record: Record, *, spare: int | None) -> None:
    _signal([process.pid for process in family(record.supervisor) if process.pid != spare], signal.SIGKILL)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _ended(record: Record, *, within: float) -> bool:
    """Whether every process of the record ends within that many seconds."""
    return not look_until(lambda left: not left, lambda: family(record.supervisor), within=within, pause=_POLL)
