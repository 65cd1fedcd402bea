"""A start that fails, in whatever way: nothing of it stays, unless it is to be looked at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.commands import up
from orchestrator.commands.artifacts import render_artifacts
from orchestrator.commands.planning import load
from orchestrator.commands.servers import Fleet
from orchestrator.core.errors import DeployError, NotReadyError
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import Handle, ServerState, Status


class Recording:
    """A runtime that starts nothing and notes what is asked of it."""

    def __init__(self) -> None:
        self.servers: list[Handle] = []

    def start(self, *_: object, name: str, run_dir: Path, **__: object) -> Handle:
        self.servers = [
            Handle(
                runtime="process",
                name=name,
                profile="cpu-tiny",
                plan_digest="d",
                url="http://127.0.0.1:1",
                run_dir=str(run_dir),
                identity="1",
            )
        ]
        return self.servers[0]

    def find(self, _name: str | None = None) -> tuple[Handle, ...]:
        return tuple(self.servers)

    def state(self, _handle: Handle) -> ServerState:
        return ServerState(status=Status.RUNNING, exit_code=None, restarts=0, started_at=None, detail="")

    def logs(self, _handle: Handle, *, follow: bool) -> Iterator[str]:
        assert not follow
        yield "a line"

    def stop(self, _handle: Handle, *, grace: float) -> None:
        assert grace == 0
        self.servers = []


def start(*, keep: bool) -> up.Start:
    order = up.Order(
        profile="cpu-tiny",
        name=None,
        overrides=(),
        host=None,
        replace=False,
        keep=keep,
        strict_kernels=False,
        timeout=None,
    )
    artifacts = render_artifacts(load("cpu-tiny").plan)
    return up.Start(name="tiny", order=order, artifacts=artifacts, records={}, key=None)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("failure", "shown"),
    [(NotReadyError("no"), DeployError), (KeyboardInterrupt(), DeployError), (OSError(28, "full"), OSError)],
)
def test_a_start_that_fails_leaves_nothing_unless_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: BaseException, shown: type[Exception], keep: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(up, "await_ready", fail)
    runtime = Recording()
    with pytest.raises(shown):
        up._bring_up(start(keep=keep), Fleet(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert bool(runtime.servers) == keep
