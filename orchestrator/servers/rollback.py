"""`deploy rollback`, `deploy up --from` and `--locked`: an earlier start once more, or one that was locked."""

import dataclasses

from orchestrator.core.console import note
from orchestrator.core.errors import StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.suggest import did_you_mean
from orchestrator.planner.lock import lock_path, read_lock
from orchestrator.runs.run_dir import (
    REQUEST_FILE,
    RunDir,
    find_run,
    known_names,
    latest_run,
    not_started,
    note_request,
    require_name,
    require_version,
    runs_of,
)
from orchestrator.servers.run_history import last_good_run, read_request, repeatable_request
from orchestrator.servers.start.launch import UpResult
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.start.up import up


def rollback(name: str, home: Home) -> UpResult:
    """Bring back what was proven last under a name: of the newest start, if that was proven, the one before it.

    Raises StartError where nothing was.
    """
    require_name(name)
    if (run := last_good_run(home, name)) is None:
        if (newest := latest_run(home, name)) is None:
            raise not_started(home, name)
        require_version(newest)
        hint = f"`deploy history {name}` shows each with its smoke test"
        raise StartError(f"there is no proven start of `{name}` to go back to", hint=hint)
    note(f"back to `{name}/{run.path.name}`")
    return up(dataclasses.replace(request_from(run), name=name, replace=True), home)


def request_from(run: RunDir) -> UpRequest:
    """What asks for a run once more, with its own plan. Raises StartError where what was asked for is not known."""
    require_version(run)
    note_request(run)
    request = read_request(run)
    if request is None:
        raise StartError(
            "what was asked for at this start cannot be read: it is damaged",
            where=str(run.path / REQUEST_FILE),
            hint="`deploy up PROFILE` starts a profile",
        )
    return dataclasses.replace(
        repeatable_request(request),
        name=run.path.parent.name,
        replace=False,
        keep_failed=False,
        run=str(run.path),
        by_watch=False,
    )


def named_run(home: Home, text: str) -> RunDir:
    """The run that a user names, by its directory, as `NAME/RUN` or as `RUN`. Raises UsageError for anything else."""
    if (run := find_run(home, text)) is None:
        known = [f"{name}/{each.path.name}" for name in known_names(home) for each in runs_of(home, name)[:5]]
        raise UsageError(f"there is no run `{text}`", hint=did_you_mean(text, known) or "`deploy history` lists them")
    return run


def rerun_request(text: str, given: UpRequest, home: Home) -> UpRequest:
    """What asks for a run once more, with what the command line gives beside it.

    Raises UsageError for a run that is not there, and for what would make it another one.
    """
    if given.profile or given.overrides or given.image:
        what = "`--from` starts a run as it was: without a profile, `--set`, `--revision` and `--image`"
        raise UsageError(what, hint="`deploy diff` shows what a run and a profile differ in")
    was = request_from(named_run(home, text))
    return dataclasses.replace(
        was,
        name=given.name or was.name,
        host=given.host or was.host,
        replace=given.replace,
        keep_failed=given.keep_failed,
        max_replicas=given.max_replicas,
        min_gsm8k=given.min_gsm8k,
        timeout=given.timeout or was.timeout,
    )


def decided_before(given: UpRequest, home: Home, *, run: str | None, locked: bool) -> UpRequest:
    """What is asked for: an earlier start, a lock, or a profile. Raises UsageError where none of them is named."""
    if run is not None:
        if locked:
            raise UsageError("`--from` and `--locked` name two starts", hint="a run's own lock is its `lock.yaml`")
        return rerun_request(run, given, home)
    if locked:
        return _as_locked(given)
    if not given.profile:
        raise UsageError("which profile?", hint="`deploy profiles` lists them; `--from RUN` repeats an earlier start")
    return given


def _as_locked(given: UpRequest) -> UpRequest:
    """What asks for what a lock holds, where the command line names the lock or its profile.

    Raises UsageError for a lock that is not there, and for what would make it another one; ProfileError for an edited
    lock.
    """
    if given.overrides or given.image:
        what = "`--locked` starts what is locked: without `--set`, `--revision` and `--image`"
        raise UsageError(what, hint="`deploy lock PROFILE --set KEY=VALUE` locks it with them")
    path = lock_path(given.profile or None)
    lock, _ = read_lock(path)
    return dataclasses.replace(given, profile=lock.profile, overrides=lock.overrides, lock=str(path))
