"""Waiting that tells the truth: what the server is doing, from its own log, until it really serves.

A server is ready when three things agree: its own log says so, `/health` answers 200 (which in sglang means that a
token was generated: 0.5.14, entrypoints/http_server.py:561-635), and the model behind the URL is the one that was
started. Each alone has been wrong: the log of a server behind a port that was not published, a health check answered
by a leftover on the same port.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import httpx

from orchestrator.core.console import Progress
from orchestrator.core.errors import NotReadyError
from orchestrator.core.secret import Secret, redact
from orchestrator.runtimes.base import ServerState, Status

POLL_SECONDS: Final = 0.2
MAX_POLL_SECONDS: Final = 2.0
# sglang gives its own health request 20 s (SGLANG_HEALTH_CHECK_TIMEOUT) before it answers 503.
HEALTH_TIMEOUT: Final = httpx.Timeout(25.0, connect=2.0)
KEPT_LINES: Final = 40
MAX_LINE_BYTES: Final = 64 * 1024
CHUNK_BYTES: Final = 1024 * 1024

# In order of appearance; wordings of sglang 0.5.10 to 0.5.23. A stage begins at its first line and never comes back,
# although every rank of a tp x dp layout writes its own lines.
_STAGES: Final = (
    ("starting", re.compile(r"server_args=ServerArgs\(")),
    ("connecting ranks", re.compile(r"Init torch distributed begin", re.IGNORECASE)),
    ("loading weights", re.compile(r"Load weight begin", re.IGNORECASE)),
    ("allocating the KV cache", re.compile(r"KV Cache is allocated|Memory pool end", re.IGNORECASE)),
    ("capturing graphs", re.compile(r"Capture .*graph.* begin|Capturing batches", re.IGNORECASE)),
    ("opening the port", re.compile(r"max_total_num_tokens=", re.IGNORECASE)),
    ("warming up", re.compile(r"Uvicorn running on", re.IGNORECASE)),
    ("answering", re.compile(r"The server is fired up and ready to roll", re.IGNORECASE)),
)
_DRAFT: Final = "loading draft weights"  # with EAGLE a rank loads twice: the target, then the draft
_LAST: Final = _STAGES[-1][0]
_RANK: Final = re.compile(r"^\[[\d-]+ [\d:]+([^\]]*)\]")
# tqdm: `Loading safetensors checkpoint shards:  38% Completed | 18/47 [...]`, `Capturing batches (...):  5%|..| 1/20 [`
_COUNT: Final = re.compile(r"(?P<what>loading|capturing batches).*?\|\s*(?P<n>\d+)/(?P<total>\d+) \[", re.IGNORECASE)
# After this sglang 0.5.14 neither serves nor exits for two minutes: its warm-up asks the stranger on the port.
_REFUSED: Final = re.compile(r"error while attempting to bind on address")
_ACCESS: Final = re.compile(r'"(?:GET|HEAD) /(?:health|metrics)')  # someone's probe is not the server's progress


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the start and the second, counted from the beginning of the wait, at which it was first seen."""

    name: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A server that serves: how long it took in seconds, and its stages in order."""

    seconds: float
    stages: tuple[Stage, ...]


class LogTail:
    """The new lines of a growing file, at each call, in bounded memory.

    A carriage return ends a line as well (progress bars). A file that is not there yet has no lines; one that was
    truncated or replaced is read from its beginning. An unfinished line waits for its end, at most 64 KiB of it.
    """

    def __init__(self, path: Path) -> None:
        """Read `path` from its beginning."""
        self._path = path
        self._offset = 0
        self._inode = 0
        self._rest = b""

    def __call__(self) -> Iterator[str]:
        """The lines that were completed since the last call."""
        while chunk := self._read():
            *lines, self._rest = re.split(rb"\r\n|\r|\n", self._rest + chunk)
            if len(self._rest) > MAX_LINE_BYTES:
                lines.append(self._rest)
                self._rest = b""
            yield from (line.decode(errors="replace") for line in lines if line)

    def to_end(self) -> Iterator[str]:
        """All new lines of a log that nobody writes to any more, an unfinished last one included."""
        yield from self()
        if self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""

    def _read(self) -> bytes:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return b""
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset, self._rest = status.st_ino, 0, b""
            file.seek(self._offset)
            chunk = file.read(CHUNK_BYTES)
            self._offset += len(chunk)
            return chunk


def unseen(read: Callable[[], Iterable[str]]) -> Callable[[], Iterator[str]]:
    """A log that can only be read whole (`Runtime.logs`) as one that gives its new lines at each call."""
    seen = 0

    def new_lines() -> Iterator[str]:
        nonlocal seen
        for line in islice(read(), seen, None):
            seen += 1
            yield line

    return new_lines


class StageReader:
    """Reads stages and counts out of log lines; holds the last lines and nothing else of the log."""

    def __init__(self) -> None:
        """Nothing has been read."""
        self.names: list[str] = []
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = ""
        self._loads: dict[str, int] = {}

    @property
    def text(self) -> str:
        """What the server is doing, for a progress line."""
        name = self.names[-1] if self.names else "waiting for the server's first line"
        return f"{name} {self.count}".rstrip()

    @property
    def says_ready(self) -> bool:
        """Whether the server's own log has said that it is ready."""
        return _LAST in self.names

    def feed(self, line: str) -> tuple[bool, str | None]:
        """Take a line in; returns whether it is a sign of life, and the name of a stage that it begins."""
        if _ACCESS.search(line):
            return False, None
        if self.last_lines and _COUNT.search(line) and _COUNT.search(self.last_lines[-1]):
            self.last_lines.pop()  # of a progress bar the newest state is enough
        self.last_lines.append(line)
        begun = self._stage_of(line)
        if begun in self.names:
            begun = None
        if begun:
            self.names.append(begun)
            self.count = ""
        self._read_count(line)
        return True, begun

    def _stage_of(self, line: str) -> str | None:
        for name, pattern in _STAGES:
            if pattern.search(line):
                return self._load_of(line) if name == "loading weights" else name
        return None

    def _load_of(self, line: str) -> str:
        rank = _RANK.match(line)
        key = rank[1] if rank else ""
        self._loads[key] = self._loads.get(key, 0) + 1
        return "loading weights" if self._loads[key] == 1 else _DRAFT

    def _read_count(self, line: str) -> None:
        found = _COUNT.search(line)
        wanted = "capturing" if self.names and self.names[-1] == "capturing graphs" else "loading"
        if found and self.names and self.names[-1].startswith(wanted) and found["what"].lower().startswith(wanted):
            self.count = f"{found['n']}/{found['total']}"


