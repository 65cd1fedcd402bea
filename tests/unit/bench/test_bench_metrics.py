"""Test the metrics of a benchmark, computed from requests with known times."""

import tracemalloc
from array import array
from dataclasses import replace

import pytest
from measured_samples import tp8

from orchestrator.bench.aggregate import Observation, distribution, summarize_closed_loop, summarize_open_loop
from orchestrator.bench.comparability import comparability_issues
from orchestrator.bench.counters import server_counts
from orchestrator.bench.load_generator import LoadResult
from orchestrator.bench.metrics import knee_text
from orchestrator.bench.record_file import RequestRecord
from orchestrator.bench.result import (
    ComparabilityIssue,
    EndpointFacts,
    EndReason,
    IssueKind,
    Point,
    Price,
    ServerCounts,
    ServerProvenance,
)
from orchestrator.bench.steady_state import knee, ttft_growth, unjudgeable_rates
from orchestrator.bench.workload import SustainedLimits, Workload, load_workload
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.paths import data_root
from orchestrator.engine.metrics import Metric, read_metrics

WORKLOAD = load_workload("smoke-tiny").model_copy(
    update={"input_tokens": 100, "output_tokens": 11, "cache_hit_rate": 0.6, "request_rates": (1.0,)}
)


def request(
    index: int, *, at: float, wait: float = 0.5, itl: float = 0.1, late: float = 0.0, **changes: object
) -> RequestRecord:
    """Return a response of 11 tokens: the first `wait` seconds after its planned time, then one every `itl` seconds."""
    times = tuple(at + wait + itl * number for number in range(11))
    record = RequestRecord(
        index=index,
        scheduled_s=at,
        started_s=at + late,
        ended_s=times[-1],
        chunk_s=array("d", times),
        chunk_tokens=array("i", range(1, 12)),
        prompt_tokens=100,
        output_tokens=11,
        cached_tokens=60,
        finish_reason="length",
        failure=None,
        failure_example="",
    )
    return record._replace(**changes)  # type: ignore[arg-type]


def failed(index: int, *, at: float, kind: str = "reset") -> RequestRecord:
    nothing = {"chunk_s": (), "chunk_tokens": (), "prompt_tokens": None, "output_tokens": None, "cached_tokens": None}
    return request(index, at=at, failure=kind, failure_example="peer closed", **nothing)


def point(
    records: list[RequestRecord],
    *,
    rate: float = 1.0,
    gpus: int | None = 8,
    workload: Workload = WORKLOAD,
    **changes: object,
) -> Point:
    observed = Observation(
        label=f"{rate:g}",
        started_at="2026-07-01T00:00:00+00:00",
        load_result=LoadResult(records=tuple(records), end_reason=EndReason.COMPLETE),
        server=None,
        energy=None,
        reports_cache=True,
        gpus=gpus,
    )
    observed = replace(observed, **changes)  # type: ignore[arg-type]
    return summarize_open_loop(observed, workload, rate_rps=rate, price=Price(usd_per_gpu_hour=1.48, source="given"))


def steady(count: int = 100) -> list[RequestRecord]:
    return [request(index, at=float(index)) for index in range(count)]


def test_latency_is_measured_from_schedule_and_from_send() -> None:
    latency = point([request(index, at=float(index), late=0.2) for index in range(100)]).latency
    assert latency is not None
    assert latency.ttft_from_schedule_s.p95 == pytest.approx(0.5)
    assert latency.ttft_from_send_s.p95 == pytest.approx(0.3)
    assert latency.e2e_from_schedule_s.p50 == pytest.approx(1.5)
    assert latency.tpot_s is not None
    assert latency.tpot_s.p50 == pytest.approx(0.1)
    assert latency.itl_per_chunk_s is not None
    assert latency.itl_per_chunk_s.p99 == pytest.approx(0.1)


def test_time_per_token_uses_reported_token_counts() -> None:
    chunks = {"chunk_s": (0.5, 1.0, 1.5), "chunk_tokens": (3, 7, 11), "ended_s": 1.5}
    latency = point([request(0, at=0.0, **chunks)]).latency
    assert latency is not None
    assert latency.tpot_s is not None
    assert latency.tpot_s.p50 == pytest.approx(0.1)
    assert latency.itl_per_chunk_s is not None
    assert latency.itl_per_chunk_s.p50 == pytest.approx(0.5)


