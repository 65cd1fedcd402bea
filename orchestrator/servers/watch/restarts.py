"""Restarts for `deploy watch`."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.core.errors import DeployError, HostError, Interrupted, NameTakenError
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import redact
from orchestrator.runs.run_dir import RunDir, latest_run, name_lock, read_plan, reserved_space
from orchestrator.servers.exit_record import RESTARTS_FILE
from orchestrator.servers.rollback import restart
from orchestrator.servers.servers import Servers, requested_host
from orchestrator.servers.watch.recovery import is_wanted, newest, other_host, saved_restarts
from orchestrator.servers.watch.snapshot import RestartOutcome, RestartResult, describe_location


def restart_dead(home: Home, name: str, dead: str, reason: str) -> RestartResult:
    """Restart `name`, unless another command has acted since run `dead` exited."""
    begun = False

    def on_locked(servers: Servers) -> None:
        nonlocal begun
        run, server = newest(servers, name)
        if run is None or run.path.name != dead or not is_wanted(run, server):
            raise NameTakenError(f"another command has started or stopped `{name}`")
        record = {"at": datetime.now(UTC).isoformat(), "reason": redact(reason)}
        run.save_state(RESTARTS_FILE, {"restarts": [*saved_restarts(run), record]})
        begun = True

    if full := _disk_full(home, name):
        return RestartResult(outcome=RestartOutcome.POSTPONED, message=full)
    try:
        done = restart(name, home, on_locked=on_locked)
    except Interrupted:
        raise
    except (DeployError, OSError) as error:
        disk_full = _disk_full(home, name)
        if disk_full and begun:
            _forget_attempt(home, name, dead)
        if disk_full or (not begun and isinstance(error, (HostError, OSError))):
            outcome = RestartOutcome.POSTPONED
        elif begun:
            outcome = RestartOutcome.FAILED
        else:
            outcome = RestartOutcome.SUPERSEDED if isinstance(error, NameTakenError) else RestartOutcome.REJECTED
        return RestartResult(outcome=outcome, message=disk_full or str(error))
    seconds = "" if done.seconds is None else f", ready after {done.seconds:.1f} s"
    server = done.server
    host = other_host(server.runtime, requested_host(home, name))
    message = f"verified at {describe_location(server.service_url or server.url, host)}{seconds}"
    return RestartResult(outcome=RestartOutcome.VERIFIED, message=message, run=Path(server.run_dir).name)


def _disk_full(home: Home, name: str) -> str:
    """Return the reason why the disk is too full to start `name`; "" if it has enough space."""
    plan = read_plan(latest_run(home, name))
    try:
        with name_lock(home, name), reserved_space(home, name, replicas=plan.replicas if plan else 1):
            return ""
    except NameTakenError:  # the other command has reserved its disk space
        return ""
    except HostError as error:
        return error.message


def _forget_attempt(home: Home, name: str, dead: str) -> None:
    """Remove the record of a restart that a full disk prevented, if the disk allows it."""
    run = RunDir(home.runs / FileName(name) / FileName(dead))
    with suppress(HostError):
        run.save_state(RESTARTS_FILE, {"restarts": saved_restarts(run)[:-1]})
