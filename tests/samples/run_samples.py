"""Run directories with the files of a start, without a server."""

import json
import os
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.core.paths import Home
from orchestrator.core.procfs import process_identity
from orchestrator.core.record_version import RECORD_VERSION
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.runs.run_dir import SMOKE_FILE, RunDir
from orchestrator.runtimes.supervisor.record import FILE
from orchestrator.servers.start.request import UpRequest

_NOBODY = "00000000-0000-0000-0000-000000000000/1/1"  # a process of another boot


def request_of(*overrides: str, **more: object) -> UpRequest:
    choices: dict[str, Any] = {"keep_failed": False, "stage": True, "allow_untuned": False, "strict_kernels": False}
    choices |= {
        field.name: None for field in fields(UpRequest) if field.default is MISSING and field.name not in choices
    }
    return UpRequest(**{**choices, "profile": "cpu-tiny", "overrides": overrides, "replace": False, **more})


@cache
def _plan(overrides: tuple[str, ...]) -> Plan:
    return load("cpu-tiny", overrides=overrides).plan


def past_run(
    home: Home,
    day: int,
    *overrides: str,
    name: str = "owl",
    verified: bool | None = True,  # None: no smoke test
    running: bool = False,
) -> RunDir:
    """Write a run of July 2026 with all files of a process server."""
    plan = _plan(overrides)
    run = RunDir(home.make_runs(name) / f"202607{day:02}T000000Z-{plan.digest[:8]}")
    run.save("plan.json", plan.to_dict())
    (run.path / "plan.json").write_text(plan.to_json())
    run.save("request.json", {**request_of(*overrides).to_record(name), "command": "deploy up …"})
    run.save("preflight.json", {"findings": [{"check": "driver", "value": "6.14"}]})
    (run.path / "server.sh").write_text("#!/bin/sh\n")
    (run.path / "server.log").write_text("begins\n")
    write_process(run, running=running, plan=plan.digest)
    if verified is not None:
        run.save("processes.json", {"processes": ["scheduler"], "ready_seconds": 12.5})
        checks = [{"name": "streaming matches", "verdict": "passed" if verified else "failed"}]
        run.save(SMOKE_FILE, {"ok": verified, "checks": [*checks, {"name": "clean log", "verdict": "passed"}]})
    return run


def write_process(run: RunDir, *, running: bool, plan: str = "") -> Path:
    """Write the supervisor's record; a running server has the pid of this process."""
    record = {
        "name": run.path.parent.name,
        "profile": "cpu-tiny",
        "plan_digest": plan,
        "url": "http://127.0.0.1:1",
        "argv": ["python"],
        "started_at": "2026-07-01T00:00:00+00:00",
        "token": str(run.path.resolve()),
        "supervisor": process_identity(os.getpid()) if running else _NOBODY,
        "server": None,
        "output": None,
        "exit_code": None if running else 137,
        "ended_at": None if running else "2026-07-01T00:10:00+00:00",
        "stopped": not running,
        "version": RECORD_VERSION,
    }
    (run.path / FILE).write_text(json.dumps(record))
    return run.path / FILE
