"""What a line of sglang's log says: how far the start is, a port that is taken, a request of somebody else."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Final

from orchestrator.core.logs.lines import last_lines, lines_containing
from orchestrator.core.secrets import MAX_SPELLING, excerpt
from orchestrator.core.text import line_shapes

KEPT_LINES: Final = 40
KEPT_CHARACTERS: Final = 2000  # of each of them
_HELD_CHARACTERS: Final = KEPT_CHARACTERS + MAX_SPELLING  # enough to tell a secret that stands where it is cut

# In order of appearance, in lower case; wordings of sglang 0.5.10 to 0.5.23. A stage begins at its first line and never
# comes back, although every rank of a tp x dp layout writes its own lines.
_STAGES: Final = {
    "server_args=serverargs(": "starting",
    "init torch distributed begin": "connecting ranks",
    "load weight begin": "loading weights",
    "kv cache is allocated": "allocating the KV cache",
    "memory pool end": "allocating the KV cache",
    "capture ": "capturing",
    "capturing ": "capturing",
    "max_total_num_tokens=": "opening the port",
    "uvicorn running on": "warming up",
    "the server is fired up and ready to roll": "answering",
}
_LAST: Final = "answering"
_CAPTURE: Final = re.compile(r"capture (?:(?P<what>.+?) )??\w+ graph (?P<begins>begin)|capturing \w+ ")
_DRAFT: Final = "loading draft weights"  # with EAGLE a rank loads twice: the target, then the draft
_RANK: Final = re.compile(r"^\[[\d-]+ [\d:]+([^\]]*)\]")
# tqdm: `Loading safetensors checkpoint shards:  38% Completed | 18/47 [...]`, `Capturing batches (...):  5%|..| 1/20 [`
# and `Capturing num tokens (...):  2%|..| 1/58 [`
_STAMP: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")  # 0.5.10 to 0.5.23, in the server's own time zone
_COUNT: Final = re.compile(r"(?P<what>loading|capturing) .*?\|\s*(?P<n>\d+)/(?P<total>\d+) \[")
_PORT_TAKEN: Final = "error while attempting to bind on address"
_ACCESS: Final = re.compile(r'"(?:get|head) /(?:health|metrics)')  # someone's probe is not the server's progress
_ONCE: Final = (*(telltale for telltale, name in _STAGES.items() if name != "capturing"), _PORT_TAKEN)
_TELLTALES: Final = tuple(  # a line without any says nothing
    telltale.encode() for telltale in (*_STAGES, "loading ", "/health", "/metrics", _PORT_TAKEN)
)
_SHORT: Final = 16  # characters: of lines that are shorter it costs more to tell them apart than to search them
# What a user or a client wrote, not what happened: the arguments, and requests under --log-requests.
_QUOTING: Final = ("server_args=ServerArgs(", "Receive: obj=", "Finish: obj=")


def echoes_user_input(line: str) -> bool:
    """Whether the line repeats what was asked for, so that no word in it tells what happened."""
    return any(text in line for text in _QUOTING)


class _Says(Enum):
    """What a kind of lines says."""

    PROBED = auto()  # somebody asks: no sign of life
    COUNTED = auto()  # a progress bar: of some in a row the last one is enough
    MORE = auto()


def written_since(lines: Iterable[str], time: str) -> Iterator[str]:
    """The lines from that time on, as sglang puts it before its own: `2026-11-22 14:05:00`, in the server's time zone.

    A line without a time is as old as the one before it.
    """
    seen = False
    for line in lines:
        if not seen and (stamp := _STAMP.match(line)):
            seen = stamp[1] >= time
        if seen:
            yield line


class StartupLogParser:
    """Reads stages and counts out of log lines; holds the last lines and nothing else of the log."""

    def __init__(self) -> None:
        """Nothing has been read."""
        self.names: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = ""
        self.port_taken = False  # sglang 0.5.14 then neither serves nor exits for two minutes: it asks who has it
        self._loads: dict[str, int] = {}

    @property
    def stage(self) -> str:
        """What the server is doing."""
        return self.names[-1] if self.names else "waiting for the server's first line"

    @property
    def text(self) -> str:
        """What the server is doing and how far it is, for a progress line."""
        return f"{self.stage} {self.count}".rstrip()

    @property
    def last_lines(self) -> list[str]:
        """The last lines, secrets removed."""
        return [excerpt(line, KEPT_CHARACTERS) for line in self._last_lines]

    @property
    def says_ready(self) -> bool:
        """Whether the server's own log has said that it is ready."""
        return _LAST in self.names

    def feed(self, text: str) -> bool:
        """Take lines in; returns whether one of them is a sign of life.

        Lines that differ in numbers only say the same: what they say is looked up once, and of a progress bar the last
        state is read.
        """
        found = line_shapes(text, lower=True)
        if len(found) < _SHORT * found.count(b"\n") and not any(telltale in found for telltale in _TELLTALES):
            self._keep(last_lines(text, KEPT_LINES))
            return True
        lines, of_lines = text.split("\n"), found.split(b"\n")
        telling = _telling(b"\n".join(dict.fromkeys(of_lines)))
        done, alive = 0, False
        for index in [index for index, kind in enumerate(of_lines) if kind in telling]:
            if done < index:
                self._keep(lines[done:index])
                alive = True
            done, says = index + 1, telling[of_lines[index]]
            if says is not _Says.PROBED:
                alive = True
                if says is _Says.MORE or of_lines[done : done + 1] != [of_lines[index]]:
                    self._read(lines[index])
        self._keep(lines[done:])
        return alive or done < len(lines)

    def _read(self, line: str) -> None:
        lower = line.lower()
        if self._last_lines and _COUNT.search(lower) and _COUNT.search(self._last_lines[-1].lower()):
            self._last_lines.pop()  # of a progress bar the newest state is enough
        self._keep([line])
        begun = self._stage_of(lower)
        if begun is not None and begun not in self.names:
            self.names.append(begun)
            self.count = ""
        self._read_count(lower)
        self.port_taken |= _PORT_TAKEN in lower

    def _keep(self, lines: Sequence[str]) -> None:
        """The last ones are shown where the start fails."""
        self._last_lines.extend(line[:_HELD_CHARACTERS] for line in lines[-KEPT_LINES:])

    def _stage_of(self, line: str) -> str | None:
        for telltale, name in _STAGES.items():
            if telltale not in line:
                continue
            if name != "capturing":
                return self._load_of(line) if name == "loading weights" else name
            if found := _CAPTURE.search(line):
                return self._capture_of(found["what"], begins=found["begins"] is not None)
        return None

    def _capture_of(self, what: str | None, *, begins: bool) -> str | None:
        """Its name: `capturing target prefill graphs`; a bar of one that has begun is no stage of its own."""
        if not begins and self.names and self.names[-1].startswith("capturing"):
            return None
        return f"capturing {what} graphs" if what else "capturing graphs"

    def _load_of(self, line: str) -> str:
        rank = _RANK.match(line)
        key = rank[1] if rank else ""
        self._loads[key] = self._loads.get(key, 0) + 1
        return "loading weights" if self._loads[key] == 1 else _DRAFT

    def _read_count(self, line: str) -> None:
        found = _COUNT.search(line)
        if found and self.names and self.names[-1].startswith(found["what"]):
            self.count = f"{found['n']}/{found['total']}"


def _telling(of_lines: bytes) -> dict[bytes, _Says]:
    """What those kinds of lines say, in lower case, that say more than that the server lives."""
    said = {
        kind: _says(kind.decode(errors="replace")) for each in _TELLTALES for kind in lines_containing(each, of_lines)
    }
    return {kind: says for kind, says in said.items() if says is not None}


def _says(kind: str) -> _Says | None:
    if _ACCESS.search(kind):
        return _Says.PROBED
    if any(telltale in kind for telltale in _ONCE):
        return _Says.MORE
    if _COUNT.search(kind):
        return _Says.COUNTED
    return _Says.MORE if _CAPTURE.search(kind) else None