def test_steady_state_throughput_is_rate_times_output_length() -> None:
    measured = point(steady())
    assert measured.window is not None
    assert measured.full_run is not None
    assert measured.window.output_tok_per_s == pytest.approx(11, rel=0.01)
    assert measured.window.total_tok_per_s == pytest.approx(111, rel=0.02)
    assert measured.window.output_tok_per_s_per_gpu == pytest.approx(11 / 8, rel=0.01)
    assert measured.full_run.output_tok_per_s == pytest.approx(100 * 11 / 100.5)


def test_window_shorter_than_request_yields_no_rate() -> None:
    """Requests take 1.5 s: of 5 s of arrivals, 2 s are steady; of 4 s, only 1 s."""
    measured, short = (point([request(index, at=index / 4) for index in range(4 * seconds + 1)]) for seconds in (5, 4))
    assert measured.window is not None
    assert measured.window.seconds == pytest.approx(2)
    assert short.full_run is not None
    assert (short.window, short.achieved_rps) == (None, None)


def test_chunks_without_counts_share_request_tokens_evenly() -> None:
    without_counts = [record._replace(chunk_tokens=()) for record in steady()]
    assert point(without_counts).full_run == point(steady()).full_run


def late_at_end(count: int) -> list[RequestRecord]:
    """Return 40 requests, 36 of them in the steady window; the last `count` of these take 5 s longer."""
    return [request(i, at=float(i), itl=0.1 if not 38 - count <= i <= 37 else 0.6) for i in range(40)]


@pytest.mark.parametrize(
    ("late", "sustained", "reason"),
    [
        (1, True, None),
        (2, None, "34 of 36 due requests completed (94.4%), too few requests to tell from 97%"),
        (3, None, "33 of 36 due requests completed (91.7%), too few requests to tell from 97%"),
        (4, False, "only 32 of 36 due requests completed (88.9%)"),
    ],
)
def test_few_late_requests_do_not_fail_a_rate(late: int, sustained: bool | None, reason: str | None) -> None:
    measured = point(late_at_end(late))
    assert (measured.sustained, measured.not_sustained_because) == (sustained, (reason,) if reason else ())


def test_window_with_queue_drain_has_no_throughput() -> None:
    """100 requests arrive at 12 a second; a stall delays the first 50, and all of these end within one second."""
    stalled = [request(i, at=i / 12, wait=max(0.02, 4.5 + i / 50 - i / 12), itl=0.01) for i in range(100)]
    measured = point(stalled, rate=12)
    assert (measured.window, measured.achieved_rps, measured.sustained) == (None, None, None)
    (reason,) = measured.not_sustained_because
    assert reason.endswith("the window holds the drain of a queue, as after a stall")


def test_price_is_converted_to_dollars_per_million_tokens() -> None:
    measured = point(steady())
    assert measured.window is not None
    dollars_a_second = 8 * 1.48 / 3600
    assert measured.usd_per_million_output_tokens == pytest.approx(
        dollars_a_second / measured.window.output_tok_per_s * 1e6
    )
    assert point(steady(), gpus=None).usd_per_million_output_tokens is None


def test_a_steady_load_is_sustained() -> None:
    measured = point(steady())
    assert measured.sustained is True
    assert measured.completion_ratio == pytest.approx(1.0)
    assert measured.achieved_rps == pytest.approx(1.0, rel=0.02)
    assert measured.ttft_growth_s_per_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("capacity", [0.94, 0.8, 0.5])
def test_growing_queue_is_not_sustained_despite_ttft_within_limit(capacity: float) -> None:
    growth = 1 / capacity - 1
    measured = point([request(index, at=float(index), wait=0.5 + growth * index) for index in range(40)])
    assert measured.sustained is False
    assert measured.ttft_growth_s_per_s == pytest.approx(growth, rel=0.01)
    assert any("queue grows" in reason for reason in measured.not_sustained_because)


