"""Test the result file: it round-trips, and unmeasured metrics are absent."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import save

from orchestrator.bench.metrics import result_text
from orchestrator.bench.result import (
    RESULT_SCHEMA,
    BenchResult,
    ComparabilityIssue,
    EndpointFacts,
    EndReason,
    FailureCount,
    IssueKind,
    Point,
    Run,
    ServerProvenance,
)
from orchestrator.bench.result_files import load_result
from orchestrator.core.errors import BenchError

POINT = Point(
    label="2",
    arrivals="constant",
    end_reason=EndReason.COMPLETE,
    started_at="2026-07-01T00:00:00+00:00",
    requests=40,
    succeeded=39,
    success_share=0.975,
    failures=(FailureCount(kind="timeout", count=1, example="no complete response within 60 s"),),
    input_tokens=19_500,
    output_tokens=936,
    offered_rps=2.0,
    sustained=False,
    not_sustained_because=("success 97.5% is below 99%",),
)
RESULT = BenchResult(
    schema_version=RESULT_SCHEMA,
    run=Run(
        tool_version="0.1.0",
        started_at="2026-07-01T00:00:00+00:00",
        ended_at="2026-07-01T00:01:00+00:00",
        command="deploy bench tiny --workload smoke-tiny",
        workload_name="smoke-tiny",
        workload={"seed": 1},
        workload_digest="0" * 64,
        seed=1,
        warmup="none",
        endpoint=EndpointFacts(url="http://127.0.0.1:1", api="completions", served_model="tiny"),
        provenance=ServerProvenance(),
    ),
    end_reason=EndReason.COMPLETE,
    points=(POINT,),
    comparability_issues=(
        ComparabilityIssue(kind=IssueKind.FAILED_REQUESTS, detail="of 40 requests failed: 1 timeout", point="2"),
    ),
)


def test_result_round_trips_through_file(tmp_path: Path) -> None:
    assert load_result(save(RESULT, tmp_path)) == RESULT
    assert load_result(tmp_path) == RESULT
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_invalid_result_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BenchError) as caught:
        save(replace(RESULT, points=(replace(POINT, input_tokens=10**18),)), tmp_path)
    assert [problem.message.partition(":")[0] for problem in caught.value.problems] == ["`points.0.input_tokens`"]
    assert list(tmp_path.iterdir()) == []


def test_unmeasured_metrics_are_absent_not_zero() -> None:
    point = json.loads(RESULT.to_json())["points"][0]
    assert "latency" not in point
    assert "energy" not in point
    assert "usd_per_million_output_tokens" not in point


def test_unknown_schema_and_corrupt_file_are_rejected() -> None:
    data = json.loads(RESULT.to_json())
    with pytest.raises(BenchError, match="schema version `99`"):
        BenchResult.from_json(json.dumps({**data, "schema_version": 99}), location="r.json")
    with pytest.raises(BenchError) as caught:
        BenchResult.from_json(json.dumps({**data, "points": [{}]}), location="r.json")
    assert any(problem.message.startswith("`points.0.label`") for problem in caught.value.problems)
    with pytest.raises(BenchError, match="not a valid result"):
        BenchResult.from_json("{", location="r.json")


def test_comparability_issues_and_reasons_are_shown() -> None:
    text = result_text(RESULT)
    assert "NOT COMPARABLE (failed-requests at 2): of 40 requests failed: 1 timeout" in text
    assert "2: success 97.5% is below 99%" in text
    assert "2: 1 x timeout: no complete response within 60 s" in text
    assert "knee: none found" in text
    assert not RESULT.comparable
