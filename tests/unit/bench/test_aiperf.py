"""Test the configuration for aiperf and the conversion of its result."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.bench.aiperf.export import parse_export, with_export
from orchestrator.bench.aiperf.runner import KEY, aiperf_config, payload_line
from orchestrator.bench.load_generator import PlannedRequest
from orchestrator.bench.metrics import METRICS, OUTPUT, TTFT_P95
from orchestrator.bench.result import CacheHits, EndpointFacts, EndReason, Energy, FailureCount, Point, Price
from orchestrator.bench.workload import SustainedLimits, Workload
from orchestrator.core.errors import BenchError
from orchestrator.core.paths import data_root

SAMPLE = data_root() / "tests/samples/aiperf-0.13.0.json"  # from a real run, 30 requests at 10 rps
WORKLOAD = Workload(input_tokens=32, output_tokens=50, request_rates=(10.0,), requests=30)
PHASE: dict[str, object] = {"name": "profiling", "type": "constant", "rate": 10.0, "requests": 30}
BARE = Point(
    label="10", arrivals="constant", end_reason=EndReason.COMPLETE, started_at="2026-11-27T14:36:00+00:00", requests=0,
    succeeded=0, success_share=0.0, failures=(), input_tokens=0, output_tokens=0, offered_rps=10.0,
    cache=CacheHits(wanted_share=0.1, metrics_share=0.1), sustained=False, not_sustained_because=("no requests",),
)  # fmt: skip


def point(**changes: object) -> Point:
    text = json.dumps({**json.loads(SAMPLE.read_text()), **changes})
    return with_export(BARE, parse_export(text, location="sample"), 2)


def test_metrics_of_recorded_aiperf_run_are_translated() -> None:
    result = point()
    assert (result.requests, result.succeeded, result.failures) == (30, 30, ())
    assert (result.input_tokens, result.output_tokens) == (30 * 32, 30 * 50)
    assert result.latency is not None
    assert result.latency.ttft_from_send_s.p50 == pytest.approx(0.0516, abs=1e-4)
    assert result.latency.tpot_s is not None
    assert result.latency.tpot_s.count == 30
    assert result.latency.itl_per_chunk_s is not None
    assert result.latency.itl_per_chunk_s.count == 30 * 49
    assert result.latency.e2e_from_schedule_s is not None
    assert result.full_run is not None
    assert result.full_run.output_tok_per_s == pytest.approx(454.7, abs=0.1)
    assert result.full_run.output_tok_per_s_per_gpu == pytest.approx(454.7 / 2, abs=0.1)
    assert result.cache is not None
    assert result.cache.metrics_share == pytest.approx(0.1)


def test_metrics_missing_from_aiperf_are_absent() -> None:
    """aiperf reports no steady window, no TTFT from the schedule and no verdict; a missing metric is not 0."""
    result = point()
    assert result.latency is not None
    assert result.latency.ttft_from_schedule_s is None
    assert (result.window, result.sustained, result.achieved_rps) == (None, None, None)
    assert OUTPUT.value_of(result) is None
    assert TTFT_P95.value_of(result) == result.latency.ttft_from_send_s.p95
    assert 0 not in {metric.value_of(result) for metric in METRICS} - {None}
    bare = point(time_to_first_token=None, benchmark_duration=None, credit_to_start_latency=None)
    assert (bare.latency, bare.full_run, bare.send_lag_s) == (None, None, None)


def test_token_cost_is_computed_without_energy() -> None:
    """The energy counters include the start of aiperf, which takes longer than a short load."""
    bare = replace(BARE, energy=Energy(valid=True, source="nvml", joules=900.0, joules_per_output_token=0.6))
    export = parse_export(SAMPLE.read_text(), location="sample")
    result = with_export(bare, export, 2, Price(usd_per_gpu_hour=3.0, source="given"))
    assert result.usd_per_million_output_tokens == pytest.approx(2 * 3.0 / 3600 / 454.7 * 1e6, rel=1e-3)
    assert result.energy is not None
    assert (result.energy.valid, result.energy.joules_per_output_token) == (False, None)
    assert "start of aiperf" in result.energy.reason


def test_failed_requests_are_counted_by_kind() -> None:
    summary = [{"error_details": {"code": 503, "type": "Unavailable", "message": "no room"}, "count": 2}]
    result = point(error_summary=summary, error_request_count={"unit": "requests", "avg": 2.0})
    assert result.failures == (FailureCount(kind="http-503", count=2, example="no room"),)
    assert (result.requests, result.succeeded, result.success_share) == (32, 30, 30 / 32)


def test_invalid_aiperf_export_is_rejected() -> None:
    with pytest.raises(BenchError, match=r"not a valid `profile_export_aiperf\.json` of aiperf"):
        parse_export('{"aiperf_version": 3}', location="x.json")


@pytest.mark.parametrize("has_key", [False, True])
def test_aiperf_configuration_contains_key_variable_and_slo(has_key: bool) -> None:
    facts = EndpointFacts(url="http://h:1", api="completions", served_model="m")
    slo = SustainedLimits(tpot_p95_s=0.05) if has_key else SustainedLimits()
    workload, header = WORKLOAD.model_copy(update={"slo": slo}), "x-key" if has_key else None
    text = aiperf_config(
        facts, workload, PHASE, session_header=header, work=Path("w"), directory=Path("d"), has_key=has_key
    )
    result = json.loads(text)["benchmark"]
    assert result["endpoint"].get("api_key") == (f"${{{KEY}}}" if has_key else None)
    assert result["endpoint"]["path"] == "/v1/completions"
    limits = {"time_to_first_token": 5000.0, "inter_token_latency": 50.0}
    assert result["slos"] == (limits if has_key else {"time_to_first_token": 5000.0})
    assert result["endpoint"].get("session_header") == ("x-key" if has_key else None)
    assert result["phases"] == [PHASE]


def test_request_payload_is_sent_unchanged() -> None:
    planned = PlannedRequest(input_tokens=2, output_tokens=50, delay_s=1.5)
    body = b'{"prompt": [1, 2], "stream": true}'
    line = json.loads(payload_line(body, planned, session="a", arrival_s=None))
    payload = {"prompt": [1, 2], "stream": True}
    assert line == {"session_id": "a", "output_length": 50, "delay": 1500.0, "payload": payload}
    assert json.loads(payload_line(body, planned, session="a", arrival_s=2.0))["timestamp"] == 2000.0
