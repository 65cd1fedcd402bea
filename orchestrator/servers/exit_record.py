"""The end of a server: who stops one keeps in its run directory how it ended, as its runtime forgets that."""

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
from orchestrator.servers.group import RunningServer, ServerGroup

RESTARTS_FILE: Final = "restarts.json"  # when `deploy watch` began to heal this start, and why
STOPPED_FOR_RESTART: Final = "ended by `deploy watch`, to be started again"  # why a server was stopped
UP_FAILED: Final = "`up` failed"


def stop_server(runtime: ServerGroup, handle: RunningServer, *, home: Home, grace: float, reason: str) -> None:
    """Stop a server, and keep `why`, or how it had ended before. Raises as `Runtime.stop`."""
    ignore_sigpipe()
    state = None
    with suppress(DeployError):  # what cannot be asked can often be stopped
        state = runtime.state(handle)
    runtime.stop(handle, grace=grace)
    run_dir = Path(handle.run_dir)
    if home.holds(run_dir, handle.name) and (state is None or state.status is not Status.NOT_FOUND):
        record_exit(RunDir(run_dir), reason, state)


def record_exit(run: RunDir, reason: str, state: ServerState | None = None) -> None:
    """Keep how a start ended: by itself where its last `state` says so, else now, and `why` somebody ended it.

    `why` holds no secret: `deploy watch` reads it again, and a key may be a word of it.
    A disk that does not take it keeps nobody from stopping a server; it takes, in place, that this is no healing's
    start any more, which a watch would begin again.
    """
    by_itself = state is not None and state.status is Status.EXITED
    record = {
        "asked": reason,
        "how": redact(state.detail or "it exited") if state and by_itself else reason,
        "ended_at": state.ended_at if state and by_itself else datetime.now(UTC).isoformat(timespec="seconds"),
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
    """What the runtime's own record in a run directory says of the server; None where there is none to be read."""
    with suppress(HostError):
        return next(filter(None, (runtime_class(name).saved_state(run.path) for name in REGISTRY)), None)
    return None


def failure_reason(failure: BaseException) -> str:
    """What the run directory keeps of a start that failed."""
    code = failure.exit_code if isinstance(failure, DeployError) else DeployError.exit_code
    return f"{UP_FAILED} with {code}: {redact(str(failure)) or type(failure).__name__}"