def test_slowing_decode_lowers_completion_ratio() -> None:
    """Without a limit on running requests, the first token is immediate and the following tokens are delayed."""
    slow = [request(index, at=float(index), itl=0.1 + 0.01 * index) for index in range(200)]
    measured = point(slow)
    assert measured.ttft_growth_s_per_s == pytest.approx(0.0, abs=1e-9)
    assert measured.completion_ratio is not None
    assert measured.completion_ratio < 0.97
    assert measured.sustained is False


@pytest.mark.parametrize("growth", [0.0, 0.05])
def test_ttft_growth_of_many_requests_needs_little_memory(growth: float) -> None:
    """6,000 requests have 4.5 million pairwise slopes; every seventh response is late for another reason."""
    records = [
        request(index, at=float(index), wait=0.5 + growth * index + (3.0 if index % 7 == 0 else 0.01 * (index % 3)))
        for index in range(6000)
    ]
    tracemalloc.start()
    computed = ttft_growth(records)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert computed == pytest.approx(growth, abs=1e-4)
    assert peak < 4 << 20


def test_rate_with_too_few_requests_is_not_judged() -> None:
    measured = point(steady(10))
    assert measured.sustained is None
    assert measured.completion_ratio is None
    assert measured.not_sustained_because == ("5 of 10 requests counted, 20 needed: send at least 40",)


def test_too_few_requests_are_detected_before_the_run() -> None:
    small = load_workload("smoke-tiny").model_copy(update={"requests": 24})
    (reason,) = unjudgeable_rates(small)
    assert reason == "cannot judge 1, 2, 4 rps: 12 of 24 requests counted, 20 needed: send at least 40"
    assert not unjudgeable_rates(small.model_copy(update={"requests": 40}))


def test_every_rate_of_shipped_workloads_can_be_judged() -> None:
    """The default workload `short` once sent only 10 requests at its first rate, so each run began with a warning."""
    names = Catalog((data_root(),)).names(EntryKind.WORKLOAD)
    reported = {name: unjudgeable_rates(workload) for name in names if (workload := load_workload(name)).request_rates}
    assert reported == dict.fromkeys(reported, ())


def test_too_short_duration_is_detected_before_the_run() -> None:
    timed = load_workload("smoke-tiny").model_copy(update={"duration_s": 12.0})
    assert unjudgeable_rates(timed) == (
        "cannot judge 1 rps: 6 of 12 requests counted, 20 needed: send at least 40",
        "cannot judge 2 rps: 12 of 24 requests counted, 20 needed: send at least 40",
    )
    assert not unjudgeable_rates(timed.model_copy(update={"duration_s": 40.0}))
    burst = load_workload("smoke-tiny").model_copy(update={"request_rates": (50.0,)})
    assert unjudgeable_rates(burst) == ("cannot judge 50 rps: 0.8 s counted, 5 s needed",)


def test_rate_with_too_short_window_is_not_judged() -> None:
    """60 requests at 24 a second arrive within 2.5 s, too short to show that a server can sustain the rate."""
    burst = point([request(index, at=index / 24, wait=0.02, itl=0.001) for index in range(60)], rate=24)
    assert burst.sustained is None
    assert burst.not_sustained_because == ("2.4 s counted, 5 s needed",)
    longer = point([request(index, at=index / 24, wait=0.02, itl=0.001) for index in range(240)], rate=24)
    assert longer.sustained is True


def test_interrupted_rate_is_not_judged() -> None:
    """Two requests above the TTFT limit at Ctrl-C once counted as a failure of the server."""
    slow = Observation(
        label="1",
        started_at="",
        load_result=LoadResult(records=(request(0, at=0.0, wait=30.0),), end_reason=EndReason.INTERRUPTED),
        server=None,
        energy=None,
        reports_cache=True,
        gpus=8,
    )
    measured = summarize_open_loop(slow, load_workload("smoke-tiny"), rate_rps=1, price=None)
    assert (measured.sustained, measured.not_sustained_because) == (None, ("interrupted",))


