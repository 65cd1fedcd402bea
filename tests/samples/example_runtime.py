"""A minimal runtime for tests: each server is a child of this process, recorded in its run directory."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from orchestrator.core.logs.lines import LogTail
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import Artifacts, server_command
from orchestrator.runtimes import REGISTRY
from orchestrator.runtimes.base import HostRef, PreparedRun, Runtime, ServerState, Status, Unit

NAME = "example"
ENGINE = Path(__file__).parents[1] / "support/scripted_engine.py"


class ExampleRuntime(Runtime):
    name = NAME
    _children: ClassVar[dict[int, subprocess.Popen[bytes]]] = {}  # by pid

    @classmethod
    def render(cls, plan: Plan, _inputs: object) -> Artifacts:
        command = server_command(plan, model_path="here", host="127.0.0.1", python=str(ENGINE))
        return Artifacts(plan=plan, command=command, build=None)

    @classmethod
    def prepare(cls, artifacts: Artifacts, _host_ref: HostRef) -> PreparedRun:
        return PreparedRun(artifacts=artifacts, records={})

    def start(self, artifacts: Artifacts, *, run_dir: Path, **_: object) -> Unit:  # type: ignore[override]
        with (run_dir / "server.log").open("wb") as log:
            started = subprocess.Popen(artifacts.command.argv, stdout=log, stderr=log)
        self._children[started.pid] = started
        (run_dir / "pid").write_text(str(started.pid))
        (run_dir / "url").write_text(artifacts.plan.server.url)
        return self._unit(run_dir)

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        units = [self._unit(file.parent) for file in sorted(self._home.runs.glob(f"{name or '*'}/*/pid"))]
        return tuple(replace(unit, state=self.state(unit)) for unit in units)

    def state(self, unit: Unit) -> ServerState:
        return ServerState(status=Status.RUNNING if Path(unit.run_dir, "pid").exists() else Status.NOT_FOUND)

    def tail(self, unit: Unit) -> LogTail:
        return LogTail(Path(unit.run_dir, "server.log"))

    def logs(self, unit: Unit, **_: object) -> Iterator[str]:  # type: ignore[override]
        return self.tail(unit).to_end()

    def stop(self, unit: Unit, **_: object) -> None:  # type: ignore[override]
        with self._children.pop(int(unit.runtime_id)) as child:
            child.terminate()
        Path(unit.run_dir, "pid").unlink()

    def _unit(self, run_dir: Path) -> Unit:
        return Unit(
            runtime=NAME,
            name=run_dir.parent.name,
            profile="cpu-tiny",
            plan_digest="",
            url=(run_dir / "url").read_text(),
            run_dir=str(run_dir),
            runtime_id=(run_dir / "pid").read_text(),
        )


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the runtime to the registry, and search no other runtime for servers."""
    monkeypatch.setitem(REGISTRY, NAME, f"{__name__}:ExampleRuntime")  # type: ignore[arg-type]
    monkeypatch.setattr("orchestrator.servers.servers.REGISTRY", {NAME: REGISTRY[NAME]})
