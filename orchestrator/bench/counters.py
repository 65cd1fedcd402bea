"""The server's own counters over one point, and the check for a concurrency cap. Pure."""

from collections.abc import Iterable, Mapping

from orchestrator.bench.result import MAX_AMOUNT, Point, ServerCounts, ServerProvenance
from orchestrator.engine.metrics import Metric, Metrics
from orchestrator.engine.options import Meaning
from orchestrator.engine.serving import recorded_facts


def server_counts(before: Metrics, after: Metrics, gauges: Iterable[Metrics]) -> ServerCounts:
    """Compute the change of the counters between two readings; `gauges` are readings taken in between.

    A value is None if the metric is not a number or too large for a result, or if the counter decreased, which means
    that the server restarted.
    """

    def delta(name: str) -> float | None:
        first, last = before.get(name, 0.0), after.get(name)  # a counter may first appear when it is first incremented
        return _plausible(last - first) if first is not None and last is not None and last >= first else None

    def whole(name: Metric) -> int | None:
        value = delta(name)
        return round(value) if value is not None else None

    def tier(name: Metric) -> int | None:
        return whole(name) if name in after else None

    def mean(name: Metric) -> float | None:
        total, count = delta(f"{name}_sum"), delta(f"{name}_count")
        return _plausible(total / count) if total is not None and count else None

    readings = tuple(gauges)
    queue = [depth for reading in readings if (depth := _plausible(reading.get(Metric.QUEUED))) is not None]
    running = [count for reading in readings if (count := _plausible(reading.get(Metric.RUNNING))) is not None]
    output, requests, verified = (delta(name) for name in (Metric.OUTPUT_TOKENS, Metric.REQUESTS, Metric.VERIFY_STEPS))
    drafted = max(0.0, (output or 0.0) - (requests or 0.0))  # the first token of a request comes from its prefill
    drafts, accepted = delta(Metric.DRAFTS), delta(Metric.ACCEPTED_DRAFTS)
    length = drafted / verified if output and verified else None
    if drafts and accepted is not None:
        length = 1 + accepted / drafts
    return ServerCounts(
        requests=whole(Metric.REQUESTS),
        prompt_tokens=whole(Metric.PROMPT_TOKENS),
        output_tokens=whole(Metric.OUTPUT_TOKENS),
        cached_tokens=whole(Metric.CACHED_TOKENS),
        cached_device_tokens=tier(Metric.CACHED_DEVICE_TOKENS),
        cached_host_tokens=tier(Metric.CACHED_HOST_TOKENS),
        cached_storage_tokens=tier(Metric.CACHED_STORAGE_TOKENS),
        ttft_mean_s=mean(Metric.TTFT),
        e2e_mean_s=mean(Metric.E2E),
        retractions=whole(Metric.RETRACTIONS),
        accept_length=_plausible(length),
        queue_depth_mean=sum(queue) / len(queue) if queue else None,
        queue_depth_max=max(queue, default=None),
        running_max=max(running, default=None),
    )


def _plausible(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= MAX_AMOUNT else None


def concurrency_capped(point: Point, provenance: ServerProvenance) -> str | None:
    """Describe the concurrency cap that a point reached; None below the cap, or if either value is unknown."""
    cap = _concurrency_cap(provenance.plan or {})
    running = point.server.running_max if point.server else None
    if cap is None or running is None or running < cap[0]:
        return None
    queued = point.server.queue_depth_max if point.server else None
    queue = f", up to {queued:g} queued" if queued else ""
    return f"{running:g} requests ran at once, the limit of {cap[1]}{queue}: this measures the limit, not the hardware"


def _concurrency_cap(plan: Mapping[str, object]) -> tuple[int, str] | None:
    """Return the maximum of running requests and the setting that limits it.

    The setting applies to each replica; with dp-attention the replicas share it (0.5.14, managers/tp_worker.py).
    """
    layout, facts = plan.get("layout"), recorded_facts(plan)
    if not isinstance(layout, dict) or facts is None or facts.running is None:
        return None
    dp = layout.get("dp")
    replicas = dp if isinstance(dp, int) and not layout.get("dp_attention") else 1
    servers = plan.get("replicas")
    replicas *= servers if isinstance(servers, int) else 1
    per_replica = f" on each of {replicas} replicas" if replicas > 1 else ""
    default = f"sglang's default of {facts.running}"
    setting = default if facts.running_set is None else f"`{Meaning.RUNNING_REQUESTS} {facts.running}`"
    return facts.running * replicas, setting + per_replica
