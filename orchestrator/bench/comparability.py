"""The reasons why a result is not comparable with a published one. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.result import (
    BenchResult,
    ComparabilityIssue,
    EndpointFacts,
    EndReason,
    IssueKind,
    Point,
    ServerProvenance,
)
from orchestrator.core.text import objects_in
from orchestrator.engine.options import Meaning
from orchestrator.engine.other_engines import option_name

CACHE_HIT_RATE_TOLERANCE: Final = 0.02  # hits are rounded down to a page: 64 of 12,000 tokens are 0.5 %
MAX_SEND_LAG_S: Final = 0.05  # p99; a client on an idle core stays below 5 ms
_SIMULATED: Final = "SGLANG_SIMULATE_ACC"


def comparability_issues(result: BenchResult, *, overridden: Sequence[str]) -> tuple[ComparabilityIssue, ...]:
    """Return the comparability issues of a result, starting with those of the whole run.

    `overridden` names the workload fields that the command line changed.
    """
    issues = [ComparabilityIssue(kind=kind, detail=detail) for kind, detail in _run_issues(result, overridden)]
    for point in result.points:
        point_issues = _point_issues(point, result.run.endpoint)
        issues += [ComparabilityIssue(kind=kind, detail=detail, point=point.label) for kind, detail in point_issues]
    return tuple(issues)


def _run_issues(result: BenchResult, overridden: Sequence[str]) -> Iterator[tuple[IssueKind, str]]:
    run = result.run
    if run.client is not None:
        detail = f"{run.client} sent the load: its latencies count from sending, its throughput has no steady window"
        yield IssueKind.ANOTHER_CLIENT, detail
    yield from _server_issues(run.provenance)
    if result.end_reason is not EndReason.COMPLETE:
        yield IssueKind.INCOMPLETE, f"{result.end_reason.value} before every point was measured"
    if overridden:
        names = ", ".join(f"`{name}`" for name in overridden)
        yield IssueKind.CHANGED_WORKLOAD, f"changed on the command line: {names}"
    if (algorithm := run.endpoint.speculative) is not None and run.workload.get("prompts", "random") == "random":
        # draft acceptance differs from that on real text
        lengths = [length for point in result.points if (length := metrics.accept_length(point)) is not None]
        measured = f": {min(lengths):.2f} to {max(lengths):.2f} tokens a step" if lengths else ""
        yield (
            IssueKind.RANDOM_PROMPTS,
            f"random prompts do not measure speculation ({algorithm}){measured}",
        )


def _server_issues(provenance: ServerProvenance) -> Iterator[tuple[IssueKind, str]]:
    for variable in objects_in(provenance.plan, "env"):
        if (name := str(variable.get("name"))).startswith(_SIMULATED):
            yield IssueKind.SIMULATED_ACCEPTANCE, f"`{name}` simulates the acceptance of draft tokens"
    misses = (provenance.kernel_gate or {}).get("misses")
    if isinstance(misses, list | tuple) and misses:
        shapes = "1 MoE shape has" if len(misses) == 1 else f"{len(misses)} MoE shapes have"
        yield IssueKind.KERNEL_MISS, f"{shapes} no tuned kernel; untuned kernels were used"


def _point_issues(point: Point, endpoint: EndpointFacts) -> Iterator[tuple[IssueKind, str]]:
    if point.end_reason is not EndReason.COMPLETE:
        yield IssueKind.INCOMPLETE, f"{point.end_reason.value} after {point.requests} requests"
    if point.succeeded < point.requests:
        failed = ", ".join(f"{failure.count} {failure.kind}" for failure in point.failures)
        yield IssueKind.FAILED_REQUESTS, f"of {point.requests} requests failed: {failed}"
    if point.arrivals != "closed" and point.send_lag_s is not None and point.send_lag_s.p99 > MAX_SEND_LAG_S:
        detail = f"the load client was late: p99 {point.send_lag_s.p99 * 1e3:.0f} ms; run it on an idle host or core"
        yield IssueKind.CLIENT_LAGGED, detail
    yield from _cache_hit_rate_issues(point, endpoint)


def _cache_hit_rate_issues(point: Point, endpoint: EndpointFacts) -> Iterator[tuple[IssueKind, str]]:
    if point.cache is None or not point.succeeded:
        return
    measured = metrics.cache_hit_rate(point)
    if measured is None:
        if point.cache.wanted_share:
            option = option_name(endpoint.engine, Meaning.CACHED_TOKENS_REPORT)
            detail = "the server reports no cached tokens" + (f"; start it with `--{option}`" if option else "")
            yield IssueKind.CACHE_HIT_RATE_UNKNOWN, detail
    elif point.cache.wanted_share is not None and abs(measured - point.cache.wanted_share) > CACHE_HIT_RATE_TOLERANCE:
        detail = f"{measured:.1%} of prompt tokens came from cache; the target is {point.cache.wanted_share:.0%}"
        if (endpoint.page_size or 1) > 1 and measured < point.cache.wanted_share:
            detail += f" (the cache holds whole blocks of {endpoint.page_size} tokens)"
        yield IssueKind.CACHE_HIT_RATE_OFF_TARGET, detail
