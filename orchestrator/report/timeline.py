"""The requests of one load over time: waiting times, and the number of running and queued requests. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.result import BenchResult, Point
from orchestrator.bench.result_files import RequestTimes

_MOST: Final = 300  # bins for many requests; the fastest and the slowest of each bin are drawn
_MOMENTS: Final = 120  # bins; the highest count of each is drawn

Spots = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The plotted data of one point; times are in seconds after the first scheduled arrival."""

    result_index: int  # index of the result
    load: str
    requests: int
    waits: Spots  # scheduled arrival, seconds until the first token
    failed: Spots  # scheduled arrival of failed requests, and 0
    in_flight: Spots  # number of requests sent and not completed, maximum of each bin
    waiting: Spots  # number of requests sent and without a first token: queued or in prefill


def point_to_draw(result: BenchResult, rate_rps: float | None) -> Point | None:
    """Return the point at a rate (requests/s), by default at the knee, else the last measured one."""
    if rate_rps is not None:
        return next((point for point in result.points if point.offered_rps == rate_rps), None)
    at_knee = (point for point in result.points if point.offered_rps == result.knee_rps is not None)
    return next(at_knee, result.points[-1] if result.points else None)


def timeline(of: int, point: Point, requests: Sequence[RequestTimes]) -> Timeline:
    """Return the plotted data of a point, thinned out to a number of requests that a plot can show."""
    waits = [
        (request.scheduled_s, request.first_token_s - request.scheduled_s)
        for request in requests
        if request.first_token_s is not None
    ]
    load = f"{point.concurrency} at a time" if point.offered_rps is None else f"{metrics.plain(point.offered_rps)} rps"
    return Timeline(
        result_index=of,
        load=load,
        requests=len(requests),
        waits=_thin_out(waits, lambda spots: {min(spots, key=_height), max(spots, key=_height)}),
        failed=_thin_out(
            [(request.scheduled_s, 0.0) for request in requests if request.failed], lambda spots: spots[:1]
        ),
        in_flight=_count((request.started_s, request.ended_s) for request in requests),
        waiting=_count(
            (request.started_s, request.ended_s if request.first_token_s is None else request.first_token_s)
            for request in requests
        ),
    )


def _height(spot: tuple[float, float]) -> float:
    return spot[1]


def _thin_out(spots: list[tuple[float, float]], keep: Callable[[Spots], Iterable[tuple[float, float]]]) -> Spots:
    """Return sorted spots, reduced by `keep` in each of `_MOST` bins if there are too many."""
    if len(spots) <= 2 * _MOST:
        return tuple(sorted(spots))
    begin, end = min(spots)[0], max(spots)[0]
    moments: dict[int, list[tuple[float, float]]] = {}
    for spot in spots:
        moments.setdefault(int((spot[0] - begin) / ((end - begin) or 1.0) * _MOST), []).append(spot)
    return tuple(sorted(spot for moment in moments.values() for spot in keep(tuple(moment))))


def _count(spans: Iterable[tuple[float, float]]) -> Spots:
    """Return the number of concurrent spans over time, reduced to `_MOMENTS` bins."""
    steps = sorted(step for begin, end in spans for step in ((begin, 1), (max(begin, end), -1)))
    totals = accumulate(change for _, change in steps)
    counted = [(at, float(total)) for (at, _), total in zip(steps, totals, strict=True)]
    return tuple(_highest(counted)) if counted else ()


def _highest(counted: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the highest count of each of `_MOMENTS` equal bins, then the last count."""
    begin, end = counted[0][0], counted[-1][0]
    width = (end - begin) / _MOMENTS or 1.0
    index, before = 0, 0.0
    for moment in range(_MOMENTS):
        highest = before
        while index < len(counted) and counted[index][0] < begin + (moment + 1) * width:
            before = counted[index][1]
            highest = max(highest, before)
            index += 1
        yield begin + moment * width, highest
    yield end, counted[-1][1]
