"""`up` plans at most twice, and inspects the host before it builds, stages or stops anything."""

import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from kernel_samples import FUSED_TP8, every_bucket
from run_samples import past_run, request_of

from orchestrator.core.errors import DeployError, HostError, KernelsError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.survey import Runner
from orchestrator.kernels.disk.store import Store
from orchestrator.kernels.plan_coverage import NO_SOURCES
from orchestrator.plan.facts import Facts
from orchestrator.plan.plan import Plan
from orchestrator.planner import planning
from orchestrator.planner.planning import load, read_profile
from orchestrator.runtimes.base import PreparedRun, Runtime, Unit
from orchestrator.servers.servers import Servers
from orchestrator.servers.start import host, plans, up
from orchestrator.servers.start.request import StartSpec, UpRequest, UpResult


class Reached(Exception):  # noqa: N818 - no error
    """Raised when a start is prepared."""


class EmptyRuntime:
    """A runtime without servers."""

    def find(self, _name: str | None = None) -> tuple[Unit, ...]:
        return ()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a home without servers; every preparation of a start raises `Reached`."""
    home = Home(tmp_path / "home")
    servers = Servers(home, {name: cast("Runtime", EmptyRuntime()) for name in ("process", "docker")})
    monkeypatch.setattr(up, "open_servers", lambda *_: nullcontext(servers))
    monkeypatch.setattr(host, "open_servers", lambda *_: nullcontext(servers))

    def raise_reached(*_: object, **__: object) -> NoReturn:
        raise Reached

    for name in ("prepare_engine", "ensure_checkpoint", "engine_files", "fetch_image", "make_table"):
        monkeypatch.setattr(plans, name, raise_reached)
    return home


@pytest.fixture
def planned_facts(monkeypatch: pytest.MonkeyPatch) -> list[Facts]:
    """Return the facts of each plan that is built."""
    received: list[Facts] = []
    original = planning.build_plan

    def counted(name: str, *, facts: Facts, **named: Any) -> Plan:  # noqa: ANN401 - as the original has them
        received.append(facts)
        return original(name, facts=facts, **named)

    monkeypatch.setattr(planning, "build_plan", counted)
    return received


def started_plan(request: UpRequest, home: Home, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return the plan that `up` starts."""
    started: list[Plan] = []

    def start_server(start: StartSpec, _servers: Servers) -> NoReturn:
        started.append(start.artifacts.plan)
        raise Reached

    with pytest.raises(Reached):
        run_up(request, home, monkeypatch, start_server=start_server, require_ready_host=lambda plan, *_: _ready(plan))
    return started[0]


def run_up(request: UpRequest, home: Home, monkeypatch: pytest.MonkeyPatch, **steps: Callable[..., object]) -> None:
    """Run `up` with fake preparations; `steps` replace functions of `up`."""
    monkeypatch.setattr(up, "require_host", lambda *_, **__: None)
    for name, step in steps.items():
        monkeypatch.setattr(up, name, step)
    monkeypatch.setattr(plans, "prepare_engine", lambda artifacts, _: PreparedRun(artifacts=artifacts, records={}))
    monkeypatch.setattr(plans, "engine_files", lambda *_, **__: {})
    monkeypatch.setattr(plans, "ensure_checkpoint", lambda *_, **__: None)
    monkeypatch.setattr(plans, "prepare_overlay", lambda *_: None)
    monkeypatch.setattr(plans, "require_tuned", lambda *_: None)
    up.up(request, home)


