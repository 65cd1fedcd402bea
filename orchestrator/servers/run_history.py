"""Past runs of a name: their requests, and whether they became ready and passed the smoke test."""

import json

from pydantic import ValidationError

from orchestrator.core.paths import Home
from orchestrator.core.validation import type_adapter
from orchestrator.runs.run_dir import REQUEST_FILE, SMOKE_FILE, RunDir, runs_of, runs_with_smoke
from orchestrator.servers.start.request import UpRequest


def last_ready_run(home: Home, name: str) -> RunDir | None:
    """Return the last run that became ready, for `deploy restart`."""
    return next((run for run in runs_with_smoke(home, name) if read_request(run) is not None), None)


def last_good_run(home: Home, name: str) -> RunDir | None:
    """Return the last run that passed the smoke test, for `deploy rollback`.

    If the newest run passed, return the last run that passed with another plan.
    """
    runs = runs_of(home, name)
    verified = [run for run in runs if run.read(SMOKE_FILE).get("ok") is True and read_request(run) is not None]
    if verified and verified[0] == runs[0]:
        verified = [run for run in verified if run.digest != runs[0].digest]
    return verified[0] if verified else None


def protected_runs(home: Home, name: str) -> dict[RunDir, str]:
    """Return the runs that a later command may need, each with the reason."""
    runs = runs_of(home, name)
    verified = [run for run in runs if run.read(SMOKE_FILE).get("ok") is True]
    candidates = [
        (runs[0] if runs else None, "the newest run"),
        (last_ready_run(home, name), "`deploy restart` uses it"),
        (verified[0] if verified else None, "the last run that passed its smoke test"),
        (last_good_run(home, name), "`deploy rollback` returns to it"),
    ]
    return {run: reason for run, reason in reversed(candidates) if run is not None}


def read_request(run: RunDir) -> UpRequest | None:
    """Return the request of a run; None if it is invalid or another version wrote it."""
    try:
        text = json.dumps(run.read(REQUEST_FILE).get("request"))
        request: UpRequest = type_adapter(UpRequest).validate_json(text, strict=True)
    except ValidationError:
        return None
    return request
