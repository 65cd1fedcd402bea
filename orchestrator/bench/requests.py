"""The request times of one point, parsed from its `requests-<rate>.jsonl`. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from orchestrator.bench.result import Point, Slope, parse_strict
from orchestrator.core.safe_paths import FileName


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """One request, in seconds after the first planned arrival; `first_token_s` is None if no token arrived."""

    scheduled_s: float
    started_s: float
    first_token_s: float | None
    ended_s: float
    failed: bool


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The used fields of a line; clock error may make a time slightly negative."""

    scheduled_s: Slope
    started_s: Slope
    ended_s: Slope
    chunk_s: tuple[Slope, ...]
    failure: str | None = None


_LINE: Final = TypeAdapter(_Line)


def requests_file(point: Point) -> FileName:
    """Return the name of the requests file of a point, derived from its load, as a label may hold any text."""
    name = f"closed-{point.concurrency}" if point.offered_rps is None else f"{point.offered_rps:g}"
    return FileName(f"requests-{name}.jsonl")


def parse_requests(lines: Iterable[str], *, location: str) -> tuple[RequestTimes, ...]:
    """Parse a file with one request per line. Raises BenchError with the location of an invalid line."""
    requests = []
    for number, text in enumerate(lines, start=1):
        line = parse_strict(_LINE, text, description="request of `deploy bench`", location=f"{location}:{number}")
        times = RequestTimes(
            scheduled_s=line.scheduled_s,
            started_s=line.started_s,
            first_token_s=line.chunk_s[0] if line.chunk_s else None,
            ended_s=line.ended_s,
            failed=line.failure is not None,
        )
        requests.append(times)
    return tuple(requests)
