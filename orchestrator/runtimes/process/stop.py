"""Stopping a server: ending its processes, which their markers identify, and recording the stop."""

import dataclasses
import signal
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from orchestrator.core.console import warn
from orchestrator.core.errors import DeployError, HostError
from orchestrator.core.files import remove_file
from orchestrator.core.polling import poll_until
from orchestrator.core.procfs import (
    Process,
    ProcessMarkers,
    find_process,
    process_identity,
    server_processes,
    signal_processes,
)
from orchestrator.runtimes.supervisor.record import CONFIG, FILE, Record, read_record, write_stopped

_POLL: Final = 0.05  # seconds between two polls of /proc
_RECORD_TIMEOUT: Final = 3.0  # seconds for a supervisor to record the end of its server
_AFTER_KILL: Final = 5.0  # seconds for the kernel to end killed processes


def is_serving(markers: ProcessMarkers) -> bool:
    """Return whether a server or its supervisor is running; leftover child processes do not count."""
    return any(
        find_process(identity) is not None for identity in (markers.supervisor, markers.server) if identity is not None
    )


def runs(markers: ProcessMarkers) -> bool:
    """Return whether any process of a server is running."""
    return is_serving(markers) or bool(server_processes(markers))


def terminate(name: str, markers: ProcessMarkers, *, grace: float) -> None:
    """Send SIGTERM to the server, wait `grace` seconds for it to drain, then SIGKILL the rest. Raises DeployError."""
    if not (running := server_processes(markers)):
        return
    supervisors = ask(markers, running)
    if poll_until(lambda alive: not alive, lambda: runs(markers), timeout=grace, interval=_POLL):
        for excluded, seconds in ((supervisors, _RECORD_TIMEOUT), ([], _AFTER_KILL)):
            _kill(markers, excluded, timeout=seconds)
    if survivors := ", ".join(str(process.pid) for process in server_processes(markers)):
        hint = "`ps -o stat,wchan -p PID` shows what they wait for"
        raise DeployError(f"cannot stop processes of `{name}`: {survivors}", hint=hint)


def ask(markers: ProcessMarkers, running: Sequence[Process]) -> list[Process]:
    """Send SIGTERM to the server whose processes are `running`; return its supervisors."""
    server = find_process(markers.server) if markers.server else None
    leaders = (process for process in running if process.pid == process.session)
    supervisors = [leader for leader in leaders if markers.supervisor in {None, process_identity(leader.pid)}]
    signal_processes([server] if server else supervisors or running, signal.SIGTERM)  # a supervisor forwards the signal
    return supervisors


def _kill(markers: ProcessMarkers, excluded: Collection[Process], *, timeout: float) -> None:
    """Send SIGKILL to every process, new ones included, until none is left or the time is up."""

    def kill(running: Collection[Process]) -> None:
        signal_processes([process for process in running if process not in excluded], signal.SIGKILL)

    poll_until(
        lambda running: not running, lambda: server_processes(markers), timeout=timeout, interval=_POLL, on_tick=kill
    )


def record_end(record: Record, run_dir: Path) -> None:
    """Record that a server was stopped; a write error is only reported, since the server has ended."""
    try:
        remove_file(run_dir / CONFIG)
        write_stopped(run_dir / FILE, dataclasses.asdict(read_record(run_dir) or record))
    except (OSError, HostError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        hint = f"fix that, then run `deploy down {record.name}` again"
        warn(f"stopped `{record.name}`, but cannot write `{run_dir / FILE}`: {reason}", hint=hint)
