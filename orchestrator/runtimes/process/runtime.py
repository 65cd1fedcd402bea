"""The `process` runtime: a server as a process of this host, for rented pods without Docker.

`start` hands the server to a supervisor (`orchestrator.runtimes.supervisor`), which outlives the command. The record
next to the log is checked against /proc: `find` finds a server even if the command was killed, and does not mistake a
reused pid for it. A server with an unreadable record is still listed, and can be stopped if the environment that its
processes inherited identifies them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from orchestrator.core import subprocesses
from orchestrator.core.errors import HostError, StartError
from orchestrator.core.files import move
from orchestrator.core.imported import Imported
from orchestrator.core.locks import hold, is_held
from orchestrator.core.logs.lines import LogTail
from orchestrator.core.polling import poll_until
from orchestrator.core.procfs import (
    VARIABLE,
    Process,
    ProcessMarkers,
    read_cmdline,
    resident_bytes,
    server_processes,
    tokens,
)
from orchestrator.core.record_version import OtherVersionError
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret, secret_variables
from orchestrator.core.signals import defer_signals
from orchestrator.plan.plan import NAME
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import known_names, subfolders
from orchestrator.runtimes.base import LOG, NOT_FOUND, STOPPED, Cache, Runtime, ServerState, Status, Unit
from orchestrator.runtimes.process.stop import ask, is_serving, record_end, runs, terminate
from orchestrator.runtimes.replicas import (
    RecordedRun,
    current_runs,
    require_name_free,
    role_of,
    run_root,
)
from orchestrator.runtimes.saved_logs import followed_log, saved_log
from orchestrator.runtimes.supervisor.main import StartRequest
from orchestrator.runtimes.supervisor.record import (
    FILE,
    UNREADABLE,
    Record,
    describe_exit,
    is_copy,
    read_record,
    record_dirs,
    run_marker,
)
from orchestrator.runtimes.supervisor.request import start_request

SUPERVISOR: Final = "orchestrator.runtimes.supervisor.main"  # run as a program, once per server
# The lock on a handover, from the attempt to start a server until its record exists. The starting command holds it,
# and the supervisor inherits it: if the command is killed in between, the next command waits for the record instead
# of finding no server.
_START_LOCK: Final = ".start.lock"
_HANDOVER: Final = 10.0  # maximum seconds for a handover, which takes less than one; then other commands continue
_POLL: Final = 0.02


class ProcessRuntime(Runtime):
    """Servers as processes. Their working directory is the tool's home."""

    name = "process"
    rules = Imported("orchestrator.runtimes.process.checks:RULES")
    checks = Imported("orchestrator.runtimes.process.checks:CHECKS")
    engine_python = Imported("orchestrator.runtimes.supervisor.interpreter:interpreter_argv")
    render = Imported("orchestrator.runtimes.supervisor.prepare:rendered")
    files = Imported("orchestrator.runtimes.supervisor.prepare:launcher_files")
    prepare = Imported("orchestrator.runtimes.supervisor.prepare:prepare")
    kernel_store = Imported("orchestrator.runtimes.supervisor.prepare:kernel_store")
    builtin_tables = Imported("orchestrator.runtimes.supervisor.prepare:aiter_tables")

    @classmethod
    def saved_state(cls, run_dir: Path) -> ServerState | None:
        record = read_record(run_dir)
        if record is None:
            return None
        state = _state(record)
        stopped = record.stopped and state.status is Status.EXITED
        return replace(state, detail=STOPPED) if stopped else state

    def caches(self) -> Sequence[Cache]:
        from orchestrator.runtimes.supervisor.patched import copies  # noqa: PLC0415 - `status` does not need it

        return copies(self._home.packages, self)

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Unit:
        """See `Runtime.start`. `run_dir` is a directory below `runs/<name>/` of the tool's home."""
        request = start_request(
            artifacts, name=name, run_dir=run_dir, cwd=self._home.root, secrets=secrets, record=FILE
        )
        with hold(self._home.make_runs(name) / _START_LOCK, wait=True) as lock:
            require_name_free(run_dir.absolute(), _servers(self._home.runs / FileName(name)))
            environ = {**dict.fromkeys(secret_variables()), VARIABLE: request.token}
            try:
                with defer_signals():
                    record = _launch(request, environ, lock=lock.fileno())
            except BaseException:  # mainly Ctrl-C; otherwise this server would remain without a record
                with defer_signals():
                    self._cancel_start(name, run_dir)
                raise
        return _unit(record, run_dir)

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        """See `Runtime.find`. Raises HostError if the runs of this home cannot be listed."""
        names = known_names(self._home) if name is None else [name] if NAME.match(name) else []
        folders = [self._home.runs / FileName(name) for name in names]
        folders = [folder for folder in folders if not folder.is_symlink()]
        for folder in folders:
            lock = folder / _START_LOCK
            if is_held(lock):  # a start in progress will write its record
                poll_until(lambda held: not held, partial(is_held, lock), timeout=_HANDOVER, interval=_POLL)
        recorded = [server for folder in folders for server in _servers(folder)]
        deleted = [server for server in _deleted(self._home.runs) if name in {None, server.name}]
        return tuple(replace(unit, state=self.state(unit)) for unit in (*recorded, *deleted))

    def state(self, unit: Unit) -> ServerState:
        try:
            if not unit.runtime_id:
                subfolders(Path(unit.run_dir))  # raises an error with the reason if the name's folder cannot be listed
            record = read_record(Path(unit.run_dir))
        except HostError as error:
            return ServerState(status=Status.UNKNOWN, detail=f"{error.message}; {error.hint}")
        if not Path(unit.run_dir).exists() and server_processes(ProcessMarkers(token=run_marker(Path(unit.run_dir)))):
            deleted = f"running, but its run directory `{unit.run_dir}` was deleted"
            return ServerState(status=Status.UNKNOWN, detail=deleted)
        if record is None or record.stopped or record.supervisor != unit.runtime_id:
            return NOT_FOUND
        return _state(record)

    def process_cmdlines(self, unit: Unit) -> tuple[str, ...]:
        return tuple(title for process in _running(unit) if (title := read_cmdline(process.pid)))

    def host_memory(self, unit: Unit) -> int | None:
        return sum(resident_bytes(process.pid) for process in _running(unit)) or None

    def logs(self, unit: Unit, *, follow: bool) -> Iterator[str]:
        """See `Runtime.logs`. The supervisor has stored the log without secrets."""
        return followed_log(self, unit) if follow else saved_log(unit)

    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        return LogTail(Path(unit.run_dir, LOG))

    def stop(self, unit: Unit, *, grace: float) -> None:
        """See `Runtime.stop`.

        Raises DeployError for a process that the kernel does not end, and HostError for a damaged record if no running
        process can be attributed to its server. Every version marks a run's processes with the run directory.
        """
        run_dir = Path(unit.run_dir)
        try:
            record = read_record(run_dir)
        except HostError as error:
            markers = ProcessMarkers(token=run_marker(run_dir))
            if not server_processes(markers) and not isinstance(error.__cause__, OtherVersionError):
                raise
            terminate(unit.name, markers, grace=grace)
            with suppress(OSError):  # the next listing shows the record again
                move(run_dir / FILE, run_dir / UNREADABLE)
            return
        if record is None and not run_dir.exists():
            terminate(unit.name, ProcessMarkers(token=run_marker(run_dir)), grace=grace)
        if record is not None and record.supervisor == unit.runtime_id and not record.stopped:
            terminate(unit.name, record.markers, grace=grace)
            record_end(record, run_dir)

    def request_stop(self, unit: Unit) -> None:
        record = read_record(Path(unit.run_dir))
        if record is not None and not record.stopped:
            ask(record.markers, server_processes(record.markers))

    def _cancel_start(self, name: str, run_dir: Path) -> None:
        """End the processes of a failed start, with or without a record."""
        try:
            record = read_record(run_dir)
        except HostError:
            record = None
        terminate(name, record.markers if record else ProcessMarkers(token=run_marker(run_dir)), grace=0)
        if record is not None:
            record_end(record, run_dir)


