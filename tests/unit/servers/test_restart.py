"""`deploy restart`: the run that is repeated."""

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


def record_run(
    home: Home, request: UpRequest, *, ready: bool, planned: tuple[str, ...] | None = None, day: int = 1
) -> None:
    plan = load("cpu-tiny", overrides=request.overrides if planned is None else planned).plan
    run = RunDir(home.make_runs("owl") / f"2026070{day}T000000Z-{plan.digest[:8]}")
    run.path.mkdir(exist_ok=True)
    (run.path / "plan.json").write_text(plan.to_json())
    run.save("request.json", {"version": RECORD_VERSION, "request": asdict(request)})
    if ready:
        run.save("smoke.json", {"checks": []})


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[UpRequest]:
    received: list[UpRequest] = []

    def up(request: UpRequest, _home: Home, *, recovery_command: str, on_locked: object) -> None:  # noqa: ARG001
        assert recovery_command == "`deploy restart owl`"
        received.append(request)

    monkeypatch.setattr(command, "up", up)
    return received


def test_restart_uses_last_successful_plan(tmp_path: Path, requests: list[UpRequest]) -> None:
    home = Home(tmp_path)
    for port, ready in ((1, True), (2, True), (3, False)):
        record_run(home, request_of(f"server.port={port}"), ready=ready, planned=(f"server.port={port}9",), day=port)

    command.restart("owl", home)

    [(name, run, replaces)] = [(call.name, Path(call.run or ""), call.replace) for call in requests]
    assert (name, run.name[:8], replaces) == ("owl", "20260702", True)
    source = requests[0].source(home)
    assert source.build(Facts()) == load("cpu-tiny", overrides=["server.port=29"]).plan


def test_missing_server_hints_at_restart_command(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for ready, hint in ((False, "`deploy diagnose owl` shows why"), (True, "`deploy restart owl` starts it")):
        record_run(home, request_of(), ready=ready)
        with pytest.raises(StartError, match="no server `owl` found") as raised:
            Servers(home, {}).open("owl")
        assert raised.value.hint.startswith(hint)
    record_run(home, request_of(host="ssh://n1"), ready=True, day=3)
    with pytest.raises(StartError, match="no server `owl` found on this host") as raised:
        Servers(home, {}).open("owl")
    assert raised.value.hint.startswith("`deploy status owl --host ssh://n1`")
    with pytest.raises(HostError, match="cannot query docker: no answer") as no_answer:
        Servers(home, {}, unreachable={"docker": "no answer"}).open("owl")
    assert no_answer.value.hint == raised.value.hint


def test_name_is_looked_up_on_the_only_host_of_its_runs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for day, host in enumerate(("ssh://n1", "ssh://n1", "ssh://n2"), start=1):
        record_run(home, request_of(host=host), ready=True, day=day)
        with open_servers(home, name="owl") as by_name, open_servers(home) as unnamed:
            assert (by_name.host, unnamed.host) == ("ssh://n1" if day < 3 else None, None)


REQUEST = asdict(request_of())


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"request": 7},
        {"request": {"profile": "cpu-tiny"}},
        *({"request": {**REQUEST, "overrides": overrides_}} for overrides_ in (5, None, [5], "abc", {"a": 1})),
        *({"request": {**REQUEST, **change}} for change in ({"profile": 5}, {"keep_failed": "no"}, {"timeout": []})),
    ],
)
def test_malformed_request_record_is_ignored(
    tmp_path: Path, requests: list[UpRequest], record: dict[str, object]
) -> None:
    run = open_run(Home(tmp_path), "owl", load("cpu-tiny").plan)
    run.save("request.json", {"version": RECORD_VERSION, **record})
    run.save("smoke.json", {"checks": []})

    with pytest.raises(StartError, match="no previous run of `owl` to restart"):
        command.restart("owl", Home(tmp_path))

    assert requests == []