def test_point_without_steady_window_is_not_judged() -> None:
    """Requests take 8 s: of 22 s of arrivals, 6 s are steady."""
    measured = point([request(index, at=index / 4, itl=0.75) for index in range(4 * 22 + 1)], rate=4)
    assert measured.window is None
    assert measured.sustained is None
    assert measured.not_sustained_because == ("6.0 s counted, 8 s needed",)


def test_success_share_and_ttft_limits_are_enforced() -> None:
    mixed = [request(index, at=float(index)) if index % 50 else failed(index, at=float(index)) for index in range(100)]
    measured = point(mixed)
    assert measured.success_share == 0.98
    assert measured.failures[0].kind == "reset"
    assert measured.failures[0].count == 2
    assert measured.sustained is False
    late = [request(index, at=float(index), wait=5.5) for index in range(100)]
    assert "TTFT p95 5.50 s exceeds 5 s" in point(late).not_sustained_because
    assert point(late).goodput_rps == 0.0


@pytest.mark.parametrize(
    ("limits", "good", "reason"),
    [
        ({}, 100, None),
        ({"tpot_p95_s": 0.09}, 50, "TPOT p95 0.1000 s exceeds 0.09 s"),
        ({"tpot_p95_s": 0.11}, 100, None),
        ({"e2e_p95_s": 1.2}, 50, "E2E p95 1.50 s exceeds 1.2 s"),
        ({"e2e_p95_s": 1.2, "ttft_p95_s": 0.4}, 0, "TTFT p95 0.5000 s exceeds 0.4 s"),
    ],
)
def test_slo_may_limit_tpot_and_e2e(limits: dict[str, float], good: int, reason: str | None) -> None:
    """Half of the requests have tokens 0.05 s apart and take 1 s; the others have tokens 0.1 s apart and take 1.5 s."""
    records = [request(index, at=float(index), itl=0.05 if index % 2 else 0.1) for index in range(100)]
    workload = WORKLOAD.model_copy(update={"slo": SustainedLimits(**limits)})
    measured = point(records, workload=workload)
    assert measured.goodput_rps == pytest.approx(good / max(record.ended_s for record in records))
    assert (reason is None) == (measured.sustained is True)
    assert reason is None or reason in measured.not_sustained_because


def test_knee_is_highest_sustained_rate_before_first_failure() -> None:
    def at(rate: float, *, sustained: bool | None) -> Point:
        return replace(point(steady(10)), offered_rps=rate, sustained=sustained)

    assert knee([at(1, sustained=True), at(3, sustained=False), at(2, sustained=True)]) == 2
    assert knee([at(1, sustained=True), at(2, sustained=False), at(3, sustained=True)]) == 1
    assert knee([at(1, sustained=None), at(2, sustained=True)]) == 2
    assert knee([at(1, sustained=None)]) is None
    assert knee([]) is None


def test_knee_text_lists_rates_not_judged() -> None:
    def verdict(*sustained: bool | None) -> str:
        points = tuple(replace(point(steady(10)), offered_rps=i + 1.0, sustained=s) for i, s in enumerate(sustained))
        return knee_text(replace(tp8(), points=points, knee_rps=knee(points)))

    assert verdict(True, None, False) == "1 rps; 2 rps not judged"
    assert verdict(True, None) == "at least 1 rps; 2 rps not judged"
    assert verdict(None, False) == "not judged at 1 rps"
    assert verdict(None, True, False) == "2 rps"


def test_percentiles_match_numpy() -> None:
    measured = distribution([4.0, 1.0, 3.0, 2.0])
    assert measured is not None
    assert (measured.p50, measured.p90, measured.p95) == pytest.approx((2.5, 3.7, 3.85))
    assert distribution([]) is None


def test_percentiles_of_many_values_need_bounded_memory() -> None:
    values = [0.5 + 7.5 * number / 50_000 for number in range(50_000)]
    tracemalloc.start()
    try:
        measured = distribution(iter(values))
        assert tracemalloc.get_traced_memory()[1] < 1_200_000  # sorted, they take 2 MB
    finally:
        tracemalloc.stop()
    assert measured is not None
    assert (measured.count, measured.max) == (50_000, values[-1])
    assert measured.mean == pytest.approx(4.25, rel=1e-4)
    percentiles = (measured.p50, measured.p90, measured.p95, measured.p99)
    assert percentiles == pytest.approx((4.25, 7.25, 7.625, 7.925), rel=1e-3)


