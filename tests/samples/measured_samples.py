"""Synthetic benchmark results, with values close to published ones."""

from dataclasses import replace
from pathlib import Path

from orchestrator.bench.result import (
    RESULT_FILE,
    RESULT_SCHEMA,
    BenchResult,
    CacheHits,
    ComparabilityIssue,
    Distribution,
    EndpointFacts,
    EndReason,
    Energy,
    IssueKind,
    Latency,
    Point,
    Price,
    Run,
    ServerCounts,
    ServerProvenance,
    Throughput,
)
from orchestrator.core.files import atomic_write

DP2 = {
    0.5: (0.58, 0.63),
    1.0: (0.60, 0.84),
    1.5: (0.61, 0.97),
    2.0: (0.64, 1.12),
    2.25: (0.66, 1.31),
    2.4: (0.84, 2.41),
}
TP8 = {0.5: (0.49, 0.55), 1.0: (0.55, 0.92), 1.5: (1.02, 3.6), 2.0: (6.4, 14.8)}


def spread(p50: float, p95: float) -> Distribution:
    return Distribution(count=200, mean=p50 * 1.05, p50=p50, p90=p95 * 0.95, p95=p95, p99=p95 * 1.1, max=p95 * 1.2)


def point(rate: float, p50: float, p95: float, *, joules: float | None = None, sustained: bool = True) -> Point:
    tok_s = rate * 985 if sustained else 1480.0
    energy = Energy(
        valid=True,
        source="amd-smi",
        seconds=400.0,
        joules_per_output_token=joules,
        output_tok_per_s_per_watt=1 / joules if joules else None,
    )
    return Point(
        label=f"{rate:g}",
        arrivals="constant",
        end_reason=EndReason.COMPLETE,
        started_at="2026-11-20T10:00:00Z",
        requests=200,
        succeeded=200,
        success_share=1.0,
        failures=(),
        input_tokens=4_000_000,
        output_tokens=200_000,
        offered_rps=rate,
        achieved_rps=rate,
        window=Throughput(
            seconds=180.0, output_tok_per_s=tok_s, total_tok_per_s=tok_s * 21, output_tok_per_s_per_gpu=tok_s / 8
        ),
        full_run=Throughput(seconds=240.0, output_tok_per_s=tok_s * 0.8, total_tok_per_s=tok_s * 16),
        latency=Latency(
            ttft_from_schedule_s=spread(p50, p95),
            ttft_from_send_s=spread(p50, p95),
            e2e_from_schedule_s=spread(p50 + 9, p95 + 11),
            e2e_from_send_s=spread(p50 + 9, p95 + 11),
            tpot_s=spread(0.009, 0.011),
            itl_per_chunk_s=spread(0.03, 0.04),
        ),
        cache=CacheHits(wanted_share=0.6, usage_share=0.598, achievable_share=0.6),
        server=ServerCounts(accept_length=3.4),
        energy=energy if joules else None,
        sustained=sustained,
        not_sustained_because=() if sustained else ("TTFT grew by 0.21 s a second",),
    )


def mi355x(*, tp: int, dp: int) -> ServerProvenance:
    layout = {"tp": tp, "dp": dp, "ep": 1, "dp_attention": False}
    profile = "mi355x-tp8" if dp == 1 else "mi355x-tp4dp2"
    return ServerProvenance(
        name=profile,
        profile=profile,
        plan={"profile": profile, "layout": layout, "flags": [{"name": "kv-cache-dtype", "value": "fp8_e4m3"}]},
        plan_digest="3f9a" * 16,
        image_digest="sha256:" + "77ab" * 16,
        patch_receipt={"applied": ["glm-nextn-exclude"]},
        kernel_gate={"missed": 0, "found": 412},
        host={"rocm": "7.0.2", "gpus": ["gfx950"] * 8},
        gpu="mi355x",
        gpus=8,
    )


def run(provenance: ServerProvenance, *, workload: str = "wafer-20k-1k") -> Run:
    return Run(
        tool_version="0.1.0",
        started_at="2026-11-20T10:00:00Z",
        ended_at="2026-11-20T10:41:00Z",
        command=f"deploy bench {provenance.name} --workload {workload}",
        workload_name=workload,
        workload={"input_tokens": 20000, "output_tokens": 1000, "cache_hit_rate": 0.6},
        workload_digest="c0ffee" * 10,
        seed=20260701,
        warmup="every prefix once on each DP rank",
        endpoint=EndpointFacts(
            url="http://127.0.0.1:30000",
            api="generate",
            served_model="glm-5.2",
            engine="sglang",
            engine_version="0.5.14",
        ),
        provenance=provenance,
    )


def tp4dp2() -> BenchResult:
    """Return a complete and comparable result of the published layout."""
    points = tuple(
        point(rate, p50, p95, joules=joules)
        for (rate, (p50, p95)), joules in zip(DP2.items(), (13.1, 7.4, 5.6, 4.7, 4.4, 4.3), strict=True)
    )
    return BenchResult(
        schema_version=RESULT_SCHEMA,
        run=run(mi355x(tp=4, dp=2)),
        end_reason=EndReason.COMPLETE,
        points=points,
        knee_rps=2.4,
        comparability_issues=(),
    )


def tp8() -> BenchResult:
    """Return a result of a layout that saturates earlier, without energy counters."""
    points = tuple(point(rate, p50, p95, sustained=rate < 2) for rate, (p50, p95) in TP8.items())
    return BenchResult(
        schema_version=RESULT_SCHEMA,
        run=run(mi355x(tp=8, dp=1)),
        end_reason=EndReason.COMPLETE,
        points=points,
        knee_rps=1.5,
        comparability_issues=(),
    )


def b200() -> BenchResult:
    """Return a result of an endpoint on B200, with a price."""
    base = tp8()
    provenance = replace(base.run.provenance, gpu="b200", name="b200-tp8", profile="b200-tp8")
    points = tuple(point(rate, 0.4, 0.5 + rate / 4) for rate in (1.0, 2.0, 3.0))
    price = Price(usd_per_gpu_hour=3.10, source="given")
    return replace(base, run=replace(run(provenance), price=price), points=points, knee_rps=3.0)


def single_stream() -> BenchResult:
    """Return a result of TP8 with one request at a time."""
    base = tp8()
    alone = replace(
        point(1.0, 0.4, 0.5), label="closed-1", arrivals="closed", concurrency=1, offered_rps=None, sustained=None
    )
    latency = alone.latency
    assert latency is not None
    alone = replace(alone, latency=replace(latency, tpot_s=spread(1 / 208, 1 / 190)))
    return replace(base, run=run(mi355x(tp=8, dp=1), workload="single-stream-10k-1.5k"), points=(alone,), knee_rps=None)


def marked(result: BenchResult, *kinds: IssueKind) -> BenchResult:
    """Return the result with comparability issues."""
    return replace(
        result,
        comparability_issues=tuple(
            ComparabilityIssue(kind=kind, detail="as the server's own log says") for kind in kinds
        ),
    )


def save(result: BenchResult, directory: Path) -> Path:
    return atomic_write(directory / RESULT_FILE, result.to_json())
