"""Latencies of a scripted server, computed from its own record to verify those of a client."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from scripted_server import Exchange

from orchestrator.bench.result import Distribution

TOLERANCE = 0.02
# Server and client share a clock, but on a busy machine the client reads up to a time slice of the Linux scheduler
# (3 to 4 ms) later.
TIME_SLICE_S = 0.004


@dataclass(frozen=True, kw_only=True)
class ExpectedLatency:
    """Seconds of the completed requests; `ttft_s` and `e2e_s` count from `begun_s`."""

    begun_s: Sequence[float]
    ttft_s: Sequence[float]
    e2e_s: Sequence[float]
    tpot_s: Sequence[float]
    itl_s: Sequence[float]


def from_plan(exchanges: Sequence[Exchange], *, rate_rps: float) -> ExpectedLatency:
    """Count from the scheduled times of evenly spaced requests; the earliest arrival gives the start of it."""
    began = min(exchange.arrived_s - index / rate_rps for index, exchange in enumerate(exchanges))
    return _times(exchanges, [began + index / rate_rps for index in range(len(exchanges))])


def from_arrival(exchanges: Sequence[Exchange]) -> ExpectedLatency:
    """Count from the arrival of each request."""
    return _times(exchanges, [exchange.arrived_s for exchange in exchanges])


def _times(exchanges: Sequence[Exchange], started: Sequence[float]) -> ExpectedLatency:
    done = [
        (at, exchange, exchange.ended_s)
        for at, exchange in zip(started, exchanges, strict=True)
        if exchange.ended_s is not None
    ]
    return ExpectedLatency(
        begun_s=[at for at, _, _ in done],
        ttft_s=[item.chunk_s[0] - at for at, item, _ in done],
        e2e_s=[ended - at for at, _, ended in done],
        tpot_s=[(ended - item.chunk_s[0]) / (item.tokens - 1) for _, item, ended in done],
        itl_s=[b - a for _, item, _ in done for a, b in pairwise(item.chunk_s)],
    )


def assert_accurate(measured: Distribution | None, true: Sequence[float]) -> None:
    """Assert that each statistic of `measured` is within 2 % or a time slice of the true one."""
    assert measured is not None
    assert measured.count == len(true)
    values = dict(_metrics(true))
    assert {name: getattr(measured, name) for name in values} == pytest.approx(values, rel=TOLERANCE, abs=TIME_SLICE_S)


def _metrics(values: Sequence[float]) -> Iterator[tuple[str, float]]:
    hundredths = statistics.quantiles(values, n=100, method="inclusive")
    yield "mean", statistics.fmean(values)
    yield from ((f"p{share}", hundredths[share - 1]) for share in (50, 90, 95, 99))
    yield "max", max(values)
