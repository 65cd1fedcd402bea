"""The server's own counters over one point. Pure."""

from orchestrator.bench.result import MAX_AMOUNT, ServerCounts
from orchestrator.engine.metrics import Metric, Metrics


def server_counts(before: Metrics, after: Metrics) -> ServerCounts:
    """Compute the change of the counters between two readings.

    A value is None if the metric is not a number, is too large for a result, or decreased because the server restarted.
    """

    def delta(name: str) -> float | None:
        first, last = before.get(name, 0.0), after.get(name)  # a counter may first appear when it is first incremented
        return _plausible(last - first) if first is not None and last is not None and last >= first else None

    def rounded(name: Metric) -> int | None:
        value = delta(name)
        return round(value) if value is not None else None

    def tier(name: Metric) -> int | None:
        return rounded(name) if name in after else None

    def mean(name: Metric) -> float | None:
        total, count = delta(f"{name}_sum"), delta(f"{name}_count")
        return _plausible(total / count) if total is not None and count else None

    output, requests, verified = (delta(name) for name in (Metric.OUTPUT_TOKENS, Metric.REQUESTS, Metric.VERIFY_STEPS))
    drafted = max(0.0, (output or 0.0) - (requests or 0.0))  # the first token of a request comes from its prefill
    drafts, accepted = delta(Metric.DRAFTS), delta(Metric.ACCEPTED_DRAFTS)
    length = drafted / verified if output and verified else None
    if drafts and accepted is not None:
        length = 1 + accepted / drafts
    return ServerCounts(
        requests=rounded(Metric.REQUESTS),
        prompt_tokens=rounded(Metric.PROMPT_TOKENS),
        output_tokens=rounded(Metric.OUTPUT_TOKENS),
        cached_tokens=rounded(Metric.CACHED_TOKENS),
        cached_device_tokens=tier(Metric.CACHED_DEVICE_TOKENS),
        cached_host_tokens=tier(Metric.CACHED_HOST_TOKENS),
        cached_storage_tokens=tier(Metric.CACHED_STORAGE_TOKENS),
        ttft_mean_s=mean(Metric.TTFT),
        e2e_mean_s=mean(Metric.E2E),
        accept_length=_plausible(length),
    )


def _plausible(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= MAX_AMOUNT else None