def _running(unit: Unit) -> tuple[Process, ...]:
    """Return the processes of a unit that was not stopped; () if its record is unreadable."""
    try:
        record = read_record(Path(unit.run_dir))
    except HostError:
        return ()
    return server_processes(record.markers) if record is not None and not record.stopped else ()


def _state(record: Record) -> ServerState:
    running, detail = record.exit_code is None and is_serving(record.markers), ""
    if record.exit_code is not None:
        detail = describe_exit(record.exit_code)
    elif not running:
        detail = "the supervisor was killed, and the server with it"
        if count := len(server_processes(record.markers)):
            detail += f"; {count} of its processes are still running"
    return ServerState(
        status=Status.RUNNING if running else Status.EXITED,
        exit_code=record.exit_code,
        started_at=record.started_at,
        ended_at=record.ended_at,
        detail=detail,
    )


def _launch(request: StartRequest, environ: Mapping[str, str | None], *, lock: int) -> Record:
    """Hand a start and its lock to a supervisor; return the record. Raises StartError."""
    supervisor = subprocesses.python_module_argv(SUPERVISOR, str(lock))
    result = subprocesses.run(supervisor, stdin=json.dumps(dataclasses.asdict(request)), env=environ, inherits=(lock,))
    record = read_record(Path(request.run_dir))
    if not result.ok or record is None:
        reason = result.stderr.strip()
        raise StartError(f"cannot start `{request.argv[0]}`", location=request.run_dir, details=reason)
    return record