@dataclass(frozen=True, kw_only=True)
class Starting:
    """A server that was started, as the wait sees it.

    `log` gives the lines that are new since its last call (`LogTail`, or `unseen` over a runtime's `logs`); `state` is
    what the runtime says of it.
    """

    url: str  # base URL as reached from this machine
    served_name: str
    api_key: Secret | None
    log: Callable[[], Iterable[str]]
    state: Callable[[], ServerState]


def wait(
    server: Starting,
    *,
    silence: float,
    timeout: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    transport: httpx.BaseTransport | None = None,
) -> Ready:
    """Wait until the server serves its model.

    Gives up at once when it has exited or was restarted, when nothing has moved for `silence` seconds, and, where the
    user has set one, after `timeout` seconds. Raises NotReadyError with the last log lines, secrets removed, in its
    details.
    """
    shown = progress or Progress()
    headers = {"Authorization": f"Bearer {server.api_key.reveal()}"} if server.api_key else {}
    with httpx.Client(
        base_url=server.url, headers=headers, timeout=HEALTH_TIMEOUT, transport=transport, trust_env=False
    ) as client:
        attempt = _Wait(server, client=client, clock=clock)
        try:
            began = clock()
            while (ready := attempt.look()) is None:
                shown.update(attempt.reader.text, transient=f"{attempt.elapsed:.0f} s")
                attempt.give_up_after(silence=silence, timeout=timeout)
                # Half of the time at most goes into looking: the log of a far container is sent anew each time.
                sleep(max(POLL_SECONDS, min(clock() - began, MAX_POLL_SECONDS)))
                began = clock()
            shown.update(f"ready after {ready.seconds:.1f} s")
        finally:
            shown.done()
    return ready


