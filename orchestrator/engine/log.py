"""A parser of sglang's log: startup stages and their progress, a taken port, lines without progress."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final

from orchestrator.core.logs.lines import last_lines, lines_containing
from orchestrator.core.secrets import MAX_SPELLING, excerpt
from orchestrator.core.text import line_shapes

MAX_LINES: Final = 40
MAX_CHARACTERS: Final = 2000  # per saved line
_BUFFER_CHARACTERS: Final = MAX_CHARACTERS + MAX_SPELLING  # enough to redact a secret at the end of an excerpt

# In order of appearance, in lower case; wording of sglang 0.5.10 to 0.5.23. A stage begins at its first line and never
# returns, although every rank of a tp x dp layout writes its own lines.
_STAGES: Final = {
    "server_args=serverargs(": "starting",
    "init torch distributed begin": "connecting ranks",
    "load weight begin": "loading weights",
    "load weight end": "allocating the KV cache",  # on a CPU this takes minutes, and is logged at its end
    "kv cache is allocated": "allocating the KV cache",
    "memory pool end": "allocating the KV cache",
    "capture ": "capturing",
    "capturing ": "capturing",
    "max_total_num_tokens=": "opening the port",
    "uvicorn running on": "warming up",
    "the server is fired up and ready to roll": "answering",
}
_LAST: Final = "answering"
_CAPTURE: Final = re.compile(r"capture (?:(?P<graphs>.+?) )??\w+ graph (?P<begins>begin)|capturing \w+ ")
_DRAFT: Final = "loading draft weights"  # with EAGLE a rank loads twice: the target, then the draft
_RANK: Final = re.compile(r"^\[[\d-]+ [\d:]+([^\]]*)\]")
# tqdm: `Loading safetensors checkpoint shards:  38% Completed | 18/47 [...]`, `Capturing batches (...):  5%|..| 1/20 [`
# and `Capturing num tokens (...):  2%|..| 1/58 [`
_COUNT: Final = re.compile(r"(?P<stage>loading|capturing) .*?\|\s*(?P<n>\d+)/(?P<total>\d+) \[")
_PORT_IN_USE: Final = "error while attempting to bind on address"
_ACCESS: Final = re.compile(r'"(?:get|head) /(?:health|metrics)')  # a client's probe shows no progress
_ONCE: Final = (*(marker for marker, name in _STAGES.items() if name != "capturing"), _PORT_IN_USE)
_MARKERS: Final = tuple(  # a line without any of these needs no parsing
    marker.encode() for marker in (*_STAGES, "loading ", "/health", "/metrics", _PORT_IN_USE)
)
_SHORT: Final = 16  # average characters of a line; comparing shorter lines costs more than searching them
# Lines that repeat text from a user or client: the arguments, and requests with --log-requests.
_QUOTING: Final = ("server_args=ServerArgs(", "Receive: obj=", "Finish: obj=")


EXIT_AFTER_RANK_0: Final = 3  # exit code of another rank that rank 0 told to exit (0.5.14)
_LOST_RANK: Final = re.compile(r"gloo/transport/tcp/pair\.cc.* (closed|reset) by peer")  # 0.5.14 and 0.5.16; torch 2.11


def lost_another_rank(lines: Iterable[str]) -> bool:
    """Return whether a rank exited because another rank did; it may exit 6 s before the other rank's main process."""
    return any(_LOST_RANK.search(line) for line in lines)


def echoes_user_input(line: str) -> bool:
    """Return whether a line repeats arguments or a request, so that its text describes no event."""
    return any(text in line for text in _QUOTING)


class _LineKind(Enum):
    """The meaning of a line."""

    PROBED = auto()  # a client's probe; shows no progress
    COUNTED = auto()  # a progress bar; only the last of consecutive ones matters
    MORE = auto()  # a stage or a taken port


