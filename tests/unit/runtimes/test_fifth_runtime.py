"""A fifth runtime is one folder and one line: planned for, rendered, started, listed, shown, stopped."""

import inspect
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.core.errors import UsageError
from orchestrator.core.imported import Imported
from orchestrator.core.paths import Home
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes import REGISTRY, runtime_class
from orchestrator.runtimes.base import HostRef, Runtime
from orchestrator.servers.servers import open_servers
from orchestrator.servers.start.host import resolve_host_ref
from orchestrator.servers.status import statuses

FOLDER = """
from dataclasses import replace
from pathlib import Path

from orchestrator.core.logs.lines import LogTail
from orchestrator.render.artifacts import Artifacts, server_command
from orchestrator.runtimes.base import PreparedRun, Runtime, ServerState, Status, Unit

RUNS = ServerState(status=Status.RUNNING)


class OnPaper(Runtime):
    name = "on-paper"

    @classmethod
    def render(cls, plan, inputs):
        return Artifacts(plan=plan, command=server_command(plan, model_path="here", host="127.0.0.1"), build=None)

    @classmethod
    def prepare(cls, artifacts, host_ref):
        return PreparedRun(artifacts=artifacts, records={})

    def start(self, artifacts, *, name, run_dir, secrets):
        Path(run_dir, "server.log").write_text("serving\\n")
        return self._unit(run_dir)

    def find(self, name=None):
        logs = self._home.runs.glob(f"{name or '*'}/*/server.log")
        return tuple(replace(self._unit(log.parent), state=RUNS) for log in sorted(logs))

    def state(self, unit):
        return RUNS if Path(unit.run_dir, "server.log").exists() else ServerState(status=Status.NOT_FOUND)

    def logs(self, unit, *, follow, since=None):
        return LogTail(Path(unit.run_dir, "server.log")).to_end()

    def tail(self, unit):
        return LogTail(Path(unit.run_dir, "server.log"))

    def stop(self, unit, *, grace):
        Path(unit.run_dir, "server.log").unlink()

    def _unit(self, run_dir):
        known = {"profile": "cpu-tiny", "plan_digest": "", "url": "http://127.0.0.1:9", "runtime_id": "1"}
        return Unit(runtime=self.name, name=run_dir.parent.name, run_dir=str(run_dir), **known)
"""


@pytest.fixture
def on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "on_paper").mkdir()
    (tmp_path / "on_paper/runtime.py").write_text(FOLDER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(REGISTRY, "on-paper", "on_paper.runtime:OnPaper")  # type: ignore[arg-type]  # a table to read
    monkeypatch.setattr("orchestrator.servers.servers.REGISTRY", {"on-paper": REGISTRY["on-paper"]})  # no other asked
    return "on-paper"


def deploy(*words: str) -> Result:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done


def test_a_fifth_runtime_is_one_folder_and_one_line(
    on_paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("orchestrator.servers.drain.Drain._add", lambda *_: None)  # which asks the server for its load
    assert "==> server.sh <==" in deploy("render", "cpu-tiny", "--runtime", on_paper).stdout
    home, plan = Home(tmp_path / "home"), load("cpu-tiny", overrides=[f"runtime={on_paper}"]).plan
    prepared = runtime_class(on_paper).prepare(render_artifacts(plan), HostRef(home=home))
    run = open_run(home, "owl", plan)
    with open_servers(home) as servers:
        started = servers.runtimes[on_paper].start(prepared.artifacts, name="owl", run_dir=run.path, secrets={})
        assert servers.open("owl").found.unit == started.unit
        assert [(each.runtime, each.status) for each in statuses(servers, None, check_health=False)] == [
            (on_paper, "running")
        ]
    assert deploy("logs", "owl").stdout == "serving\n"
    assert "`owl` is stopped" in deploy("down", "owl").stderr
    with open_servers(home) as servers:
        assert servers.find() == ()


def test_what_a_runtime_does_not_say_is_as_usual(on_paper: str, tmp_path: Path) -> None:
    plan = load("cpu-tiny", overrides=[f"runtime={on_paper}"]).plan
    with pytest.raises(UsageError, match="the on-paper runtime starts servers only on this host, not on `ssh://n0`"):
        resolve_host_ref(plan.runtime, Home(tmp_path), "ssh://n0")
    kind = runtime_class(on_paper)
    assert (
        kind.external_image(plan),
        kind.monitoring_targets(plan, "owl"),
        kind.restart_owner(plan),
        kind.saved_state(tmp_path),
    ) == (None,) * 4


def test_a_runtime_that_lacks_a_verb_is_none(tmp_path: Path) -> None:
    class Silent(Runtime):
        name = "silent"

    with pytest.raises(TypeError, match=r"abstract methods? .*start"):
        Silent(Home(tmp_path))  # type: ignore[abstract]


@pytest.mark.parametrize("name", REGISTRY)
def test_what_a_class_names_exists_and_takes_what_the_base_gives(name: str) -> None:
    kind = runtime_class(name)
    named = [each for each, value in vars(kind).items() if isinstance(value, Imported)]
    assert {"render", "prepare"} <= {*named}
    assert not Runtime.__abstractmethods__ & {*named}  # which would be imported with the class
    for each in named:
        found, base = getattr(kind, each), getattr(Runtime, each)
        if callable(base):
            given = [parameter.lstrip("_") for parameter in inspect.signature(base).parameters]
            taken = inspect.signature(found).parameters.values()
            assert [parameter.name.lstrip("_") for parameter in taken][: len(given)] == given, each
            assert all(parameter.default is not parameter.empty for parameter in list(taken)[len(given) :]), each
        else:
            assert found, each
