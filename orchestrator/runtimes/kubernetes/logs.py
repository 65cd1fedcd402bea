"""The log of a server in a pod: each line once, through restarts and through streams that end before their run does."""

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

from orchestrator.core.logs.lines import LONGEST_LINE, Lines, complete_lines
from orchestrator.core.subprocesses import DEVNULL, Program
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.pod import CONTAINER
from orchestrator.runtimes.kubernetes.state import PodView, has_started

_PAUSE: Final = 0.5  # seconds between two looks, and before a stream that has ended is taken up again
_PIECE: Final = 1 << 16
_STAMP: Final = rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})(Z|[+-]\d\d:\d\d) "  # of `--timestamps` (kubelet, logs.go)
_LINE: Final = re.compile(rb"^" + _STAMP + rb"(.*\n)", re.MULTILINE)
_WITHIN: Final = re.compile(_STAMP)
_ENTRY: Final = 16 * 1024  # bytes of a line after which a runtime begins another entry: kubelet 1.20 stamps each

Look: TypeAlias = Callable[[], tuple[bool, PodView | None]]  # whether the server is there, and its pod


class NewLines:
    """Out of what kubectl's streams give, the lines that no stream before has given, without their stamps.

    By the stamps, and not by which run a stream is of: the API server knows of a restart seconds after a stream does.
    A line that breaks off with its stream is left to the next one.
    """

    def __init__(self, since: datetime | None = None) -> None:
        """Those that were written from a moment on."""
        self._since = since
        self._pod = ""  # another one may be on a node with another clock
        self._last: tuple[bytes, ...] = ()  # the stamp of the newest line that was given
        self._given: tuple[bytes, ...] = ()  # up to which the stream of now has nothing new
        self._rest = b""
        self._torn = False  # the rest is that of a line that was cut

    def words(self, pod: str) -> tuple[str, ...]:
        """kubectl's, for a stream of a pod that is taken up where those before have ended."""
        if pod != self._pod:
            self._pod, self._last = pod, ()
        self.begin()
        since = _moment(self._last)[0] if self._last else self._since
        moment = (f"--since-time={since.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}",) if since else ()
        return "--timestamps", *moment, pod

    def begin(self) -> None:
        """The next piece is the first of its stream, whichever was read since its words were asked for."""
        self._given, self._rest, self._torn = self._last, b"", False

    def of(self, piece: bytes) -> bytes:
        """The new lines that a piece of the stream completes."""
        data = self._rest + piece
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        cut = len(self._rest) > LONGEST_LINE
        if cut:
            begun = _WITHIN.match(self._rest)  # of what comes, which is of this line, whatever it begins with
            data, end, self._rest = data + b"\n", len(data) + 1, begun[0] if begun else b"-"
        lines = _LINE.findall(data, 0, end)
        if lines and self._torn:
            lines[0] = (*lines[0][:3], _WITHIN.sub(b"", lines[0][3]))
        self._torn = cut or (self._torn and not end)
        if self._given:
            lines = list(dropwhile(lambda line: _moment(line) <= _moment(self._given), lines))
        if not lines:
            return b""
        self._given, self._last = (), lines[-1][:3]
        texts = b"".join(text if len(text) <= _ENTRY else _WITHIN.sub(b"", text) for *_, text in lines)
        return texts.removesuffix(b"\n") if cut else texts  # the line goes on: a line end could divide a secret


class ServerLog:
    """What a server writes, and has written in the run before."""

    def __init__(self, cluster: Cluster, look: Look, since: datetime | None = None) -> None:
        """`look` tells what the API server knows of it, a second old at the most."""
        self._cluster, self._look = cluster, look
        self._lines = NewLines(since)
        self._read: tuple[object, ...] = ()  # which run was read
        self._following: Program | None = None  # by `tail`
        self._ended = -inf  # when what was followed ended

    def so_far(self) -> Iterator[bytes]:
        """Whole lines of what is there."""
        _, view = self._look()
        if view is not None and has_started(view.pod):
            yield from self._runs(view)

    def follow(self) -> Iterator[bytes]:
        """The same, and what comes, until the server is gone. Waits for its next run, or its next pod."""
        while True:
            there, view = self._look()
            if view is not None and self._has_more(view):
                yield from self._runs(view, "--follow")
            elif not there:
                return
            time.sleep(_PAUSE)

    def tail(self) -> Iterator[str]:
        """The lines that are new since the last call; it waits for none, but for those of a run before."""
        if self._following is None:
            _, view = self._look()
            if view is None or time.monotonic() - self._ended < _PAUSE or not self._has_more(view):
                return
            if view.restarts:
                yield from Lines(complete_lines(self._pieces(view, "--previous")))
            self._following = self._start(view, "--follow")
        data, ended = _at_hand(self._following)
        if ended:
            self.close()
        yield from Lines(complete_lines([self._lines.of(data)]))

    def close(self) -> None:
        """End what `tail` holds open."""
        if self._following is not None:
            self._following.end(signal.SIGKILL)
            self._following, self._ended = None, time.monotonic()

    def _has_more(self, view: PodView) -> bool:
        """Whether a pod has written, or writes, what was not read: its stream may have ended before its run."""
        run = (view.name, view.restarts, view.runs_since)
        more = has_started(view.pod) and (view.runs_since is not None or run != self._read)
        self._read = run
        return more

    def _runs(self, view: PodView, *options: str) -> Iterator[bytes]:
        """The run before, where there is one, and the one that runs.

        A restart comes between any two questions. Once the stream gives something its run is certain, and so is the one
        before it, which is then asked for (again) and comes first.
        """
        if view.restarts:
            yield from self._pieces(view, "--previous")
        with self._start(view, *options) as program:
            if not (first := _next(program)):
                return
            yield from self._pieces(view, "--previous")
            self._lines.begin()
            for piece in chain([first], iter(lambda: _next(program), b"")):
                yield self._lines.of(piece)

    def _pieces(self, view: PodView, *options: str) -> Iterator[bytes]:
        with self._start(view, *options) as program:
            for piece in iter(lambda: _next(program), b""):
                yield self._lines.of(piece)

    def _start(self, view: PodView, *options: str) -> Program:
        return self._cluster.start(
            "logs", "--container", CONTAINER, *options, *self._lines.words(view.name), errors=DEVNULL
        )


def _next(program: Program) -> bytes:
    """What it writes next, empty at its end."""
    return os.read(program.output.fileno(), _PIECE)


def _at_hand(program: Program) -> tuple[bytes, bool]:
    """What is there to be read, without waiting for more, and whether that was all."""
    descriptor = program.output.fileno()
    pieces: list[bytes] = []
    while select.select([descriptor], [], [], 0)[0]:
        if not (piece := os.read(descriptor, _PIECE)):
            return b"".join(pieces), True
        pieces.append(piece)
    return b"".join(pieces), False


def _moment(stamp: tuple[bytes, ...]) -> tuple[datetime, bytes]:
    """When it was: a second, and its nanoseconds."""
    return datetime.fromisoformat((stamp[0] + stamp[2]).decode()), stamp[1]
