"""What speaks against laying a result beside a published one; pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.result import BenchEnding, ComparabilityIssue, MarkKind, Point, ServerProvenance
from orchestrator.engine.options import Meaning

HIT_SHARE_TOLERANCE: Final = 0.02  # hits round down to the page: 64 of 12,000 tokens are half a per cent
LAG_LIMIT_S: Final = 0.05  # p99; a client on a free core keeps within 5 ms
_SIMULATED: Final = "SGLANG_SIMULATE_ACC"


def comparability_issues(
    points: Sequence[Point],
    provenance: ServerProvenance,
    *,
    ending: BenchEnding,
    overridden: Sequence[str],
    guessed: str | None = None,
) -> tuple[ComparabilityIssue, ...]:
    """Every mark of a result, those of the whole first.

    `overridden` names what the command line changed, `guessed` the speculation that had to guess at random ids.
    """
    of_the_run = (*_of_the_run(ending, overridden), *_of_random_prompts(points, guessed))
    return (*_of_the_server(provenance), *of_the_run, *_of_points(points))


def _of_the_server(provenance: ServerProvenance) -> Iterator[ComparabilityIssue]:
    variables = (provenance.plan or {}).get("env", ())
    for variable in variables if isinstance(variables, list | tuple) else ():
        name = str(variable.get("name")) if isinstance(variable, dict) else ""
        if name.startswith(_SIMULATED):
            detail = f"`{name}` fakes how many drafted tokens are accepted"
            yield ComparabilityIssue(kind=MarkKind.SIMULATED_ACCEPTANCE, detail=detail)
    misses = (provenance.kernel_gate or {}).get("misses")
    if isinstance(misses, list | tuple) and misses:
        shapes = "1 MoE shape has" if len(misses) == 1 else f"{len(misses)} MoE shapes have"
        detail = f"{shapes} no tuned kernel: untuned ones were in use"
        yield ComparabilityIssue(kind=MarkKind.KERNEL_MISS, detail=detail)


def _of_the_run(ending: BenchEnding, overridden: Sequence[str]) -> Iterator[ComparabilityIssue]:
    if ending is not BenchEnding.COMPLETE:
        yield ComparabilityIssue(kind=MarkKind.INCOMPLETE, detail=f"{ending.value} before every point was measured")
    if overridden:
        named = ", ".join(f"`{name}`" for name in overridden)
        yield ComparabilityIssue(kind=MarkKind.CHANGED_WORKLOAD, detail=f"changed on the command line: {named}")


def _of_random_prompts(points: Sequence[Point], guessed: str | None) -> Iterator[ComparabilityIssue]:
    """What a model says after ids that are no text is not what it says to anybody, and its drafts fare otherwise."""
    if guessed is None:
        return
    lengths = [length for point in points if (length := metrics.accept_length(point)) is not None]
    seen = f": {min(lengths):.2f} to {max(lengths):.2f} tokens a step" if lengths else ""
    detail = f"prompts are random ids, which say nothing about speculation ({guessed}){seen}"
    yield ComparabilityIssue(kind=MarkKind.RANDOM_PROMPTS, detail=detail)


def _of_points(points: Sequence[Point]) -> Iterator[ComparabilityIssue]:
    for point in points:
        yield from _of_point(point)


def _of_point(point: Point) -> Iterator[ComparabilityIssue]:
    if point.ending is not BenchEnding.COMPLETE:
        detail = f"{point.ending.value} after {point.requests} requests"
        yield ComparabilityIssue(kind=MarkKind.INCOMPLETE, detail=detail, point=point.label)
    if point.succeeded < point.requests:
        failed = ", ".join(f"{failure.count} {failure.kind}" for failure in point.failures)
        yield ComparabilityIssue(
            kind=MarkKind.FAILED_REQUESTS, detail=f"of {point.requests} requests failed: {failed}", point=point.label
        )
    if point.arrivals != "closed" and point.send_lag_s is not None and point.send_lag_s.p99 > LAG_LIMIT_S:
        detail = f"the client sent late: p99 {point.send_lag_s.p99 * 1e3:.0f} ms; run it on a free machine or core"
        yield ComparabilityIssue(kind=MarkKind.CLIENT_LAGGED, detail=detail, point=point.label)
    yield from _hit_share(point)


def _hit_share(point: Point) -> Iterator[ComparabilityIssue]:
    if point.cache is None or not point.succeeded:
        return
    measured = metrics.cached_share(point)
    if measured is None:
        if point.cache.wanted_share:
            detail = f"the server reports no cached tokens; start it with --{Meaning.CACHED_TOKENS_REPORT}"
            yield ComparabilityIssue(kind=MarkKind.UNKNOWN_HIT_SHARE, detail=detail, point=point.label)
    elif abs(measured - point.cache.wanted_share) > HIT_SHARE_TOLERANCE:
        detail = f"{measured:.1%} of prompt tokens came from cache, wanted {point.cache.wanted_share:.0%}"
        yield ComparabilityIssue(kind=MarkKind.UNMET_HIT_SHARE, detail=detail, point=point.label)
