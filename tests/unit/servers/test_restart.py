"""`deploy restart`: which start is repeated, and which is not."""

from dataclasses import asdict
from pathlib import Path

import pytest
from run_samples import request_of

from orchestrator.core.errors import HostError, StartError
from orchestrator.core.paths import Home
from orchestrator.core.record_version import RECORD_VERSION
from orchestrator.plan.facts import Facts
from orchestrator.planner.planning import load
from orchestrator.runs.run_dir import RunDir, open_run
from orchestrator.servers import rollback as command
from orchestrator.servers.servers import Servers, open_servers
from orchestrator.servers.start.request import UpRequest


def ran(home: Home, request: UpRequest, *, came_up: bool, planned: tuple[str, ...] | None = None, day: int = 1) -> None:
    plan = load("cpu-tiny", overrides=request.overrides if planned is None else planned).plan
    run = RunDir(home.make_runs("owl") / f"2026070{day}T000000Z-{plan.digest[:8]}")
    run.path.mkdir(exist_ok=True)
    (run.path / "plan.json").write_text(plan.to_json())
    run.save("request.json", {"version": RECORD_VERSION, "request": asdict(request)})
    if came_up:
        run.save("smoke.json", {"checks": []})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[UpRequest]:
    found: list[UpRequest] = []

    def up(request: UpRequest, _home: Home, *, recovery_command: str, on_locked: object) -> None:  # noqa: ARG001
        assert recovery_command == "`deploy restart owl`"
        found.append(request)

    monkeypatch.setattr(command, "up", up)
    return found


def test_restart_uses_last_successful_plan(tmp_path: Path, asked: list[UpRequest]) -> None:
    home = Home(tmp_path)
    for port, came_up in ((1, True), (2, True), (3, False)):
        ran(home, request_of(f"server.port={port}"), came_up=came_up, planned=(f"server.port={port}9",), day=port)

    command.restart("owl", home)

    [(name, run, replaces)] = [(call.name, Path(call.run or ""), call.replace) for call in asked]
    assert (name, run.name[:8], replaces) == ("owl", "20260702", True)
    source = asked[0].source(home)
    assert source.decide(Facts()) == load("cpu-tiny", overrides=["server.port=29"]).plan


def test_missing_server_hints_at_restart_command(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for came_up, hint in ((False, "`deploy diagnose owl` shows why"), (True, "`deploy restart owl` starts it")):
        ran(home, request_of(), came_up=came_up)
        with pytest.raises(StartError, match="no server `owl` found") as raised:
            Servers(home, {}).open("owl")
        assert raised.value.hint.startswith(hint)
    ran(home, request_of(host="ssh://n1"), came_up=True, day=3)
    with pytest.raises(StartError, match="no server `owl` found on this host") as raised:
        Servers(home, {}).open("owl")
    assert raised.value.hint.startswith("`deploy status owl --host ssh://n1`")
    with pytest.raises(HostError, match="cannot query docker: no answer") as unanswered:
        Servers(home, {}, unreachable={"docker": "no answer"}).open("owl")
    assert unanswered.value.hint == raised.value.hint


def test_name_is_looked_up_on_the_only_host_of_its_runs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for day, host in enumerate(("ssh://n1", "ssh://n1", "ssh://n2"), start=1):
        ran(home, request_of(host=host), came_up=True, day=day)
        with open_servers(home, name="owl") as named, open_servers(home) as others:
            assert (named.host, others.host) == ("ssh://n1" if day < 3 else None, None)


ASKED = asdict(request_of())


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"request": 7},
        {"request": {"profile": "cpu-tiny"}},
        *({"request": {**ASKED, "overrides": overrides_}} for overrides_ in (5, None, [5], "abc", {"a": 1})),
        *({"request": {**ASKED, **change}} for change in ({"profile": 5}, {"keep_failed": "no"}, {"timeout": []})),
    ],
)
def test_malformed_request_record_is_ignored(tmp_path: Path, asked: list[UpRequest], record: dict[str, object]) -> None:
    run = open_run(Home(tmp_path), "owl", load("cpu-tiny").plan)
    run.save("request.json", {"version": RECORD_VERSION, **record})
    run.save("smoke.json", {"checks": []})

    with pytest.raises(StartError, match="no previous run of `owl` to restart"):
        command.restart("owl", Home(tmp_path))

    assert asked == []
