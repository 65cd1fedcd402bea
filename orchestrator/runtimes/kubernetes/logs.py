"""The log of a server in a pod: each line once, across restarts and streams that break off before their run ends."""

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import chain, dropwhile
from math import inf
from typing import Final, TypeAlias

from orchestrator.core.logs.lines import MAX_LINE_BYTES, Lines, complete_lines
from orchestrator.core.subprocesses import DEVNULL, Program
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.record import CONTAINER
from orchestrator.runtimes.kubernetes.state import PodView, has_started

_INTERVAL: Final = 0.5  # seconds between two polls, and before a stream that ended is resumed
_CHUNK_BYTES: Final = 1 << 16
_STAMP: Final = rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})(Z|[+-]\d\d:\d\d) "  # of `--timestamps` (kubelet, logs.go)
_LINE: Final = re.compile(rb"^" + _STAMP + rb"(.*\n)", re.MULTILINE)
_STAMP_INSIDE: Final = re.compile(_STAMP)
_ENTRY: Final = 16 * 1024  # bytes at which a container runtime splits a line; kubelet 1.20 stamps each entry

Probe: TypeAlias = Callable[[], tuple[bool, PodView | None]]  # whether the server exists, and its pod


class NewLines:
    """A filter over kubectl's log streams that passes each line once, without its timestamp.

    It compares timestamps, not runs: the API server reports a restart seconds after a stream does. A line that breaks
    off at the end of a stream is taken from the next stream.
    """

    def __init__(self) -> None:
        """Begin before the first line."""
        self._pod = ""  # a new pod may run on a node with another clock
        self._last: tuple[bytes, ...] = ()  # timestamp of the newest line passed
        self._skip_until: tuple[bytes, ...] = ()  # the current stream has nothing new up to this timestamp
        self._rest = b""
        self._truncated = False  # `_rest` belongs to a line that was cut

    def words(self, pod: str) -> tuple[str, ...]:
        """Return kubectl's arguments for a pod's next stream, which continues where the previous ones ended."""
        if pod != self._pod:
            self._pod, self._last = pod, ()
        self.begin()
        if not self._last:
            return "--timestamps", pod
        second = _moment(self._last)[0].astimezone(UTC)
        return "--timestamps", f"--since-time={second.strftime('%Y-%m-%dT%H:%M:%SZ')}", pod

    def begin(self) -> None:
        """Begin a stream with the next chunk, even if another stream was read since `words`."""
        self._skip_until, self._rest, self._truncated = self._last, b"", False

    def of(self, chunk: bytes) -> bytes:
        """Return the new lines that a chunk of the stream completes."""
        data = self._rest + chunk
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        cut = len(self._rest) > MAX_LINE_BYTES
        if cut:
            begun = _STAMP_INSIDE.match(self._rest)  # the timestamp, for the rest of this line
            data, end, self._rest = data + b"\n", len(data) + 1, begun[0] if begun else b"-"
        lines = _LINE.findall(data, 0, end)
        if lines and self._truncated:
            lines[0] = (*lines[0][:3], _STAMP_INSIDE.sub(b"", lines[0][3]))
        self._truncated = cut or (self._truncated and not end)
        if self._skip_until:
            lines = list(dropwhile(lambda line: _moment(line) <= _moment(self._skip_until), lines))
        if not lines:
            return b""
        self._skip_until, self._last = (), lines[-1][:3]
        texts = b"".join(text if len(text) <= _ENTRY else _STAMP_INSIDE.sub(b"", text) for *_, text in lines)
        return texts.removesuffix(b"\n") if cut else texts  # the line continues; a newline here could split a secret


class ServerLog:
    """The log of a server in its pods, including the previous run."""

    def __init__(self, cluster: Cluster, probe: Probe) -> None:
        """Read the log of a server. `probe` returns its state at the API server, at most three seconds old."""
        self._cluster, self._probe = cluster, probe
        self._lines = NewLines()
        self._read: tuple[object, ...] = ()  # identity of the run read last
        self._following: Program | None = None  # the stream that `tail` follows
        self._ended = -inf  # monotonic time at which the followed stream ended

    def so_far(self) -> Iterator[bytes]:
        """Yield the complete lines written so far."""
        _, view = self._probe()
        if view is not None and has_started(view.pod):
            yield from self._runs(view)

    def follow(self) -> Iterator[bytes]:
        """Yield all lines, old and new, until the server is deleted; between runs and pods, wait for the next."""
        while True:
            exists, view = self._probe()
            if view is not None and self._has_more(view):
                yield from self._runs(view, "--follow")
            elif not exists:
                return
            time.sleep(_INTERVAL)

    def tail(self) -> Iterator[str]:
        """Yield the lines since the last call. Waits only while reading the log of a previous run."""
        if self._following is None:
            _, view = self._probe()
            if view is None or time.monotonic() - self._ended < _INTERVAL or not self._has_more(view):
                return
            if view.restarts:
                yield from Lines(complete_lines(self._chunks(view, "--previous")))
            self._following = self._start(view, "--follow")
        data, ended = _at_hand(self._following)
        if ended:
            self.close()
        yield from Lines(complete_lines([self._lines.of(data)]))

    def close(self) -> None:
        """End the stream that `tail` follows."""
        if self._following is not None:
            self._following.end(signal.SIGKILL)
            self._following, self._ended = None, time.monotonic()

    def _has_more(self, view: PodView) -> bool:
        """Return whether a pod has unread output or may write more: its stream may have ended before its run."""
        run = (view.name, view.restarts, view.runs_since)
        has_more = has_started(view.pod) and (view.runs_since is not None or run != self._read)
        self._read = run
        return has_more

    def _runs(self, view: PodView, *options: str) -> Iterator[bytes]:
        """Yield the lines of the previous run, if any, and of the current run.

        A restart can happen between any two requests. The first chunk of the stream settles which run is current, and
        so which is previous; the previous run is then requested (again) and yielded first.
        """
        if view.restarts:
            yield from self._chunks(view, "--previous")
        with self._start(view, *options) as program:
            if not (first := _next(program)):
                return
            yield from self._chunks(view, "--previous")
            self._lines.begin()
            for piece in chain([first], iter(lambda: _next(program), b"")):
                yield self._lines.of(piece)

    def _chunks(self, view: PodView, *options: str) -> Iterator[bytes]:
        with self._start(view, *options) as program:
            for piece in iter(lambda: _next(program), b""):
                yield self._lines.of(piece)

    def _start(self, view: PodView, *options: str) -> Program:
        return self._cluster.start(
            "logs", "--container", CONTAINER, *options, *self._lines.words(view.name), errors=DEVNULL
        )


def _next(program: Program) -> bytes:
    """Return the next output of the program, empty at its end."""
    return os.read(program.output.fileno(), _CHUNK_BYTES)


def _at_hand(program: Program) -> tuple[bytes, bool]:
    """Return the output available without waiting, and whether the stream has ended."""
    descriptor = program.output.fileno()
    pieces: list[bytes] = []
    while select.select([descriptor], [], [], 0)[0]:
        if not (piece := os.read(descriptor, _CHUNK_BYTES)):
            return b"".join(pieces), True
        pieces.append(piece)
    return b"".join(pieces), False


def _moment(stamp: tuple[bytes, ...]) -> tuple[datetime, bytes]:
    """Return a timestamp as a second and its nanoseconds."""
    return datetime.fromisoformat((stamp[0] + stamp[2]).decode()), stamp[1]
