"""A result as text for a terminal."""

from collections.abc import Iterator
from typing import Final

from orchestrator.core.console import table
from orchestrator.results.result import Point, Result, Throughput

_HEADER: Final = (
    "load",
    "achieved rps",
    "output tok/s",
    "full run",
    "TTFT p50/p95 s",
    "TPOT p50 ms",
    "success",
    "cached",
    "J/token",
    "$/M out",
    "sustained",
)


def result_text(result: Result) -> str:
    """The points as a table, why some are not sustained, the knee, and every mark."""
    return "\n".join([table(_HEADER, (_row(point) for point in result.points)), *_remarks(result)])


def _remarks(result: Result) -> Iterator[str]:
    yield ""
    for point in result.points:
        yield from (f"{point.label}: {reason}" for reason in point.not_sustained_because)
        yield from (f"{point.label}: {each.count} x {each.kind}: {each.example}" for each in point.failures)
    yield f"knee: {result.knee_rps:g} rps" if result.knee_rps is not None else "knee: none found"
    for mark in result.marks:
        where = f" at {mark.point}" if mark.point else ""
        yield f"NOT COMPARABLE ({mark.kind.value}{where}): {mark.detail}"


def _row(point: Point) -> list[str]:
    ttft = point.latency.ttft_from_schedule_s if point.latency else None
    tpot = point.latency.tpot_s if point.latency else None
    cached = point.cache.usage_share if point.cache else None
    return [
        point.label,
        _number(point.achieved_rps, 2),
        _output(point.window),
        _output(point.full_run),
        f"{ttft.p50:.3f}/{ttft.p95:.3f}" if ttft else "-",
        f"{tpot.p50 * 1e3:.2f}" if tpot else "-",
        f"{point.success_share:.1%}",
        f"{cached:.1%}" if cached is not None else "-",
        _number(point.energy.joules_per_output_token if point.energy else None, 2),
        _number(point.usd_per_million_output_tokens, 3),
        {True: "yes", False: "no", None: "-"}[point.sustained],
    ]


def _output(throughput: Throughput | None) -> str:
    return _number(throughput.output_tok_per_s if throughput else None, 1)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
