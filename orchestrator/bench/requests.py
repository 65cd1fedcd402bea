"""When the requests of one point came and went, from its `requests-<rate>.jsonl`. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from orchestrator.bench.result import Point, Slope, read_strictly
from orchestrator.core.safe_paths import FileName


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """One request, in seconds after the first planned arrival; `first_s` is None where no token came."""

    scheduled_s: float
    started_s: float
    first_s: float | None
    ended_s: float
    failed: bool


@dataclass(frozen=True, kw_only=True)
class _Line:
    """As much of a line as is read; a time may lie before the first planned arrival by what a clock is off."""

    scheduled_s: Slope
    started_s: Slope
    ended_s: Slope
    chunk_s: tuple[Slope, ...]
    failure: str | None = None


_LINE: Final = TypeAdapter(_Line)


def requests_file(point: Point) -> FileName:
    """What the file of a point's requests is called; by its figures, as a label could hold anything."""
    name = f"closed-{point.concurrency}" if point.offered_rps is None else f"{point.offered_rps:g}"
    return FileName(f"requests-{name}.jsonl")


def read_requests(lines: Iterable[str], *, where: str) -> tuple[RequestTimes, ...]:
    """The requests of a file, a line each. Raises BenchError with the line of what is none."""
    found = []
    for number, text in enumerate(lines, start=1):
        line = read_strictly(_LINE, text, what="request of `deploy bench`", where=f"{where}:{number}")
        first = line.chunk_s[0] if line.chunk_s else None
        times = RequestTimes(
            scheduled_s=line.scheduled_s,
            started_s=line.started_s,
            first_s=first,
            ended_s=line.ended_s,
            failed=line.failure is not None,
        )
        found.append(times)
    return tuple(found)
