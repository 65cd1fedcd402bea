"""A trace file or directory: its format, its totals, and its sessions."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from orchestrator.bench.traces import mooncake, weka
from orchestrator.bench.traces.documents import documents
from orchestrator.bench.traces.request import Tree
from orchestrator.core.errors import ProfileError

_READERS: Final[Mapping[str, Callable[[Path], Iterator[Tree]]]] = {"mooncake": mooncake.trees, "weka": weka.trees}
_KEYS: Final = {"requests": "weka", "input_length": "mooncake"}  # the key that identifies a format


@dataclass(frozen=True, kw_only=True)
class TraceTotals:
    """The totals of all requests of a trace; tokens as recorded."""

    requests: int
    sessions: int  # excluding subagents
    subagents: int
    input_tokens: int
    output_tokens: int
    longest_prompt: int
    longest_request: int  # prompt and output
    continued: int  # prompts that contain the server's answer
    block_tokens: int
    last_arrival_s: float | None  # None if a session has no arrival


@dataclass(frozen=True, kw_only=True)
class SessionSource:
    """A repeatable source of valid sessions with their subagents: those of a trace, in its order, or synthetic ones."""

    trees: Callable[[], Iterator[Tree]]  # rereads the trace, one session in memory at a time
    totals: TraceTotals
    format: str  # mooncake | weka | synthetic
    digest: str | None  # hex sha256 of the documents of a trace
    dropped_requests: int = 0  # longer than `max_context`, or after such a request

    @property
    def longest(self) -> tuple[int, int]:
        """The longest prompt, and the longest prompt with its output, in tokens."""
        return self.totals.longest_prompt, self.totals.longest_request


def open_trace(path: Path) -> SessionSource:
    """Read a whole trace once. Raises ProfileError with file and line if it is unreadable, invalid or empty."""
    format_ = _format(path)
    if format_ == "mooncake" and (path.is_dir() or path.suffix == ".json"):
        hint = "write one request per line into a `.jsonl` file"
        raise ProfileError("requests in Mooncake's format are lines of one file", location=str(path), hint=hint)
    digest = hashlib.sha256()
    for document in documents(path):
        digest.update(document.content)
    trees = partial(_READERS[format_], path)
    return SessionSource(trees=trees, totals=count(trees()), format=format_, digest=digest.hexdigest())


def _format(path: Path) -> str:
    document = next(documents(path), None)
    if document is None:
        raise ProfileError("the trace is empty", location=str(path), hint="write one request per line")
    try:
        data = json.loads(document.content)
    except (ValueError, RecursionError):
        data = None
    formats = [name for key, name in _KEYS.items() if isinstance(data, dict) and key in data]
    if not formats:
        raise ProfileError(
            "unknown format of a trace",
            location=document.location,
            hint=f"expected a line of Mooncake, `{mooncake.EXPECTED}`, or a session of Weka, `{weka.EXPECTED}`",
        )
    return formats[0]


def count(trees: Iterator[Tree]) -> TraceTotals:
    """Count the requests of sessions."""
    requests = sessions = subagents = continued = tokens_in = tokens_out = prompt = longest = block = 0
    last: float | None = 0.0
    for tree in trees:
        sessions += 1
        subagents += sum(item.parent is not None and item.position == 0 for item in tree)
        if tree[0].arrival_s is None:
            last = None
        for entry in tree:
            requests += 1
            continued += entry.continues
            tokens_in += entry.input_tokens
            tokens_out += entry.output_tokens
            prompt = max(prompt, entry.input_tokens)
            longest = max(longest, entry.input_tokens + entry.output_tokens)
            block = max(block, entry.block_tokens)
            last = None if last is None else max(last, entry.arrival_s or 0.0)
    return TraceTotals(
        requests=requests,
        sessions=sessions,
        subagents=subagents,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        longest_prompt=prompt,
        longest_request=longest,
        continued=continued,
        block_tokens=block,
        last_arrival_s=last,
    )
