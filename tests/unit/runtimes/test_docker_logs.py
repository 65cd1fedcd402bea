"""A container's log, followed through restarts and kept when the container goes."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from docker.errors import NotFound
from docker.models.containers import Container

from orchestrator.core.errors import HostError
from orchestrator.core.log_lines import LogTail
from orchestrator.runtimes import LOG
from orchestrator.runtimes.docker.logs import ContainerTail, container_log, follow_log, save_log


class Restarting:
    """A container with three runs; each look at it (`reload`) takes it one state further."""

    def __init__(self, *, removed: bool = False) -> None:
        self._states = iter(
            [
                ("running", "2026-01-01T00:00:00Z"),  # Docker has not noticed the end of the first run yet
                ("restarting", "2026-01-01T00:00:00Z"),
                ("running", "2026-01-01T00:01:00Z"),
                ("restarting", "2026-01-01T00:01:00Z"),
                *([] if removed else [("running", "2026-01-01T00:02:00Z"), ("exited", "2026-01-01T00:02:00Z")]),
            ]
        )
        self.asked_since: list[float | None] = []
        self._set("running", "2026-01-01T00:00:00Z")

    def _set(self, status: str, started: str) -> None:
        finished = started.replace("00Z", "30Z")
        self.attrs: dict[str, Any] = {"State": {"Status": status, "StartedAt": started, "FinishedAt": finished}}

    def reload(self) -> None:
        try:
            self._set(*next(self._states))
        except StopIteration:
            raise NotFound("gone") from None

    def logs(self, *, since: float | None, **_: bool) -> Iterator[bytes]:
        self.asked_since.append(since)
        yield b"run begins\nloads "
        yield f"{len(self.asked_since)}\n".encode()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.runtimes.docker.logs._PAUSE", 0)


def test_a_log_is_followed_from_run_to_run() -> None:
    container = Restarting()
    lines = list(follow_log(cast("Container", container)))
    assert lines == ["run begins", "loads 1", "run begins", "loads 2", "run begins", "loads 3"]
    assert container.asked_since[0] is None
    assert container.asked_since[1:] == sorted({since for since in container.asked_since if since is not None})


def test_following_ends_when_the_container_is_removed() -> None:
    assert list(follow_log(cast("Container", Restarting(removed=True))))[-1] == "loads 2"


def test_a_stream_that_was_cut_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.runtimes.docker.logs._SETTLED", 0.1)
    container = Restarting()
    container.reload = lambda: None  # type: ignore[method-assign] # the same run, at every look
    with pytest.raises(HostError, match="the log was cut off while the server runs on"):
        list(follow_log(cast("Container", container)))


def test_a_kept_log_is_redacted_and_whole(tmp_path: Path) -> None:
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


def test_a_log_that_was_never_kept_is_empty(tmp_path: Path) -> None:
    assert list(LogTail(tmp_path / LOG).to_end()) == []


def test_on_another_machine_the_log_is_not_kept_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_log(cast("Container", Restarting()), tmp_path / "elsewhere")
    assert "the log is not kept" in capsys.readouterr().err


class Stamped:
    """A container whose log is asked for with stamps; what Docker rotated away is gone from it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sent = 0

    def write(self, second: int, text: str) -> None:
        self.lines.append(f"2026-01-01T00:00:{second:02}.000000000Z {text}\n")

    def logs(self, *, since: float | None, timestamps: bool, **_: bool) -> Iterator[bytes]:
        assert timestamps
        for line in self.lines:
            at = datetime.fromisoformat(f"{line[:26]}+00:00").timestamp()
            if since is None or at >= since:
                self.sent += 1
                yield line.encode()


def test_a_log_is_sent_once_however_often_it_is_looked_at() -> None:
    """The whole of it used to be downloaded at each look."""
    container = Stamped()
    tail = ContainerTail(lambda: cast("Container", container))
    container.write(1, "one")
    container.write(2, "10%\r20%")
    assert list(tail()) == ["one", "10%", "20%"]
    assert list(tail()) == []
    container.write(3, "three")
    assert list(tail()) == ["three"]
    assert container.sent <= 5  # each line, and the last one seen once more at each look


def test_a_log_that_docker_rotates_goes_on() -> None:
    """Lines were skipped by their number, and so were all new ones after a rotation."""
    container = Stamped()
    tail = ContainerTail(lambda: cast("Container", container))
    for second in range(5):
        container.write(second, f"line {second}")
    assert len(list(tail())) == 5
    del container.lines[:4]
    container.write(6, "after the rotation")
    assert list(tail()) == ["after the rotation"]


def test_a_container_that_is_gone_has_no_new_lines() -> None:
    assert list(ContainerTail(lambda: None)()) == []
