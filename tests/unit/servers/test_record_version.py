"""Runs with a record of another version: they are reported with a hint and do not affect other runs."""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from plan_samples import plan_of
from pydantic import TypeAdapter
from run_samples import past_run, request_of

from orchestrator.core.errors import StartError
from orchestrator.core.paths import Home
from orchestrator.core.record_version import RECORD_VERSION
from orchestrator.plan.plan import Plan
from orchestrator.planner.source import run_source
from orchestrator.report.diff import resolve_side
from orchestrator.report.history import history
from orchestrator.runs.run_dir import RunDir, read_plan, require_plan
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.slurm.record import Submission
from orchestrator.runtimes.supervisor.record import Record
from orchestrator.servers.prune import prune
from orchestrator.servers.rollback import request_from, restart, rollback
from orchestrator.servers.servers import Servers
from orchestrator.servers.start import up
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.status import statuses
from orchestrator.servers.watch.recovery import snapshot_of

OTHER_VERSIONS = pytest.mark.parametrize("version", [0, 99])
FIELDS_OF_VERSION = (4, "82919b73b22a")  # RECORD_VERSION, and the digest of the fields of its records
# Commands that need the record of a run.
READERS: dict[str, Callable[[RunDir, Home], object]] = {
    "restart": lambda _, home: restart("owl", home),
    "rollback": lambda _, home: rollback("owl", home),
    "up --from": lambda run, _: request_from(run),
    "up --from, planned": run_source,
    "diff": lambda run, home: resolve_side(str(run), home),
    "watch": lambda _, home: snapshot_of(servers_of(home), "owl"),
    "metrics": lambda run, _: require_plan(run, "owl"),
}


def test_changed_fields_of_records_need_another_version() -> None:
    fields = {}
    for kind in (Plan, UpRequest, Record, Submission):
        schema = TypeAdapter(kind).json_schema()
        for name, model in {**schema.get("$defs", {}), kind.__name__: schema}.items():
            fields[name] = sorted(model.get("properties", ()))
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]
    assert (RECORD_VERSION, digest) == FIELDS_OF_VERSION, "fields have changed: increase RECORD_VERSION, and pin both"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def servers_of(home: Home) -> Servers:
    return Servers(home, {"process": ProcessRuntime(home)})


def of_version(run: RunDir, version: object, file: str = "request.json") -> RunDir:
    """Give a record of the run another version."""
    path = run.path / file
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": version}))
    return RunDir(run.path)


def is_named(run: RunDir, version: int, message: str) -> bool:
    """Return whether a message names the run, both versions and the next steps."""
    text = f"the run `owl/{run.path.name}`: record version {version}; this `deploy` reads version {RECORD_VERSION}"
    return text in message and "`deploy down owl` stops its server" in message and f"rm -r {run.path}" in message


def test_new_run_has_current_record_version(home: Home) -> None:
    run = past_run(home, 1)
    assert run.other_version == ""
    assert read_plan(run) is not None


@pytest.mark.parametrize("version", [0, 99, True, "1", None, 1.0])
def test_records_of_another_version_are_ignored(home: Home, version: object) -> None:
    run = of_version(past_run(home, 1), version)
    assert read_plan(run) is None
    assert run.read("smoke.json") == {}


@OTHER_VERSIONS
def test_status_reports_run_of_another_version(home: Home, version: int, capsys: pytest.CaptureFixture[str]) -> None:
    past_run(home, 1, name="hen", running=True)
    run = of_version(past_run(home, 2, running=True), version)
    results = statuses(servers_of(home), None, check_health=False)
    assert [(status.name, status.status) for status in results] == [("hen", "running"), ("owl", "running")]
    assert is_named(run, version, capsys.readouterr().err)


@OTHER_VERSIONS
@pytest.mark.parametrize("reader", READERS)
def test_commands_reject_run_of_another_version(home: Home, reader: str, version: int) -> None:
    run = of_version(past_run(home, 1, running=reader == "watch"), version)
    with pytest.raises(StartError) as caught:
        READERS[reader](run, home)
    assert is_named(run, version, f"{caught.value.message} {caught.value.hint}")


@OTHER_VERSIONS
def test_rolling_update_rejects_run_of_another_version(
    home: Home, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is unknown, so whether replicas can be replaced one by one is unknown too."""
    run = of_version(past_run(home, 1, running=True), version)
    servers = servers_of(home)
    monkeypatch.setattr(up, "_replicated_server", lambda *_, **__: servers.open("owl"))
    with pytest.raises(StartError) as caught:
        up._server_to_roll(servers, "owl", plan=plan_of("cpu-tiny"), request=request_of())
    assert is_named(run, version, f"{caught.value.message} {caught.value.hint}")


@OTHER_VERSIONS
def test_other_servers_are_watched_normally(home: Home, version: int) -> None:
    past_run(home, 1, name="hen", running=True)
    of_version(past_run(home, 2, running=True), version)
    assert snapshot_of(servers_of(home), "hen").status is Status.RUNNING


@OTHER_VERSIONS
def test_prune_keeps_run_of_another_version(home: Home, version: int) -> None:
    run = of_version(past_run(home, 1), version)
    removed = past_run(home, 1, name="hen")
    for name in ("owl", "hen"):
        past_run(home, 2, name=name)
    remaining = {
        pruned_run.run_dir: pruned_run.keep_reason
        for pruned_run in prune(servers_of(home), None, keep=1, since=datetime.now(UTC))
    }
    assert remaining[str(removed.path)] == ""
    assert f"record version {version}; this `deploy` reads version {RECORD_VERSION}" in remaining[str(run.path)]
    assert f"rm -r {run.path}" in remaining[str(run.path)]
    assert (run.path.exists(), removed.path.exists()) == (True, False)


@OTHER_VERSIONS
def test_history_lists_run_of_another_version(home: Home, version: int) -> None:
    past_run(home, 2)
    of_version(past_run(home, 1), version)
    newest, other = history(servers_of(home), None)
    assert newest.ended == "stopped"
    assert other.ended == f"not read: record version {version}; this `deploy` reads version {RECORD_VERSION}"


@OTHER_VERSIONS
def test_process_record_of_another_version_is_unknown(home: Home, version: int) -> None:
    past_run(home, 1, name="hen", running=True)
    run = of_version(past_run(home, 2), version, "process.json")
    by_name = {status.name: status for status in statuses(servers_of(home), None, check_health=False)}
    assert by_name["hen"].status == Status.RUNNING
    assert by_name["owl"].status == Status.UNKNOWN
    message = f"process.json`: record version {version}; this `deploy` reads version {RECORD_VERSION}"
    assert message in by_name["owl"].detail
    assert "`deploy down owl` stops the known processes of the server" in by_name["owl"].detail
    runtime = ProcessRuntime(home)
    runtime.stop(*runtime.find("owl"), grace=0)  # no process has the marker of the run: the server has exited
    assert not (run.path / "process.json").exists()
    assert run.path.exists()
    assert servers_of(home).find("owl") == ()
