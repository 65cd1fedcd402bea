"""What a line of sglang's log says: how far the start is, a port that is taken, a request of somebody else."""

import re
from collections import deque
from collections.abc import Sequence
from typing import Final

from orchestrator.core.known_secrets import MOST_APART
from orchestrator.core.log_lines import different_lines
from orchestrator.core.redaction import excerpt

KEPT_LINES: Final = 40
KEPT_CHARACTERS: Final = 2000  # of each of them
_HELD_CHARACTERS: Final = KEPT_CHARACTERS + MOST_APART  # enough to tell a secret that stands where it is cut

# In order of appearance; wordings of sglang 0.5.10 to 0.5.23. A stage begins at its first line and never comes back,
# although every rank of a tp x dp layout writes its own lines.
_STAGES: Final = (
    ("starting", re.compile(r"server_args=ServerArgs\(")),
    ("connecting ranks", re.compile(r"Init torch distributed begin", re.IGNORECASE)),
    ("loading weights", re.compile(r"Load weight begin", re.IGNORECASE)),
    ("allocating the KV cache", re.compile(r"KV Cache is allocated|Memory pool end", re.IGNORECASE)),
    (
        "capturing",
        re.compile(r"Capture (?:(?P<what>.+?) )??\w+ graph begin|Capturing \w+ ", re.IGNORECASE),
    ),
    ("opening the port", re.compile(r"max_total_num_tokens=", re.IGNORECASE)),
    ("warming up", re.compile(r"Uvicorn running on", re.IGNORECASE)),
    ("answering", re.compile(r"The server is fired up and ready to roll", re.IGNORECASE)),
)
_DRAFT: Final = "loading draft weights"  # with EAGLE a rank loads twice: the target, then the draft
_LAST: Final = _STAGES[-1][0]
_RANK: Final = re.compile(r"^\[[\d-]+ [\d:]+([^\]]*)\]")
# tqdm: `Loading safetensors checkpoint shards:  38% Completed | 18/47 [...]`, `Capturing batches (...):  5%|..| 1/20 [`
# and `Capturing num tokens (...):  2%|..| 1/58 [`
_COUNT: Final = re.compile(r"(?P<what>loading|capturing) .*?\|\s*(?P<n>\d+)/(?P<total>\d+) \[", re.IGNORECASE)
_PORT_TAKEN: Final = re.compile(r"error while attempting to bind on address")
_ACCESS: Final = re.compile(r'"(?:GET|HEAD) /(?:health|metrics)')  # someone's probe is not the server's progress
# In lower case, one of what each pattern here matches: a text without any of them only says that the server lives.
_TELLTALES: Final = (
    *("server_args=serverargs(", "init torch distributed begin", "load weight begin", "loading"),
    *("kv cache is allocated", "memory pool end", "capture ", "capturing ", "max_total_num_tokens="),
    *("uvicorn running on", "ready to roll", "attempting to bind on address", "/health", "/metrics"),
)
# What a user or a client wrote, not what happened: the arguments, and requests under --log-requests.
_QUOTING: Final = ("server_args=ServerArgs(", "Receive: obj=", "Finish: obj=")


def says_port_taken(line: str) -> bool:
    """Whether the port is another's. sglang 0.5.14 then neither serves nor exits for two minutes: it asks the other."""
    return _PORT_TAKEN.search(line) is not None


def quotes_a_user(line: str) -> bool:
    """Whether the line repeats what was asked for, so that no word in it tells what happened."""
    return any(text in line for text in _QUOTING)


def says_nothing(lines: Sequence[str]) -> bool:
    """Whether no line says more than that the server lives."""
    text = different_lines("\n".join(lines)).lower()
    return not any(telltale in text for telltale in _TELLTALES)


class StageReader:
    """Reads stages and counts out of log lines; holds the last lines and nothing else of the log."""

    def __init__(self) -> None:
        """Nothing has been read."""
        self.names: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = ""
        self._loads: dict[str, int] = {}

    @property
    def text(self) -> str:
        """What the server is doing, for a progress line."""
        name = self.names[-1] if self.names else "waiting for the server's first line"
        return f"{name} {self.count}".rstrip()

    @property
    def last_lines(self) -> list[str]:
        """The last lines, secrets removed."""
        return [excerpt(line, KEPT_CHARACTERS) for line in self._last_lines]

    @property
    def says_ready(self) -> bool:
        """Whether the server's own log has said that it is ready."""
        return _LAST in self.names

    def feed(self, line: str) -> bool:
        """Take a line in; returns whether it is a sign of life."""
        if says_nothing([line]):
            self.keep([line])
            return True
        if _ACCESS.search(line):
            return False
        if self._last_lines and _COUNT.search(line) and _COUNT.search(self._last_lines[-1]):
            self._last_lines.pop()  # of a progress bar the newest state is enough
        self.keep([line])
        begun = self._stage_of(line)
        if begun is not None and begun not in self.names:
            self.names.append(begun)
            self.count = ""
        self._read_count(line)
        return True

    def keep(self, lines: Sequence[str]) -> None:
        """Take in lines that say nothing: the last ones are shown where the start fails."""
        self._last_lines.extend(line[:_HELD_CHARACTERS] for line in lines[-KEPT_LINES:])

    def _stage_of(self, line: str) -> str | None:
        for name, pattern in _STAGES:
            if found := pattern.search(line):
                if name == "capturing":
                    return self._capture_of(found["what"], begins=" begin" in found[0])
                return self._load_of(line) if name == "loading weights" else name
        return None

    def _capture_of(self, what: str | None, *, begins: bool) -> str | None:
        """Its name: `capturing target prefill graphs`; a bar of one that has begun is no stage of its own."""
        if not begins and self.names and self.names[-1].startswith("capturing"):
            return None
        return f"capturing {what.lower()} graphs" if what else "capturing graphs"

    def _load_of(self, line: str) -> str:
        rank = _RANK.match(line)
        key = rank[1] if rank else ""
        self._loads[key] = self._loads.get(key, 0) + 1
        return "loading weights" if self._loads[key] == 1 else _DRAFT

    def _read_count(self, line: str) -> None:
        found = _COUNT.search(line)
        if found and self.names and self.names[-1].startswith(found["what"].lower()):
            self.count = f"{found['n']}/{found['total']}"