def test_final_plan_includes_built_inputs(
    home: Home, planned_facts: list[Facts], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_table(plan: Plan, target: Home, _given: object, *, allow_untuned: bool) -> bool:
        assert not allow_untuned
        Store.of(target, plan).write(plan, every_bucket(FUSED_TP8))
        return True

    monkeypatch.setattr(plans, "make_table", make_table)
    plan = started_plan(request_of(profile="mi355x-tp8"), home, monkeypatch)
    assert [sorted(facts.inputs) for facts in planned_facts] == [[], ["moe-table"]]
    assert plan == read_profile("mi355x-tp8").build(planned_facts[1])
    assert plan.digest != load("mi355x-tp8").plan.digest
    assert "AITER_CONFIG_FMOE" in {variable.name for variable in plan.env}


def test_changed_coverage_of_final_plan_is_reported(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plans, "make_table", lambda *_, **__: True)
    request = request_of(profile="mi355x-tp8", allow_untuned=True)
    started_plan(request, home, monkeypatch)
    assert capsys.readouterr().err.count("tuned kernels of `mi355x-tp8`: ") == 1

    def make_partial_table(plan: Plan, target: Home, _given: object, *, allow_untuned: bool) -> bool:
        Store.of(target, plan).write(plan, every_bucket(FUSED_TP8)[:3])
        return allow_untuned

    monkeypatch.setattr(plans, "make_table", make_partial_table)
    started_plan(request, home, monkeypatch)
    first, final = (line for line in capsys.readouterr().err.splitlines() if "tuned kernels of `mi355x-tp8`: " in line)
    assert first != final


def test_start_from_prebuilt_image_plans_twice(
    home: Home, planned_facts: list[Facts], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = SimpleNamespace(reference=f"me/x@sha256:{'a' * 64}", inputs={"moe-table": "b" * 64})
    for name in ("newest_image", "fetch_image"):
        monkeypatch.setattr(plans, name, lambda *_: image)
    for name in ("find_docker", "require_matches_plan", "require_table"):
        monkeypatch.setattr(plans, name, lambda *_, **__: None)
    monkeypatch.setattr(plans, "rows_in", lambda *_, **__: NO_SOURCES)
    plan = started_plan(request_of(profile="mi355x-tp8", image="me/x:1"), home, monkeypatch)
    assert [dict(facts.inputs) for facts in planned_facts] == [image.inputs] * 2
    assert plan.prebuilt_image == image.reference


def test_repeated_run_is_not_planned_again(
    home: Home, planned_facts: list[Facts], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = past_run(home, 1, "server.port=7")
    planned_facts.clear()
    plan = started_plan(request_of(run=str(run.path)), home, monkeypatch)
    assert (plan.server.port, planned_facts) == (7, [])


def test_only_repeated_run_has_a_fixed_plan(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_plans: list[bool] = []

    def require_archive(*_: object, of_run: bool, **__: object) -> None:
        fixed_plans.append(of_run)
        raise Reached

    monkeypatch.setattr(up, "require_archive", require_archive)
    for request in (request_of(), request_of(run=str(past_run(home, 1, "server.port=7").path))):
        with pytest.raises(Reached):
            run_up(request, home, monkeypatch)
    assert fixed_plans == [False, True]


def test_missing_archive_is_rejected_before_host_inspection(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(f"engine.compiled_kernels={home.root}/moved.tar.gz@sha256:{'0' * 64}")
    monkeypatch.setattr(up, "require_host", None)
    with pytest.raises(KernelsError, match="No such file"):
        up.up(request, home)
    healthy = cast("UpResult", SimpleNamespace())
    monkeypatch.setattr(up, "_already_up", lambda *_, **__: healthy)
    assert up.up(request, home) is healthy


def host_runner(**sections: str) -> Runner:
    """Return the runner of a host without GPUs, whose survey has these sections by their first word."""

    def run(argv: Sequence[str]) -> CompletedProgram:
        names = re.findall(r"printf '\\036%s\\n' (.+?); \( ", argv[-1])
        texts = {name: sections.get(name.split()[0], "") for [name] in map(shlex.split, names)}
        output = "".join(f"\x1e{name}\n{text}\x1f0" for name, text in texts.items())
        return CompletedProgram(argv=tuple(argv), code=0 if names else 127, stdout=output, stderr="")

    return run


def preflight_problems(request: UpRequest, home: Home) -> str:
    """Return the problems of the host; `Reached` is raised if a start was prepared before."""
    with pytest.raises(HostError, match="the host is not ready") as caught:
        up.up(request, home)
    return "; ".join(problem.message for problem in caught.value.problems_or_self())


@pytest.mark.parametrize(
    ("profile", "sections", "message"),
    [
        ("mi355x-tp8", {}, "gpus: none"),
        ("mi355x-tp8", {"disk": "Filesystem 1024-blocks Used Available\n/dev/sda 9 8 1 89% /\n"}, "GiB for weights"),
        ("cpu-tiny", {"sockets": "  0: 0100007F:753A 00000000:0000 0A 0:0 0:0 0 0 0 7 1\n"}, "port 30010: in use"),
    ],
)
def test_failed_preflight_stops_before_build_and_download(
    home: Home, monkeypatch: pytest.MonkeyPatch, profile: str, sections: dict[str, str], message: str
) -> None:
    """438 GB were once downloaded and an image built before a missing GPU, a full disk or a used port was reported."""
    monkeypatch.setattr(host, "runner_for", lambda _: host_runner(**sections))
    assert message in preflight_problems(
        request_of("runtime=process", "engine.python=/usr/bin/python3", profile=profile), home
    )


def test_disk_space_is_not_checked_without_download(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk = host_runner(disk="Filesystem 1024-blocks Used Available\n/dev/sda 9 8 1 89% /\n")
    monkeypatch.setattr(host, "runner_for", lambda _: full_disk)
    settings = ("runtime=process", "engine.python=/usr/bin/python3")
    assert "weights" not in preflight_problems(request_of(*settings, profile="mi355x-tp8", stage=False), home)


def test_port_of_replaced_server_does_not_fail_preflight(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = past_run(home, 1, "server.port=30010")
    server = Unit(
        runtime="process",
        name="cpu-tiny",
        profile="cpu-tiny",
        plan_digest="another",
        url="http://127.0.0.1:30010",
        run_dir=str(run.path),
        runtime_id="1",
    )
    monkeypatch.setattr(EmptyRuntime, "find", lambda *_: (server,))
    monkeypatch.setattr(up, "_replicated_server", lambda *_, **__: None)
    used_port = host_runner(sockets="  0: 0100007F:753A 00000000:0000 0A 0:0 0:0 0 0 0 7 1\n")
    monkeypatch.setattr(host, "runner_for", lambda _: used_port)
    with pytest.raises(Reached):
        up.up(request_of(replace=True), home)


def test_passed_preflight_continues_the_start(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "preflight", lambda plan, *_, **__: _ready(plan))
    with pytest.raises(Reached):
        up.up(request_of(), home)


def _ready(plan: Plan) -> host.PreflightReport:
    return host.PreflightReport(profile=plan.profile, findings=())


def test_invalid_profile_is_rejected_before_preflight(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_reached(*_: object, **__: object) -> NoReturn:
        raise Reached

    monkeypatch.setattr(up, "require_host", raise_reached)
    with pytest.raises(DeployError, match="cannot plan profile"):
        up.up(request_of("layout.tp=3", "layout.ep=2"), home)