class StartupLogParser:
    """A parser of startup stages and progress counts that keeps only the last lines of the log."""

    def __init__(self) -> None:
        """Begin before the first line."""
        self.names: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=MAX_LINES)
        self.count = ""
        self.port_in_use = False  # sglang 0.5.14 then hangs: it queries the port's owner for 2 min
        self._loads: dict[str, int] = {}

    @property
    def stage(self) -> str:
        """The current stage of the startup."""
        return self.names[-1] if self.names else "waiting for the server's first line"

    @property
    def text(self) -> str:
        """The current stage and its count, for a progress line."""
        return f"{self.stage} {self.count}".rstrip()

    @property
    def last_lines(self) -> list[str]:
        """The last lines of the log, with secrets redacted."""
        return [excerpt(line, MAX_CHARACTERS) for line in self._last_lines]

    @property
    def is_ready(self) -> bool:
        """Whether the log contains sglang's message that the server is ready."""
        return _LAST in self.names

    def feed(self, text: str) -> bool:
        """Parse lines; return whether any shows progress, as every line except a client's probe does.

        Lines that differ only in digits are classified once, and only the last state of a progress bar is parsed.
        """
        shapes = line_shapes(text, lower=True)
        if len(shapes) < _SHORT * shapes.count(b"\n") and not any(marker in shapes for marker in _MARKERS):
            self._keep(last_lines(text, MAX_LINES))
            return True
        lines, of_lines = text.split("\n"), shapes.split(b"\n")
        relevant = _relevant_lines(b"\n".join(dict.fromkeys(of_lines)))
        done, alive = 0, False
        for index in [index for index, kind in enumerate(of_lines) if kind in relevant]:
            if done < index:
                self._keep(lines[done:index])
                alive = True
            done, line_kind = index + 1, relevant[of_lines[index]]
            if line_kind is not _LineKind.PROBED:
                alive = True
                if line_kind is _LineKind.MORE or of_lines[done : done + 1] != [of_lines[index]]:
                    self._read(lines[index])
        self._keep(lines[done:])
        return alive or done < len(lines)

    def _read(self, line: str) -> None:
        lower = line.lower()
        if self._last_lines and _COUNT.search(lower) and _COUNT.search(self._last_lines[-1].lower()):
            self._last_lines.pop()  # keep only the newest state of a progress bar
        self._keep([line])
        begun = self._stage_of(lower)
        if begun is not None and begun not in self.names:
            self.names.append(begun)
            self.count = ""
        self._read_count(lower)
        self.port_in_use |= _PORT_IN_USE in lower

    def _keep(self, lines: Sequence[str]) -> None:
        """Save the last lines, to show if the start fails."""
        self._last_lines.extend(line[:_BUFFER_CHARACTERS] for line in lines[-MAX_LINES:])

    def _stage_of(self, line: str) -> str | None:
        for marker, name in _STAGES.items():
            if marker not in line:
                continue
            if name != "capturing":
                return self._load_of(line) if name == "loading weights" else name
            if match := _CAPTURE.search(line):
                return self._capture_of(match["graphs"], begins=match["begins"] is not None)
        return None

    def _capture_of(self, graphs: str | None, *, begins: bool) -> str | None:
        """Return the name of a capture stage: `capturing target prefill graphs`; None for a bar of the current one."""
        if not begins and self.names and self.names[-1].startswith("capturing"):
            return None
        return f"capturing {graphs} graphs" if graphs else "capturing graphs"

    def _load_of(self, line: str) -> str:
        rank = _RANK.match(line)
        key = rank[1] if rank else ""
        self._loads[key] = self._loads.get(key, 0) + 1
        return "loading weights" if self._loads[key] == 1 else _DRAFT

    def _read_count(self, line: str) -> None:
        match = _COUNT.search(line)
        if match and self.names and self.names[-1].startswith(match["stage"]):
            self.count = f"{match['n']}/{match['total']}"


def _relevant_lines(of_lines: bytes) -> dict[bytes, _LineKind]:
    """Return the meaning of each line in `of_lines` (lower case, digits masked) that needs parsing."""
    kinds = {
        kind: _line_kind(kind.decode(errors="replace"))
        for marker in _MARKERS
        for kind in lines_containing(marker, of_lines)
    }
    return {kind: line_kind for kind, line_kind in kinds.items() if line_kind is not None}


def _line_kind(kind: str) -> _LineKind | None:
    if _ACCESS.search(kind):
        return _LineKind.PROBED
    if any(marker in kind for marker in _ONCE):
        return _LineKind.MORE
    if _COUNT.search(kind):
        return _LineKind.COUNTED
    return _LineKind.MORE if _CAPTURE.search(kind) else None
