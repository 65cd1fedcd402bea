"""What the server itself counted over one point, and whether it ran as many requests as it admits. Pure."""

from collections.abc import Iterable, Mapping

from orchestrator.bench.result import MOST_AMOUNT, Point, ServerCounts, ServerProvenance
from orchestrator.engine.metrics import Metric, Metrics
from orchestrator.engine.options import Meaning
from orchestrator.engine.serving import recorded_facts


def server_counts(before: Metrics, after: Metrics, gauges: Iterable[Metrics]) -> ServerCounts:
    """What the server counted between two readings; `gauges` are readings taken in between.

    A figure is absent where a metric is no number or more than a result may hold, or where a counter went back: then
    the server was started again.
    """

    def delta(name: str) -> float | None:
        first, last = before.get(name, 0.0), after.get(name)  # a counter may first appear with what it counts
        return _credible(last - first) if first is not None and last is not None and last >= first else None

    def whole(name: Metric) -> int | None:
        value = delta(name)
        return round(value) if value is not None else None

    def mean(name: Metric) -> float | None:
        total, count = delta(f"{name}_sum"), delta(f"{name}_count")
        return _credible(total / count) if total is not None and count else None

    readings = tuple(gauges)
    queue = [depth for reading in readings if (depth := _credible(reading.get(Metric.QUEUED))) is not None]
    running = [many for reading in readings if (many := _credible(reading.get(Metric.RUNNING))) is not None]
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
        accept_length=_credible(drafted / verified) if output and verified else None,
        queue_depth_mean=sum(queue) / len(queue) if queue else None,
        queue_depth_max=max(queue, default=None),
        running_max=max(running, default=None),
    )


def _credible(figure: float | None) -> float | None:
    return figure if figure is not None and 0 <= figure <= MOST_AMOUNT else None


def concurrency_capped(point: Point, provenance: ServerProvenance) -> str | None:
    """A sentence for a point that ran at the cap of its plan; None below it, or where either is not known."""
    cap = _cap(provenance.plan or {})
    ran = point.server.running_max if point.server else None
    if cap is None or ran is None or ran < cap[0]:
        return None
    waited = point.server.queue_depth_max if point.server else None
    queue = f", up to {waited:g} waited" if waited else ""
    return f"{ran:g} requests ran at once, as many as {cap[1]} admits{queue}: the cap was measured, not the hardware"


def _cap(plan: Mapping[str, object]) -> tuple[int, str] | None:
    """How many requests the server admits, and by what.

    The setting holds for each replica; with dp-attention the replicas share it (0.5.14, managers/tp_worker.py).
    """
    layout, facts = plan.get("layout"), recorded_facts(plan)
    if not isinstance(layout, dict) or facts is None or facts.running is None:
        return None
    dp = layout.get("dp")
    replicas = dp if isinstance(dp, int) and not layout.get("dp_attention") else 1
    servers = plan.get("replicas")
    replicas *= servers if isinstance(servers, int) else 1
    each = f" on each of {replicas} replicas" if replicas > 1 else ""
    own = f"sglang's own {facts.running} beside drafts"
    by = own if facts.running_set is None else f"`{Meaning.RUNNING_REQUESTS} {facts.running}`"
    return facts.running * replicas, by + each
