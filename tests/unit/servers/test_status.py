"""The output of `deploy status`."""

import json
from dataclasses import replace
from pathlib import Path

from orchestrator.cli.status import _startup_notes
from orchestrator.runs.run_dir import RunDir
from orchestrator.servers.soaks import save_report
from orchestrator.servers.status import ServerStatus, startup_seconds, startup_text, status_table
from orchestrator.verify.report import CheckResult, SmokeReport, Verdict


def server(health: str) -> ServerStatus:
    return ServerStatus(
        name="owl",
        profile="cpu-tiny",
        runtime="process",
        status="running",
        health=health,
        url="http://127.0.0.1:30010",
        plan="d1" * 32,
        started_at=None,
        ended_at=None,
        age="6 s",
        restarts=0,
        exit_code=None,
        detail="",
        startup={},
        run_dir="/runs/owl/1",
    )


def test_health_column_appears_only_when_checked() -> None:
    assert status_table([server("")]).splitlines() == [
        "name  profile   runtime  status           url                     plan",
        "owl   cpu-tiny  process  running for 6 s  http://127.0.0.1:30010  d1d1d1d1d1d1",
    ]
    assert "status           health   url" in status_table([server("healthy")])


def test_replicas_with_different_plans_are_listed() -> None:
    one, two = (
        replace(server(""), name=f"owl/replica-{number}", plan=plan) for number, plan in ((1, "aaaa"), (2, "bbbb"))
    )
    mixed = replace(server("healthy"), replicas=(one, two))
    assert [line.split()[0] for line in status_table([mixed]).splitlines()] == [
        *("name", "owl", "owl/replica-1", "owl/replica-2")
    ]
    assert len(status_table([replace(mixed, replicas=(one, replace(two, plan="aaaa")))]).splitlines()) == 2


def test_startup_stages_are_shown_with_shares(tmp_path: Path) -> None:
    (tmp_path / "processes.json").write_text(
        json.dumps({"stages": {"loading weights": 10.0, "capturing graphs": 55.04, "answering": 0.0}})
    )
    checks = [CheckResult(name=name, verdict=Verdict.PASSED, evidence="", seconds=5.0) for name in ("one", "two")]
    reports = [
        SmokeReport(url="", served_name="", checks=tuple(checks[:count]), first_sample_seconds=sampled)
        for count, sampled in ((2, 25.0), (1, 0.3))
    ]
    save_report(RunDir(tmp_path), reports[1])  # `deploy smoke` is not part of the start
    assert startup_seconds(RunDir(tmp_path)).keys() == {"loading weights", "capturing graphs"}
    save_report(RunDir(tmp_path), reports[0], of_start=True)
    save_report(RunDir(tmp_path), reports[1])
    stages = startup_seconds(RunDir(tmp_path))
    assert stages == {
        "loading weights": 10.0,
        "capturing graphs": 55.0,
        "first sampled request": 25.0,
        "smoke test": 10.0,
    }
    assert startup_text(replace(server(""), startup=stages)) == (
        "`owl` took 100 s to start: loading weights 10.0 s (10%), capturing graphs 55.0 s (55%), "
        "first sampled request 25.0 s (25%), smoke test 10.0 s (10%)"
    )


def test_startup_stages_are_shown_per_replica() -> None:
    one = replace(server(""), name="owl/replica-1", startup={"loading weights": 4.0})
    notes = [*_startup_notes([replace(server("healthy"), replicas=(one,))])]
    assert notes == ["`owl/replica-1` took 4 s to start: loading weights 4.0 s (100%)"]


def test_invalid_startup_stages_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "processes.json").write_text('{"stages": {"loading weights": "soon"}}')
    (tmp_path / "smoke.json").write_text('{"startup": {"smoke test": "soon"}}')
    assert startup_text(replace(server(""), startup=startup_seconds(RunDir(tmp_path)))) == ""