def test_cache_share_is_measured_or_absent() -> None:
    cached = point(steady()).cache
    assert cached is not None
    assert cached.usage_share == pytest.approx(0.6)
    without_usage = [record._replace(cached_tokens=None) for record in steady()]
    unknown = point(without_usage, reports_cache=False).cache
    assert unknown is not None
    assert unknown.usage_share is None
    zero = point(without_usage, reports_cache=True).cache
    assert zero is not None
    assert zero.usage_share == 0.0
    counted = point(without_usage, reports_cache=False, server=ServerCounts(prompt_tokens=200, cached_tokens=100)).cache
    assert counted is not None
    assert counted.metrics_share == 0.5


def issues(
    *points: Point, server: ServerProvenance | None = None, overridden: tuple[str, ...] = (), **endpoint: object
) -> tuple[ComparabilityIssue, ...]:
    facts = EndpointFacts(url="", api="completions", served_model="tiny", **endpoint)  # type: ignore[arg-type]
    run = replace(tp8().run, endpoint=facts, provenance=server or ServerProvenance())
    return comparability_issues(
        replace(tp8(), run=run, points=points, end_reason=points[-1].end_reason), overridden=overridden
    )


def kinds(records: list[RequestRecord], **provenance: object) -> set[IssueKind]:
    server = ServerProvenance(**provenance)  # type: ignore[arg-type]
    return {issue.kind for issue in issues(point(records), server=server)}


def test_clean_result_has_no_comparability_issues() -> None:
    assert kinds(steady()) == set()


def test_each_cause_of_incomparability_is_reported() -> None:
    none = {"cached_tokens": None}
    assert kinds([*steady(), failed(100, at=100.0)]) == {IssueKind.FAILED_REQUESTS}
    assert kinds([record._replace(cached_tokens=30) for record in steady()]) == {IssueKind.CACHE_HIT_RATE_OFF_TARGET}
    assert kinds([record._replace(**none) for record in steady()]) == {IssueKind.CACHE_HIT_RATE_OFF_TARGET}
    assert kinds([request(i, at=float(i), late=0.06) for i in range(50)]) == {IssueKind.CLIENT_LAGGED}
    assert kinds(steady(), kernel_gate={"hits": [], "misses": [["256", "8192"]]}) == {IssueKind.KERNEL_MISS}
    assert kinds(steady(), kernel_gate={"hits": [["256", "8192"]], "misses": []}) == set()
    env = [{"name": "SGLANG_SIMULATE_ACC_LEN", "value": "3.61"}]
    assert kinds(steady(), plan={"env": env}) == {IssueKind.SIMULATED_ACCEPTANCE}
    without_usage = point([record._replace(**none) for record in steady()], reports_cache=False)
    assert [issue.kind for issue in issues(without_usage)] == [IssueKind.CACHE_HIT_RATE_UNKNOWN]


def test_hit_rate_limited_by_block_size_names_blocks() -> None:
    cached = point([record._replace(cached_tokens=51) for record in steady()])
    (issue,) = issues(cached, engine="vllm", page_size=128)
    assert issue.detail.endswith("the target is 60% (the cache holds whole blocks of 128 tokens)")


def test_speculation_with_random_prompts_is_a_comparability_issue() -> None:
    measured = [replace(point(steady()), server=ServerCounts(accept_length=length)) for length in (1.25, 1.5)]
    (issue,) = issues(*measured, speculative="EAGLE 5/1/6")
    assert issue.kind is IssueKind.RANDOM_PROMPTS
    assert issue.detail == ("random prompts do not measure speculation (EAGLE 5/1/6): 1.25 to 1.50 tokens a step")


