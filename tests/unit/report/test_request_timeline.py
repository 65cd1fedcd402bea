"""The requests of one rate over time, from the file that `deploy bench` wrote beside its result."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import point, save, tp4dp2

from orchestrator.bench.result_files import RequestTimes
from orchestrator.cli.report import command as report_command
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.report.charts import over_time_charts
from orchestrator.report.timeline import timeline
from orchestrator.report.write import find_requests


def line(at: float, *, wait: float | None = 0.2, took: float = 1.0, failure: str | None = None) -> str:
    """A line as bench writes it; a wait of None is a request that got no token."""
    sample = {
        "index": 0,
        "scheduled_s": at,
        "started_s": at,
        "ended_s": at + took,
        "chunk_s": [] if wait is None else [at + wait, at + took],
        "chunk_tokens": [1, 2],
        "failure": failure,
    }
    return json.dumps(sample)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Two rates, of which 2.4 is the knee, with the requests of both."""
    base = tp4dp2()
    save(replace(base, points=(point(2.0, 0.6, 1.1), point(2.4, 0.8, 2.4))), tmp_path / "own")
    (tmp_path / "own" / "requests-2.jsonl").write_text(line(0.0) + "\n")
    lines = [line(0.0), line(0.5), line(1.0, wait=None, took=3.0, failure="timeout"), line(1.5, wait=0.9)]
    (tmp_path / "own" / "requests-2.4.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_requests_at_the_knee_are_drawn(measured: Path) -> None:
    report_command([measured])
    page = (measured / "report.html").read_text()
    (drawn,) = json.loads((measured / "report.json").read_text())["timelines"]

    assert (drawn["load"], drawn["requests"]) == ("2.4 rps", 4)
    assert drawn["waits"] == [[0.0, 0.2], [0.5, pytest.approx(0.2)], [1.5, pytest.approx(0.9)]]
    assert drawn["failed"] == [[1.0, 0.0]]
    assert max(many for _, many in drawn["in_flight"]) == 2
    assert max(many for _, many in drawn["waiting"]) == 2
    assert "4 requests, 1 of them failed, one dot each; the slowest waited 0.90 s." in page
    assert "At most 2 concurrent, at most 2 of them queued or in prefill." in page


def test_timeline_rate_selects_a_measured_rate(measured: Path) -> None:
    report_command([measured], timeline_rate=2.0)
    assert json.loads((measured / "report.json").read_text())["timelines"][0]["load"] == "2 rps"
    with pytest.raises(UsageError, match="no result has a rate of 7 rps") as caught:
        report_command([measured], timeline_rate=7.0)
    assert caught.value.hint == "--timeline-rate one of 2, 2.4"


def test_timeline_is_omitted_without_request_file(measured: Path) -> None:
    (measured / "own" / "requests-2.4.jsonl").unlink()
    report_command([measured])
    assert "Requests over time" not in (measured / "report.html").read_text()


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"scheduled_s": "x"}', line(1e300), line(0.0).replace("0.2", "NaN"), '"<script>"']
)
def test_corrupt_request_line_is_reported_with_location(measured: Path, damage: str) -> None:
    file = measured / "own" / "requests-2.4.jsonl"
    file.write_text(f"{line(0.0)}\n{damage}\n")
    with pytest.raises(BenchError, match="not a valid request of `deploy bench`") as caught:
        find_requests([measured / "own" / "result.json"], None)
    assert caught.value.location == f"{file}:2"


def test_long_timeline_is_downsampled_but_keeps_slowest_request() -> None:
    requests = [
        RequestTimes(
            scheduled_s=at / 10, started_s=at / 10, first_token_s=at / 10 + 0.1, ended_s=at / 10 + 2, failed=False
        )
        for at in range(20_000)
    ]
    requests[777] = replace(
        requests[777], first_token_s=requests[777].scheduled_s + 9, ended_s=requests[777].scheduled_s + 9
    )
    drawn = timeline(0, point(10.0, 0.1, 0.1), requests)

    assert len(drawn.waits) <= 602
    assert max(wait for _, wait in drawn.waits) == pytest.approx(9)
    assert len(drawn.in_flight) <= 122
    assert 20 <= max(many for _, many in drawn.in_flight) <= 22
    assert drawn.in_flight[-1][1] == 0
    assert "20000 requests, one dot each; the slowest waited 9.00 s." in over_time_charts(drawn)[0].says


def test_simultaneous_requests_are_drawn() -> None:
    at_once = RequestTimes(scheduled_s=0.0, started_s=0.0, first_token_s=None, ended_s=0.0, failed=True)
    drawn = timeline(0, point(1.0, 0.1, 0.1), [at_once] * 3)
    assert all(chart.lines for chart in over_time_charts(drawn))
    assert timeline(0, point(1.0, 0.1, 0.1), []).in_flight == ()