class _Wait:
    """One wait: what has been seen so far."""

    def __init__(self, server: Starting, *, client: httpx.Client, clock: Callable[[], float]) -> None:
        self.reader = StageReader()
        self._server, self._client, self._clock = server, client, clock
        self._start = self._moved = clock()
        self._stages: list[Stage] = []
        self._answer = ""  # what /health said last
        self._restarts = server.state().restarts

    @property
    def elapsed(self) -> float:
        return self._clock() - self._start

    def look(self) -> Ready | None:
        """Look once at the process, the log and the port."""
        state = self._server.state()  # before the log: what it wrote before it exited is then read as well
        self._read_log()
        self._refuse_dead(state)
        if not (self.reader.says_ready and self._is_healthy()):
            return None
        self._refuse_stranger()
        return Ready(seconds=self.elapsed, stages=tuple(self._stages))

    def give_up_after(self, *, silence: float, timeout: float | None) -> None:
        doing = self.reader.text
        quiet = self._clock() - self._moved
        answer = f"; `/health`: {self._answer}" if self._answer else ""
        if quiet >= silence:
            hint = "`deploy diagnose` names known causes; a longer `waiting.silence` in the profile waits longer"
            raise self._error(f"nothing has moved for {quiet:.0f} s while {doing}{answer}", hint=hint)
        if timeout is not None and self.elapsed >= timeout:
            raise self._error(
                f"not ready within {timeout:g} s: still {doing}{answer}", hint="give `--timeout` more seconds, or none"
            )

    def _read_log(self) -> None:
        for line in self._server.log():
            was_ready = self.reader.says_ready
            alive, begun = self.reader.feed(line)
            if alive and not was_ready:  # later lines may be the echo of our own health requests
                self._moved = self._clock()
            if _REFUSED.search(line):
                raise self._error(f"the port of `{self._server.url}` is taken by another process")
            if begun:
                self._stages.append(Stage(name=begun, at=self.elapsed))

    def _refuse_dead(self, state: ServerState) -> None:
        doing = self.reader.text
        if state.restarts > self._restarts:
            raise self._error(f"the server died while {doing} and was started again")
        if state.status is Status.ABSENT:
            raise self._error(f"the server is gone: something else removed it while {doing}")
        if state.status is not Status.RUNNING:
            code = "" if state.exit_code is None else f" with code {state.exit_code}"
            reason = f" ({state.detail})" if state.detail else ""
            raise self._error(f"the server exited{code} while {doing}, after {self.elapsed:.0f} s{reason}")

    def _is_healthy(self) -> bool:
        try:
            status = self._client.get("/health").status_code
            answer = str(status)
        except httpx.HTTPError as error:
            status, answer = 0, f"no answer ({type(error).__name__})"
        if answer != self._answer:
            self._answer, self._moved = answer, self._clock()
        return status == httpx.codes.OK

    def _refuse_stranger(self) -> None:
        try:
            response = self._client.get("/v1/models")
            names = [model["id"] for model in response.raise_for_status().json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise self._error(f"`{self._server.url}` does not say which model it serves: {error}") from error
        if self._server.served_name not in names:
            raise self._error(
                f"another server answers at `{self._server.url}`: it serves `{', '.join(names)}`, "
                f"not `{self._server.served_name}`",
                hint="stop it, or set another `server.port`",
            )

    def _error(self, message: str, *, hint: str = "") -> NotReadyError:
        secrets = [self._server.api_key] if self._server.api_key else []
        lines = "\n".join(self.reader.last_lines) or "(the server has written nothing)"
        return NotReadyError(
            redact(message, secrets),
            hint=hint or "`deploy diagnose` names known causes",
            details=redact(lines, secrets),
        )
