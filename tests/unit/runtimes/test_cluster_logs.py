"""The log lines of a pod, each once, from streams of kubectl in the format of kubelet 1.20."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.logs import NewLines, ServerLog
from orchestrator.runtimes.kubernetes.state import PodView


def stamped(second: int, text: str, *, nano: int = 0, zone: str = "Z") -> bytes:
    return f"2026-11-22T10:00:{second:02}.{nano:09}{zone} {text}\n".encode()


def test_resumed_stream_yields_only_new_lines() -> None:
    lines = NewLines()
    assert lines.words("a") == ("--timestamps", "a")
    assert lines.of(stamped(1, "one") + stamped(2, "two", nano=5)) == b"one\ntwo\n"
    assert lines.words("a") == ("--timestamps", "--since-time=2026-11-22T10:00:02Z", "a")
    assert (
        lines.of(stamped(2, "before", nano=4) + stamped(2, "two", nano=5) + stamped(2, "three", nano=6)) == b"three\n"
    )


def test_shorter_stream_does_not_repeat_lines() -> None:
    lines = NewLines()
    lines.words("a")
    lines.of(stamped(1, "one") + stamped(2, "two"))
    lines.words("a")
    assert lines.of(stamped(1, "one")) == b""
    lines.words("a")
    assert lines.of(stamped(2, "two") + stamped(3, "three")) == b"three\n"


def test_incomplete_line_is_read_from_next_stream() -> None:
    lines = NewLines()
    lines.words("a")
    assert lines.of(stamped(1, "one") + stamped(2, "half a line")[:-6]) == b"one\n"
    lines.words("a")
    assert lines.of(stamped(1, "one") + stamped(2, "half a line")) == b"half a line\n"


def test_each_pod_has_its_own_timestamps() -> None:
    lines = NewLines()
    lines.words("a")
    lines.of(stamped(5, "one"))
    assert lines.words("b") == ("--timestamps", "b")
    assert lines.of(stamped(2, "two")) == b"two\n"


def test_timestamps_are_compared_across_time_zones() -> None:
    lines = NewLines()
    lines.words("a")
    lines.of(stamped(1, "one", zone="+01:00"))
    assert lines.words("a")[1] == "--since-time=2026-11-22T09:00:01Z"
    lines.of(b"")
    assert lines.of(b"2026-11-22T09:00:02.000000000Z two\n") == b"two\n"


def test_kubelet_messages_are_not_server_log_lines() -> None:
    lines = NewLines()
    lines.words("a")
    output = b"unable to retrieve container logs for containerd://0123\n"
    assert lines.of(output + stamped(1, "one")) == b"one\n"


def test_long_lines_are_joined_and_endless_lines_truncated() -> None:
    lines = NewLines()
    lines.words("a")
    entry = "x" * 16 * 1024
    assert lines.of(stamped(1, entry)[:-1] + stamped(1, "end", nano=1)) == f"{entry}end\n".encode()
    endless = b"".join(stamped(2, entry, nano=number)[:-1] for number in range(70))
    assert len(lines.of(endless)) > 1 << 20
    assert lines.of(stamped(3, "after")) == b"after\n"


class Restarting:
    """A cluster whose pod has restarted, which its API server does not report yet."""

    def __init__(self, previous: bytes, stream: bytes) -> None:
        self.previous, self.stream = previous, stream

    @contextmanager
    def start(self, *words: str, **_: object) -> Iterator[Any]:
        with tempfile.TemporaryFile() as output:
            output.write(self.previous if "--previous" in words else self.stream)
            output.seek(0)
            yield SimpleNamespace(output=output)


@pytest.mark.parametrize(
    ("previous", "stream"),
    [
        (stamped(1, "one"), stamped(2, "two")),  # restarted earlier
        (stamped(1, "one") + stamped(2, "two"), stamped(1, "one") + stamped(2, "two")),  # restarted later
        (b"", stamped(1, "one") + stamped(2, "two")),  # not restarted
    ],
)
def test_restart_between_polls_loses_no_lines(previous: bytes, stream: bytes) -> None:
    running = {"name": "server", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-22T10:00:00Z"}}}
    view = PodView(pod={"metadata": {"name": "a"}, "status": {"containerStatuses": [running]}})
    log = ServerLog(cast("Cluster", Restarting(previous, stream)), lambda: (True, view))
    assert b"".join(log.so_far()) == b"one\ntwo\n"


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 50))
def test_no_line_is_lost_or_repeated(breaks: list[int], size: int) -> None:
    """Streams break anywhere, begin at the second of `--since-time`, and are read in chunks of any size."""
    written = [(number, stamped(number // 10, f"line {number}", nano=number)) for number in range(100)]
    lines, received = NewLines(), b""
    for length in [*breaks, 10**6]:
        words = lines.words("a")
        second = int(words[1][-3:-1]) if len(words) == 3 else 0
        stream = b"".join(line for number, line in written if number // 10 >= second)[: length * 40]
        received += b"".join(lines.of(stream[offset : offset + size]) for offset in range(0, len(stream), size))
    assert received == b"".join(f"line {number}\n".encode() for number in range(100))


def test_endless_line_content_is_not_parsed_as_timestamp() -> None:
    lines = NewLines()
    lines.words("a")
    lines.of(stamped(1, "x" * (1 << 20))[:-1] + b"y")
    assert lines.of(b"9999-99-99T99:99:99.999999999Z z\n").endswith(b"z\n")
    assert lines.words("a") == ("--timestamps", "--since-time=2026-11-22T10:00:01Z", "a")
