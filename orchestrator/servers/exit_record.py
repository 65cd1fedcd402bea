"""The exit record in the run directory: how a server ended, which its runtime forgets after the stop."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.core.errors import DeployError, HostError
from orchestrator.core.files import overwrite
from orchestrator.core.paths import Home
from orchestrator.core.secrets import redact
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.runs.run_dir import REQUEST_FILE, RunDir
from orchestrator.runtimes import REGISTRY, runtime_class
from orchestrator.runtimes.base import EXIT_FILE, ServerState, Status
from orchestrator.servers.group import Server

RESTARTS_FILE: Final = "restarts.json"  # when `deploy watch` restarted the server of this run, and why
STOPPED_FOR_RESTART: Final = "stopped by `deploy watch` for a restart"  # the reason for a stop
UP_FAILED: Final = "`up` failed"
REMOVED: Final = "removed"  # the reason for stopping a replica that the new plan lacks


def stop_server(server: Server, *, home: Home, grace: float, reason: str) -> None:
    """Stop a server and record `reason`, or its exit if it had already exited. Raises the errors of `Runtime.stop`."""
    ignore_sigpipe()
    state = None
    with suppress(DeployError):  # a stop usually works even if the state is unknown
        state = server.current_state()
    server.stop(grace=grace)
    run_dir = Path(server.run_dir)
    if home.holds(run_dir, server.name) and (state is None or state.status is not Status.NOT_FOUND):
        record_exit(RunDir(run_dir), reason, state)


def record_exit(run: RunDir, reason: str, state: ServerState | None = None) -> None:
    """Record how a run ended: with the exit in `state`, or with a stop now for `reason`.

    `reason` must contain no secret: it is not redacted, because `deploy watch` reads it again. If the disk is full,
    clear the flag `by_watch` in place instead, so that no watcher restarts the stopped server.
    """
    exited = state is not None and state.status is Status.EXITED
    record = {
        "asked": reason,
        "how": redact(state.detail or "it exited") if state and exited else reason,
        "ended_at": state.ended_at if state and exited else datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": state.exit_code if state else None,
        "restarts": state.restarts if state else 0,
    }
    try:
        run.save_state(EXIT_FILE, record)
    except HostError:
        if reason != STOPPED_FOR_RESTART:
            with suppress(OSError):
                overwrite(run.path / REQUEST_FILE, b'"by_watch": true', b'"by_watch":false')


def saved_state(run: RunDir) -> ServerState | None:
    """Return the state that the runtime saved in a run directory; None if it is missing or unreadable."""
    with suppress(HostError):
        return next(filter(None, (runtime_class(name).saved_state(run.path) for name in REGISTRY)), None)
    return None


def failure_reason(failure: BaseException) -> str:
    """Return the reason to record after a failed start."""
    code = failure.exit_code if isinstance(failure, DeployError) else DeployError.exit_code
    return f"{UP_FAILED} with {code}: {redact(str(failure)) or type(failure).__name__}"