def test_comparability_issues_name_point_and_changed_keys() -> None:
    cut = replace(point(steady()), end_reason=EndReason.INTERRUPTED)
    assert issues(cut, overridden=("requests",)) == (
        ComparabilityIssue(kind=IssueKind.INCOMPLETE, detail="interrupted before every point was measured"),
        ComparabilityIssue(kind=IssueKind.CHANGED_WORKLOAD, detail="changed on the command line: `requests`"),
        ComparabilityIssue(kind=IssueKind.INCOMPLETE, detail="interrupted after 100 requests", point="1"),
    )


def test_closed_load_has_no_rate_and_no_judgment() -> None:
    observed = Observation(
        label="closed-1",
        started_at="",
        load_result=LoadResult(records=(request(0, at=0.0),), end_reason=EndReason.COMPLETE),
        server=None,
        energy=None,
        reports_cache=True,
        gpus=8,
    )
    single = load_workload("single-stream-10k-1.5k")
    measured = summarize_closed_loop(observed, single, price=None)
    assert (measured.arrivals, measured.concurrency) == ("closed", 1)
    assert (measured.offered_rps, measured.sustained, measured.usd_per_million_output_tokens) == (None, None, None)


METRICS = """
# HELP sglang:prompt_tokens_total x
sglang:prompt_tokens_total{model_name="m"} 1000.0
sglang:cached_tokens_total{cache_source="device",dp_rank="0"} 300.0
sglang:cached_tokens_total{cache_source="host",dp_rank="1"} 300.0
sglang:generation_tokens_total{model_name="m"} 380.0
sglang:num_requests_total{model_name="m"} 10.0
sglang:spec_verify_calls_total{model_name="m"} 100.0
sglang:num_queue_reqs{tp_rank="0",dp_rank="0"} 2.0
sglang:num_queue_reqs{tp_rank="0",dp_rank="1"} 3.0
sglang:num_queue_reqs{tp_rank="1",dp_rank="0"} 2.0
sglang:num_running_reqs{tp_rank="0",dp_rank="0"} 16.0
sglang:num_running_reqs{tp_rank="0",dp_rank="1"} 15.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 5.0
sglang:time_to_first_token_seconds_count{model_name="m"} 10.0
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 0.0
sglang:time_to_first_token_seconds_bucket{le="0.6",model_name="m"} 10.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 10.0
"""


def test_counters_are_summed_over_replicas_but_not_tp_ranks() -> None:
    reading = read_metrics(METRICS.encode())
    counts = server_counts({}, reading)
    assert counts.cached_tokens == 600
    assert (reading[Metric.QUEUED], reading[Metric.RUNNING]) == (5.0, 31.0)
    assert counts.accept_length == pytest.approx(3.7)
    assert counts.ttft_mean_s == pytest.approx(0.5)


def test_accept_length_excludes_first_token_of_each_request() -> None:
    """10 requests of 64 tokens take 63 verifications each: every draft is rejected, as with a random MTP layer."""
    counted = {
        "sglang:num_requests_total": 10.0,
        "sglang:generation_tokens_total": 640.0,
        "sglang:spec_verify_calls_total": 630.0,
    }
    assert server_counts({}, counted).accept_length == 1.0


def test_non_finite_metric_is_dropped_and_others_stay() -> None:
    text = METRICS.replace('cached_tokens_total{cache_source="device",dp_rank="0"} 300.0', "cached_tokens_total NaN")
    reading = read_metrics(text.replace('num_queue_reqs{tp_rank="0",dp_rank="1"} 3.0', "num_queue_reqs +Inf").encode())
    counts = server_counts(read_metrics(b""), reading)
    assert (counts.cached_tokens, reading[Metric.QUEUED]) == (None, None)
    assert (counts.prompt_tokens, counts.output_tokens) == (1000, 380)


def test_decreasing_counter_yields_no_count() -> None:
    before, after = (read_metrics(b"sglang:prompt_tokens_total %d" % count) for count in (1000, 10))
    assert server_counts(before, after).prompt_tokens is None


def test_accept_length_is_absent_without_speculation() -> None:
    before = read_metrics(METRICS.encode())
    assert server_counts(before, {**before, "sglang:generation_tokens_total": 500.0}).accept_length is None
