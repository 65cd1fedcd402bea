"""The log of a container: followed until the server has ended, and saved when the container is removed."""

import errno
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest
from docker.models.containers import Container

from orchestrator.core.logs.lines import LogTail
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import LOG, ServerState, Status, Unit
from orchestrator.runtimes.docker.logs import ContainerTail, container_log, save_log
from orchestrator.runtimes.docker.runtime import DockerRuntime


def test_saved_log_is_redacted_and_complete(tmp_path: Path) -> None:
    class Finished:
        def logs(self, **_: object) -> Iterator[bytes]:
            yield b"ServerArgs(api_key='sk-12345', model='tiny')\n"
            yield "naïve".encode()[:3]  # a chunk may end inside a character
            yield "naïve\n".encode()[3:]

    container = cast("Container", Finished())
    save_log(container, tmp_path)
    assert list(LogTail(tmp_path / LOG).to_end()) == ["ServerArgs(api_key='[REDACTED]', model='tiny')", "naïve"]
    assert [path.name for path in tmp_path.iterdir()] == ["server.log"]
    assert list(container_log(container))[1] == "naïve"


def test_missing_saved_log_is_empty(tmp_path: Path) -> None:
    assert list(LogTail(tmp_path / LOG).to_end()) == []


class Stoppable:
    removed = False

    def stop(self, *, timeout: int) -> None:
        assert timeout == 0

    def remove(self, **_: bool) -> None:
        self.removed = True


def unit_in(run_dir: Path) -> Unit:
    fields = {"profile": "", "plan_digest": "", "url": "", "runtime_id": "1"}
    return Unit(runtime="docker", name="a", run_dir=str(run_dir), **fields)


def stopped(home: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Stop a server whose container has this run directory; return whether the container was removed."""
    container, runtime = Stoppable(), DockerRuntime(Home(home), "unix:///nowhere")
    monkeypatch.setattr(runtime, "_get", lambda _: container)
    runtime.stop(unit_in(run_dir), grace=0)
    return container.removed


@pytest.mark.parametrize(
    "below", ["runs/../../elsewhere", "other/runs/a/1", "runs/a/gone", "runs/b/1", "runs/a", "runs", "runs/a/../b/1"]
)
def test_log_is_saved_only_in_own_run_directory(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The label may come from another host, home or user; the log was once written to any directory that it named."""
    for folder in ("elsewhere", "home/runs/a", "home/runs/b/1", "home/other/runs/a/1"):
        (tmp_path / folder).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))

    assert stopped(tmp_path / "home", tmp_path / "home" / below, monkeypatch)

    assert sorted(tmp_path.rglob("*")) == before
    assert "cannot save the log" in capsys.readouterr().err


def test_server_stops_even_if_log_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs/a/1").mkdir(parents=True)

    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("orchestrator.runtimes.docker.runtime.save_log", disk_full)
    assert stopped(tmp_path, tmp_path / "runs/a/1", monkeypatch)
    assert "cannot save the log: No space left on device" in capsys.readouterr().err


class Stamped:
    """A container whose log has timestamps and loses rotated lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sent = 0

    def write(self, second: int, text: str) -> None:
        self.lines.append(f"2026-01-01T00:00:{second:02}.000000000Z {text}\n")

    def logs(self, *, since: float | None, timestamps: bool, **_: bool) -> Iterator[bytes]:
        assert timestamps
        for line in self.lines:
            timestamp = datetime.fromisoformat(f"{line[:26]}+00:00").timestamp()
            if since is None or timestamp >= since:
                self.sent += 1
                yield line.encode()


def test_log_is_followed_until_the_server_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container, runtime = Stamped(), DockerRuntime(Home(tmp_path), "unix:///nowhere")
    states = iter((Status.RUNNING, Status.RUNNING, Status.EXITED))

    def state(_: Unit) -> ServerState:
        container.write(len(container.lines), "loads with --api-key sk-12345")
        return ServerState(status=next(states))

    monkeypatch.setattr("orchestrator.runtimes.saved_logs._INTERVAL", 0)
    monkeypatch.setattr(runtime, "_get", lambda _: container)
    monkeypatch.setattr(runtime, "state", state)
    assert list(runtime.logs(unit_in(tmp_path), follow=True)) == ["loads with --api-key [REDACTED]"] * 3


def test_log_lines_are_downloaded_once() -> None:
    container = Stamped()
    tail = ContainerTail(lambda: cast("Container", container))
    container.write(1, "one")
    container.write(2, "10%\r20%")
    assert list(tail()) == ["one", "10%", "20%"]
    assert list(tail()) == []
    container.write(3, "three")
    assert list(tail()) == ["three"]
    assert container.sent <= 5  # each line, and the last seen line again at each poll


def test_log_continues_after_rotation() -> None:
    """Lines were once skipped by number, which lost all new lines after a rotation."""
    container = Stamped()
    tail = ContainerTail(lambda: cast("Container", container))
    for second in range(5):
        container.write(second, f"line {second}")
    assert len(list(tail())) == 5
    del container.lines[:4]
    container.write(6, "after the rotation")
    assert list(tail()) == ["after the rotation"]


def test_removed_container_has_no_new_lines() -> None:
    assert list(ContainerTail(lambda: None)()) == []
