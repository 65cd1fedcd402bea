"""The result of a run of aiperf 0.13.0 (`profile_export_aiperf.json`, schema 1.4) as a point. Pure.

A metric that aiperf does not measure stays None. aiperf defines its metrics in docs/metrics-reference.md: times count
from the sending of a request, throughput from the first request to the last response.
"""

from dataclasses import replace
from typing import Final

from pydantic import BaseModel, ConfigDict

from orchestrator.bench.aggregate import usd_per_million
from orchestrator.bench.result import (
    Amount,
    Count,
    Distribution,
    Energy,
    FailureCount,
    Latency,
    Point,
    Price,
    Throughput,
    parse_strict,
)
from orchestrator.core.secrets import excerpt

_NO_ENERGY: Final = "the counters also cover the start of aiperf"
EXPORT: Final = "profile_export_aiperf.json"


class _Export(BaseModel):
    """The used fields of an aiperf file; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Metric(_Export):
    avg: Amount
    count: Count | None = None
    p50: Amount | None = None
    p90: Amount | None = None
    p95: Amount | None = None
    p99: Amount | None = None
    max: Amount | None = None


class _ErrorDetails(_Export):
    message: str
    type: str | None = None
    code: int | None = None


class _Errors(_Export):
    error_details: _ErrorDetails
    count: Count


class AiperfExport(_Export):
    """The summary of one run; times in milliseconds."""

    aiperf_version: str
    was_cancelled: bool = False
    is_complete: bool = True
    incomplete_reason: str | None = None
    error_summary: tuple[_Errors, ...] = ()
    request_count: _Metric | None = None
    error_request_count: _Metric | None = None
    benchmark_duration: _Metric | None = None
    output_token_throughput: _Metric | None = None
    total_token_throughput: _Metric | None = None
    total_usage_prompt_tokens: _Metric | None = None
    total_usage_completion_tokens: _Metric | None = None
    total_usage_prompt_cache_read_tokens: _Metric | None = None
    time_to_first_token: _Metric | None = None
    request_latency: _Metric | None = None
    effective_latency: _Metric | None = None
    inter_token_latency: _Metric | None = None
    inter_chunk_latency: _Metric | None = None
    credit_to_start_latency: _Metric | None = None
    goodput: _Metric | None = None


def parse_export(text: str, *, location: str) -> AiperfExport:
    """Parse the file. Raises BenchError if it is not such an export."""
    return parse_strict(AiperfExport, text, description=f"`{EXPORT}` of aiperf", location=location)


def with_export(point: Point, export: AiperfExport, gpus: int | None, price: Price | None = None) -> Point:
    """Return the point with the figures of aiperf, but without requests; server counters stay those of `deploy`."""
    succeeded, failed = _count(export.request_count), _count(export.error_request_count)
    throughput = _throughput(export, gpus)
    return replace(
        point,
        requests=succeeded + failed,
        succeeded=succeeded,
        success_share=succeeded / (succeeded + failed) if succeeded + failed else 0.0,
        failures=tuple(map(_failure, export.error_summary)),
        input_tokens=_count(export.total_usage_prompt_tokens),
        output_tokens=_count(export.total_usage_completion_tokens),
        goodput_rps=export.goodput.avg if export.goodput else None,
        full_run=throughput,
        usd_per_million_output_tokens=usd_per_million(throughput, price, gpus),
        energy=point.energy and Energy(valid=False, source=point.energy.source, reason=_NO_ENERGY),
        latency=_latency(export),
        send_lag_s=_seconds(export.credit_to_start_latency),
        cache=point.cache and replace(point.cache, usage_share=_cache_hit_rate(export)),
        sustained=None,
        not_sustained_because=(),
    )


def _count(metric: _Metric | None) -> int:
    return round(metric.avg) if metric else 0


def _failure(errors: _Errors) -> FailureCount:
    details = errors.error_details
    kind = f"http-{details.code}" if details.code else details.type or "error"
    return FailureCount(kind=kind, count=errors.count, example=excerpt(details.message, 500))


def _seconds(metric: _Metric | None) -> Distribution | None:
    """Return a distribution in seconds; None if any value is missing."""
    if metric is None or not metric.count:
        return None
    values = (metric.avg, metric.p50, metric.p90, metric.p95, metric.p99, metric.max)
    if None in values:
        return None
    mean, p50, p90, p95, p99, top = ((value or 0.0) / 1e3 for value in values)
    return Distribution(count=metric.count, mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=top)


def _latency(export: AiperfExport) -> Latency | None:
    ttft, e2e = _seconds(export.time_to_first_token), _seconds(export.request_latency)
    if ttft is None or e2e is None:
        return None
    return Latency(
        ttft_from_send_s=ttft,
        e2e_from_send_s=e2e,
        e2e_from_schedule_s=_seconds(export.effective_latency),
        tpot_s=_seconds(export.inter_token_latency),
        itl_per_chunk_s=_seconds(export.inter_chunk_latency),
    )


def _throughput(export: AiperfExport, gpus: int | None) -> Throughput | None:
    seconds, output, total = export.benchmark_duration, export.output_token_throughput, export.total_token_throughput
    if seconds is None or output is None or total is None:
        return None
    return Throughput(
        seconds=seconds.avg,
        output_tok_per_s=output.avg,
        total_tok_per_s=total.avg,
        output_tok_per_s_per_gpu=output.avg / gpus if gpus else None,
    )


def _cache_hit_rate(export: AiperfExport) -> float | None:
    cached, prompt = export.total_usage_prompt_cache_read_tokens, export.total_usage_prompt_tokens
    return cached.avg / prompt.avg if cached and prompt and prompt.avg else None
