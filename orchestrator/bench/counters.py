"""What the server itself counted over one point: its metrics before and after."""

from collections.abc import Iterable

from orchestrator.engine import Metric, Metrics
from orchestrator.results import ServerCounts


def server_counts(before: Metrics, after: Metrics, gauges: Iterable[Metrics]) -> ServerCounts:
    """What the server counted between two readings; `gauges` are readings taken in between.

    A figure is absent where a metric is no number, or where a counter went back: then the server was started again.
    """

    def delta(name: str) -> float | None:
        first, last = before.get(name, 0.0), after.get(name)  # a counter may first appear with what it counts
        return last - first if first is not None and last is not None and last >= first else None

    def whole(name: Metric) -> int | None:
        value = delta(name)
        return round(value) if value is not None else None

    def mean(name: Metric) -> float | None:
        total, count = delta(f"{name}_sum"), delta(f"{name}_count")
        return total / count if total is not None and count else None

    readings = tuple(gauges)
    queue = [depth for reading in readings if (depth := reading.get(Metric.QUEUED)) is not None and depth >= 0]
    running = [many for reading in readings if (many := reading.get(Metric.RUNNING)) is not None and many >= 0]
    output, requests, verified = (delta(name) for name in (Metric.OUTPUT_TOKENS, Metric.REQUESTS, Metric.VERIFY_STEPS))
    drafted = max(0.0, (output or 0.0) - (requests or 0.0))  # the first token of a request comes from its prefill
    return ServerCounts(
        requests=whole(Metric.REQUESTS),
        prompt_tokens=whole(Metric.PROMPT_TOKENS),
        output_tokens=whole(Metric.OUTPUT_TOKENS),
        cached_tokens=whole(Metric.CACHED_TOKENS),
        ttft_mean_s=mean(Metric.TTFT),
        e2e_mean_s=mean(Metric.E2E),
        retractions=whole(Metric.RETRACTIONS),
        accept_length=drafted / verified if output and verified else None,
        queue_depth_mean=sum(queue) / len(queue) if queue else None,
        queue_depth_max=max(queue, default=None),
        running_max=max(running, default=None),
    )
