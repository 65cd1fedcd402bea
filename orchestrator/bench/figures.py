"""From what was observed at one point to its figures; pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.bench.drive import Drive, Sample
from orchestrator.bench.measure import cache, failures, latency, spread, throughput
from orchestrator.bench.steady import judge, realised_share, steady_window, ttft_growth
from orchestrator.bench.workload import Workload
from orchestrator.results.result import Energy, Point, Price, ServerCounts, Throughput


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything seen at one point."""

    label: str
    started_at: str
    drive: Drive
    server: ServerCounts | None
    energy: Energy | None
    reports_cache: bool
    gpus: int | None


def open_point(observed: Observed, workload: Workload, *, rate_rps: float, price: Price | None) -> Point:
    """The figures of one offered rate, judged against the workload's limits."""
    samples = observed.drive.samples
    window = steady_window(samples)
    steady = throughput(samples, begin=window[0], end=window[1], gpus=observed.gpus) if window else None
    point = replace(
        _point(observed, workload, arrivals=workload.arrivals),
        offered_rps=rate_rps,
        sent_rps=_sent_rps(samples),
        achieved_rps=_completed(samples, window) / steady.seconds if window and steady else None,
        realised_share=realised_share(samples, window) if window else None,
        ttft_growth_s_per_s=ttft_growth(samples),
        window=steady,
    )
    point = replace(point, usd_per_million_output_tokens=_usd(steady or point.full_run, price, observed.gpus))
    sustained, reasons = judge(point, workload.limits)
    return replace(point, sustained=sustained, not_sustained_because=reasons)


def closed_point(observed: Observed, workload: Workload, *, price: Price | None) -> Point:
    """The figures of one concurrency."""
    point = _point(observed, workload, arrivals="closed")
    cost = _usd(point.full_run, price, observed.gpus)
    return replace(point, concurrency=workload.concurrency, usd_per_million_output_tokens=cost)


def _point(observed: Observed, workload: Workload, *, arrivals: str) -> Point:
    samples, server = observed.drive.samples, observed.server
    done = [sample for sample in samples if sample.ok]
    end = max((sample.ended_s for sample in samples), default=0.0)
    in_time = sum(sample.chunk_s[0] - sample.scheduled_s <= workload.limits.ttft_p95_s for sample in done)
    return Point(
        label=observed.label,
        arrivals=arrivals,
        ending=observed.drive.ending,
        started_at=observed.started_at,
        requests=len(samples),
        succeeded=len(done),
        success_share=len(done) / len(samples) if samples else 0.0,
        failures=failures(samples),
        input_tokens=sum(sample.prompt_tokens or 0 for sample in done),
        output_tokens=sum(sample.output_tokens or 0 for sample in done),
        goodput_rps=in_time / end if end else None,
        full_run=throughput(samples, begin=0.0, end=end, gpus=observed.gpus) if end else None,
        latency=latency(samples),
        send_lag_s=spread(sample.started_s - sample.scheduled_s for sample in samples),
        cache=cache(samples, wanted_share=workload.cached_share, absent_is_zero=observed.reports_cache, server=server),
        server=server,
        energy=observed.energy,
    )


def _sent_rps(samples: Sequence[Sample]) -> float | None:
    started = sorted(sample.started_s for sample in samples)
    return (len(started) - 1) / (started[-1] - started[0]) if len(started) > 1 else None


def _completed(samples: Sequence[Sample], window: tuple[float, float]) -> int:
    return sum(sample.ok and window[0] <= sample.ended_s <= window[1] for sample in samples)


def _usd(throughput: Throughput | None, price: Price | None, gpus: int | None) -> float | None:
    """US dollars per million output tokens: what the GPUs cost in the time they take for them."""
    if throughput is None or price is None or gpus is None or not throughput.output_tok_per_s:
        return None
    return price.usd_per_gpu_hour * gpus / 3600 / throughput.output_tok_per_s * 1e6