def _servers(folder: Path) -> list[Unit]:
    """Return the units of the current runs of a name, then those with an unreadable record."""
    recorded, alive, unreadable = dict[tuple[str, str], RecordedRun](), set[Path](), list[Unit]()
    try:
        run_dirs = subfolders(folder)
    except HostError:
        return [Unit.unreadable("process", folder.name, folder)]
    for run_dir in run_dirs:
        records: dict[Path, Record] = {}
        for record_dir in record_dirs(run_dir):
            try:
                if (record := read_record(record_dir)) is not None and not is_copy(record, record_dir):
                    records[record_dir] = record
            except HostError:
                unreadable.append(Unit.unreadable("process", folder.name, record_dir))
        if any(not record.stopped and runs(record.markers) for record in records.values()):
            alive.add(run_dir)
        if records:
            units = {record_dir: _unit(record, record_dir) for record_dir, record in records.items()}
            recorded[next(iter(records.values())).started_at, run_dir.name] = RecordedRun(
                folder=run_dir,
                main_unit=units.pop(run_dir, None),
                replicas=tuple(units.values()),
                stopped=all(record.stopped for record in records.values()),
            )
    newest_first = [recorded[moment] for moment in sorted(recorded, reverse=True)]
    return [*(unit for run in current_runs(newest_first, alive) for unit in run.units), *unreadable]


def _deleted(runs: Path) -> list[Unit]:
    """Return the running servers whose directories below `runs` were deleted, from their supervisors' tokens."""
    top, units = runs.resolve(), []
    for token in sorted(tokens(SUPERVISOR)):
        run_dir = Path(token)
        if not token.isprintable() or run_dir.exists() or not run_dir.is_relative_to(top):
            continue
        folder = run_root(run_dir).parent
        if folder.parent == top and NAME.match(folder.name):
            units.append(Unit.unreadable("process", folder.name, run_dir))
    return units


def _unit(record: Record, run_dir: Path) -> Unit:
    return Unit(
        runtime="process",
        name=record.name,
        profile=record.profile,
        plan_digest=record.plan_digest,
        url=record.url,
        run_dir=str(run_dir.absolute()),
        runtime_id=record.supervisor,
        role=role_of(run_dir.name),
    )
