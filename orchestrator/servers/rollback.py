"""`deploy restart`, `rollback`, `up --from` and `--locked`: requests that repeat a run or follow a lockfile."""

import dataclasses
from collections.abc import Callable

from orchestrator.core.console import note
from orchestrator.core.errors import StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.suggest import did_you_mean
from orchestrator.planner.lock import lock_path, read_lock
from orchestrator.runs.run_dir import (
    REQUEST_FILE,
    RunDir,
    find_run,
    latest_run,
    not_started,
    note_request,
    require_name,
    require_version,
    runs_by_name,
)
from orchestrator.servers.run_history import last_good_run, last_ready_run, read_request
from orchestrator.servers.servers import Servers
from orchestrator.servers.start.request import UpRequest, UpResult
from orchestrator.servers.start.up import up


def restart(
    name: str,
    home: Home,
    *,
    drain: float | None = None,
    on_locked: Callable[[Servers], object] | None = None,
) -> UpResult:
    """Restart the server `name` with its last plan; stop it first if it is running.

    The last plan comes from the newest run that became ready, even if the profile has changed since. `deploy watch`
    passes `on_locked`, see `up`. Raises StartError if no run of this name became ready.
    """
    require_name(name)
    if (run := last_ready_run(home, name)) is None:
        raise _no_run(home, name, f"no previous run of `{name}` to restart", "`deploy up PROFILE` starts a server")
    request = dataclasses.replace(request_from(run), replace=True, drain=drain, by_watch=on_locked is not None)
    return up(request, home, recovery_command=f"`deploy restart {name}`", on_locked=on_locked or (lambda _: None))


def rollback(name: str, home: Home, *, drain: float | None = None) -> UpResult:
    """Return a server to its last known good run. Raises StartError if there is none."""
    require_name(name)
    if (run := last_good_run(home, name)) is None:
        hint = f"`deploy history {name}` shows each with its smoke test"
        raise _no_run(home, name, f"no last known good run of `{name}`", hint)
    note(f"rolling back to `{name}/{run.path.name}`")
    return up(dataclasses.replace(request_from(run), replace=True, drain=drain), home)


def _no_run(home: Home, name: str, message: str, hint: str) -> StartError:
    """Return the error for a name without a run to repeat. Raises StartError if another version wrote the newest."""
    if (newest := latest_run(home, name)) is None:
        return not_started(home, name, hint="`deploy up PROFILE` starts a server")
    require_version(newest)
    return StartError(message, hint=hint)


def request_from(run: RunDir) -> UpRequest:
    """Return the request that repeats a run with its plan. Raises StartError if its request is unreadable."""
    require_version(run)
    note_request(run)
    request = read_request(run)
    if request is None:
        hint = "`deploy up PROFILE` starts a profile"
        raise StartError("cannot read the request of this run", location=str(run.path / REQUEST_FILE), hint=hint)
    return dataclasses.replace(
        request,
        name=run.path.parent.name,
        replace=False,
        keep_failed=False,
        drain=None,
        max_replicas=None,
        min_gsm8k=None,
        run=str(run.path),
        by_watch=False,
    )


def require_run(home: Home, text: str) -> RunDir:
    """Find a run by its directory, `NAME/RUN` or `RUN`. Raises UsageError if there is none."""
    if (run := find_run(home, text)) is None:
        names = [f"{name}/{run.path.name}" for name, runs in runs_by_name(home).items() for run in runs[:5]]
        raise UsageError(f"no run `{text}` found", hint=did_you_mean(text, names) or "`deploy history` lists them")
    return run


def rerun_request(text: str, request: UpRequest, home: Home) -> UpRequest:
    """Return the request that repeats a run, with the options of the command line.

    Raises UsageError for an unknown run, and for options that would change its plan.
    """
    if request.profile or request.overrides or request.image:
        message = "`--from` repeats a run: a profile, `--set`, `--revision` and `--image` do not apply"
        raise UsageError(message, hint="omit them, or omit `--from`")
    earlier = request_from(require_run(home, text))
    return dataclasses.replace(
        earlier,
        name=request.name or earlier.name,
        host=request.host or earlier.host,
        rank_hosts=request.rank_hosts if request.host else earlier.rank_hosts,
        replace=request.replace,
        keep_failed=request.keep_failed,
        drain=request.drain,
        max_replicas=request.max_replicas,
        min_gsm8k=request.min_gsm8k,
        timeout=request.timeout or earlier.timeout,
    )


def resolve_request(request: UpRequest, home: Home, *, run: str | None, locked: bool) -> UpRequest:
    """Return the request for a run, a lockfile or a profile. Raises UsageError if none is given."""
    if run is not None:
        if locked:
            hint = "`--locked PATH` reads the `lock.yaml` in a run directory"
            raise UsageError("cannot use `--from` with `--locked`", hint=hint)
        return rerun_request(run, request, home)
    if locked:
        return _locked_request(request)
    if not request.profile:
        raise UsageError("no profile given", hint="`deploy profiles` lists them; `--model DIR|HUB_ID` writes one")
    return request


def _locked_request(request: UpRequest) -> UpRequest:
    """Return the request that starts the plan of a lockfile, given by its path or its profile.

    Raises UsageError if the lockfile is missing or an option would change its plan, ProfileError if it was edited.
    """
    if request.overrides or request.image:
        message = "`--locked` starts the lockfile: `--set`, `--revision` and `--image` do not apply"
        raise UsageError(message, hint="`deploy lock NAME --set KEY=VALUE` writes a lockfile with other settings")
    path = lock_path(request.profile or None)
    lock, _ = read_lock(path)
    return dataclasses.replace(request, profile=lock.profile, overrides=lock.overrides, lock=str(path))
