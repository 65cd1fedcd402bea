"""Starts of the past that can be had again: what was asked for, whether it came up, whether it was proven."""

import json
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.core.paths import Home
from orchestrator.runs.run_dir import REQUEST_FILE, SMOKE_FILE, RunDir, runs_of, runs_with_smoke
from orchestrator.servers.start.request import UpRequest


def ready_runs(home: Home, name: str) -> Iterator[tuple[RunDir, UpRequest]]:
    """The runs that were asked to prove themselves, newest first, with what was asked for."""
    for run in runs_with_smoke(home, name):
        if (request := read_request(run)) is not None:
            yield run, replace(request, name=name)


def last_good_run(home: Home, name: str) -> RunDir | None:
    """What `deploy rollback` brings back: the last run whose smoke test passed.

    Where that is the newest start itself, the last one of another plan.
    """
    runs = runs_of(home, name)
    proven = [run for run in runs if run.read(SMOKE_FILE).get("ok") is True and read_request(run) is not None]
    if proven and proven[0] == runs[0]:
        proven = [run for run in proven if run.digest != runs[0].digest]
    return proven[0] if proven else None


def protected_runs(home: Home, name: str) -> dict[RunDir, str]:
    """The runs that a later command may ask for, with what for."""
    runs = runs_of(home, name)
    came_up, _ = next(ready_runs(home, name), (None, None))
    proven = [run for run in runs if run.read(SMOKE_FILE).get("ok") is True]
    found = [
        (runs[0] if runs else None, "the newest start"),
        (came_up, "what `deploy restart` starts"),
        (proven[0] if proven else None, "the last that was proven"),
        (last_good_run(home, name), "what `deploy rollback` brings back"),
    ]
    return {run: why for run, why in reversed(found) if run is not None}


def repeatable_request(request: UpRequest) -> UpRequest:
    """What was asked for, without what was meant for one change of several replicas."""
    return replace(request, max_replicas=None, min_gsm8k=None)


def read_request(run: RunDir) -> UpRequest | None:
    """What was asked for; None for a run of another version, and for what a hand has written."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - few commands read one

    try:
        return TypeAdapter(UpRequest).validate_json(json.dumps(run.read(REQUEST_FILE).get("request")), strict=True)
    except ValidationError:
        return None
