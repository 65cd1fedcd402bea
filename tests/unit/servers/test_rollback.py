"""`deploy rollback` and `deploy up --from`: an earlier run is repeated with its own plan."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from kernel_samples import HEADER, line
from plan_samples import plan_of
from run_samples import past_run, request_of
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.errors import StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.record_version import RECORD_VERSION
from orchestrator.kernels.disk.store import Store
from orchestrator.patches.schema import MOE_TABLE
from orchestrator.plan.plan import Plan
from orchestrator.planner import planning
from orchestrator.planner.source import run_source
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.servers import rollback as command
from orchestrator.servers.rollback import request_from, require_run, rollback
from orchestrator.servers.start import plans
from orchestrator.servers.start.preview import preview
from orchestrator.servers.start.request import UpRequest


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[UpRequest]:
    received: list[UpRequest] = []
    monkeypatch.setattr(command, "up", lambda request, _home, **_: received.append(request))
    return received


def test_rollback_uses_last_known_good_run(home: Home, requests: list[UpRequest]) -> None:
    """Of two runs of one plan the last one is used; unverified runs are skipped."""
    past_run(home, 1, "server.port=1")
    good = past_run(home, 2, "server.port=2")
    past_run(home, 3, "server.port=3", verified=False)
    past_run(home, 4, "server.port=2", verified=None)

    rollback("owl", home)

    assert [(call.name, call.run, call.replace, call.keep_failed) for call in requests] == [
        ("owl", str(good.path), True, False)
    ]


def test_repeated_rollback_alternates_between_two_plans(home: Home, requests: list[UpRequest]) -> None:
    first = past_run(home, 1, "server.port=1")
    second = past_run(home, 2, "server.port=2")
    past_run(home, 3, "server.port=2")
    rollback("owl", home)
    past_run(home, 4, "server.port=1")
    rollback("owl", home)
    assert [call.run for call in requests] == [str(first.path), str(second.path).replace("20260702", "20260703")]


@pytest.mark.parametrize("name", ["owl", "hen"])
def test_rollback_without_known_good_run_is_rejected(home: Home, requests: list[UpRequest], name: str) -> None:
    past_run(home, 1)
    past_run(home, 2)
    past_run(home, 3, verified=None, name="hen")
    with pytest.raises(StartError, match=f"no last known good run of `{name}`"):
        rollback(name, home)
    assert requests == []


def test_run_is_repeated_with_its_own_plan(home: Home) -> None:
    """`restart` rejects the run, since its profile has been edited."""
    run = past_run(home, 1, "flags.max-total-tokens=32768")
    record = run.read("request.json")
    run.save("request.json", {**record, "request": {**record["request"], "overrides": []}})  # type: ignore[dict-item]

    files = {file.path: file.content.decode() for file in preview(request_from(run), home).files}

    assert "--max-total-tokens 32768" in files["server.sh"]
    assert json.loads(files["plan.json"]) == run.read("plan.json")


def test_repeated_run_is_restarted_with_its_own_plan(home: Home, requests: list[UpRequest]) -> None:
    """The profile may have changed, and the run that was repeated may be deleted."""
    run = past_run(home, 1, "server.port=7")
    request = {**run.read("request.json")["request"], "overrides": [], "run": "/gone"}  # type: ignore[dict-item]
    run.save("request.json", {"version": RECORD_VERSION, "request": request})
    command.restart("owl", home)
    assert [(call.run, call.replace) for call in requests] == [(str(run.path), True)]


def test_recorded_command_names_the_run(home: Home) -> None:
    run = past_run(home, 1)
    assert request_from(run).command("hen") == f"deploy up --from {run.path} --name hen"
    assert request_of("a=1").command("hen") == "deploy up --profile cpu-tiny --name hen --set a=1"


def test_modified_plan_is_rejected(home: Home) -> None:
    run = past_run(home, 1)
    text = (run.path / "plan.json").read_text()
    (run.path / "plan.json").write_text(text.replace('"65536"', '"65537"'))
    with pytest.raises(StartError, match="the plan has changed since the start") as caught:
        run_source(run, home)
    assert caught.value.location == str(run.path / "plan.json")
    copied_run = RunDir(run.path.rename(home.root / "copied"))
    (copied_run.path / "plan.json").write_text(text)
    with pytest.raises(StartError, match="the plan has changed since the start"):
        run_source(copied_run, home)


def test_unreadable_run_is_rejected(home: Home) -> None:
    run = past_run(home, 1)
    (run.path / "request.json").write_text("[]")
    with pytest.raises(StartError, match="cannot read the request of this run"):
        request_from(run)
    (run.path / "plan.json").write_text("{}")
    with pytest.raises(StartError, match="cannot read the plan of this run"):
        run_source(run, home)


TABLE = f"{HEADER}\n{line(16)}\n".encode()


def with_table(home: Home, content: bytes) -> tuple[RunDir, Plan]:
    """Return a run whose image has a table of tuned kernels, and its plan."""
    plan = plan_of("mi355x-tp8")
    digest = hashlib.sha256(content).hexdigest()
    with_input = tuple(replace(use, input_sha256=digest) if use.kind == "file" else use for use in plan.patches)
    assert with_input != plan.patches
    plan = replace(plan, patches=with_input)
    run = RunDir(home.make_runs("owl") / f"20260701T000000Z-{plan.digest[:8]}")
    run.path.mkdir()
    (run.path / "plan.json").write_text(plan.to_json())
    return run, plan


def test_patch_input_files_are_found_by_digest(home: Home) -> None:
    run, plan = with_table(home, b"the table of then")
    table = Store.of(home, plan).table(plan)
    table.parent.mkdir(parents=True)
    table.write_bytes(b"a newer one")
    with pytest.raises(StartError, match="cannot repeat run") as caught:
        run_source(run, home)
    assert "no `moe-table` for patch" in caught.value.problems[0].message
    (run.path / "image" / "tables").mkdir(parents=True)
    (run.path / "image" / "tables" / MOE_TABLE).write_bytes(b"the table of then")
    source = run_source(run, home)
    assert (source.plan, source.files()) == (plan, {MOE_TABLE: b"the table of then"})
    (run.path / "image" / "tables" / MOE_TABLE).unlink()
    table.write_bytes(b"the table of then")
    assert run_source(run, home).files() == {MOE_TABLE: b"the table of then"}


def test_missing_patch_is_reported(home: Home) -> None:
    plan = plan_of("mi355x-tp8")
    plan = replace(plan, patches=(replace(plan.patches[0], id="once"), *plan.patches[1:]))
    run = RunDir(home.make_runs("owl") / f"20260701T000000Z-{plan.digest[:8]}")
    run.path.mkdir()
    (run.path / "plan.json").write_text(plan.to_json())
    with pytest.raises(StartError) as caught:
        run_source(run, home)
    assert [problem.message for problem in caught.value.problems] == ["patch `once` no longer exists"]


def test_repeated_run_builds_no_table_or_plan(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object, **__: object) -> NoReturn:
        raise AssertionError("built again")

    run, plan = with_table(home, TABLE)
    (run.path / "image" / "tables").mkdir(parents=True)
    (run.path / "image" / "tables" / MOE_TABLE).write_bytes(TABLE)
    monkeypatch.setattr(planning, "build_plan", reject)
    monkeypatch.setattr(plans, "make_table", reject)
    for name in (
        "report_coverage",
        "require_tuned",
        "ensure_checkpoint",
        "engine_files",
        "prepare_overlay",
    ):
        monkeypatch.setattr(plans, name, lambda *_, **__: None)
    monkeypatch.setattr(plans, "prepare_engine", lambda artifacts, _: PreparedRun(artifacts=artifacts, records={}))
    request, host_ref = request_of(run=str(run.path)), HostRef(home=home)
    source = request.source(home)
    first = plans.build_first_plan(request, source, host_ref)
    prepared = plans.prepare_start(request, source, first, host_ref)
    assert prepared.artifacts.plan == first.plan == plan


def test_run_accepts_three_forms_of_name(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = past_run(home, 1)
    for text in (str(run.path), f"owl/{run.path.name}", run.path.name):
        assert require_run(home, text) == run
    for text in ("owl", "", "..", "owl/..", "../owl", f"../runs/owl/{run.path.name}", "/"):
        with pytest.raises(UsageError, match=r"no run .* found"):
            require_run(home, text)


def test_up_from_run_rejects_profile_and_settings(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = past_run(home, 1)
    monkeypatch.setenv("DEPLOY_HOME", str(home.root))
    for words in (["cpu-tiny"], ["--set", "server.port=1"], ["--image", "x"]):
        result = CliRunner().invoke(app, ["up", *words, "--from", run.path.name])
        assert isinstance(result.exception, UsageError)
    result = CliRunner().invoke(app, ["up", "--from", run.path.name, "--dry-run"])
    assert result.stdout.startswith("step ")
