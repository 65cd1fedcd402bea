"""The measuring instrument, measured: a loopback server with scripted timing, through the whole program."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import linear_regression, median

import pytest
from quiet import Quietness
from scripted_runs import TOKENS, WORKLOAD, after_warm_up, bench, kinds, only
from scripted_server import Answer, Script
from true_times import TrueTimes, assert_found, from_arrival, from_plan

from orchestrator.bench import Workload, load_workload
from orchestrator.results import BenchResult, MarkKind, Point, Spread

pytestmark = pytest.mark.alone

FOLLOWED = 0.2  # how far from its script the server may be

Bench = Callable[..., BenchResult]


@pytest.fixture(autouse=True)
def first_on_a_core() -> Iterator[None]:
    """Where the system allows it (it allows root) client and server come before whatever else runs on this machine.

    What is measured is how exact the client is, not how long Linux lets it wait: on two cores with two other programs
    a bare sleep of 5 ms ends up to 19 ms late, in this class at most 2 ms. Threads and subprocesses inherit it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture
def quietness() -> Quietness:
    """How quiet the machine was while `timed_bench` measured."""
    return Quietness()


@pytest.fixture
def timed_bench(quietness: Quietness) -> Bench:
    """As `bench`; what was measured while the machine was not quiet is measured again, once."""

    def timed(script: Script, directory: Path, *, workload: Workload = WORKLOAD, **changes: object) -> BenchResult:
        with quietness.watched():
            result = bench(script, directory, workload=workload, **changes)
        if not quietness.quiet:
            with quietness.watched():
                result = bench(script, directory, workload=workload, **changes)
        return result

    return timed


def planned(script: Script, point: Point) -> TrueTimes:
    """What the server really did at the one point that was measured."""
    assert point.offered_rps is not None
    return from_plan(script.exchanges[-point.requests :], rate_rps=point.offered_rps)


def ttft(point: Point) -> Spread:
    assert point.latency is not None
    return point.latency.ttft_from_schedule_s


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_every_percentile_comes_back_within_two_per_cent(
    timed_bench: Bench, quietness: Quietness, tmp_path: Path, api: str
) -> None:
    """TTFT rises from 0.3 s to 0.88 s over 30 requests, then a token every 0.15 s."""
    script = Script(
        answer=after_warm_up(lambda index: Answer(ttft_s=0.3 + 0.02 * index, itl_s=0.15, cached_tokens=300))
    )
    point = only(timed_bench(script, tmp_path, api=api))
    assert (point.input_tokens, point.output_tokens) == (30 * 500, 30 * TOKENS)
    assert point.cache is not None
    assert point.cache.usage_share == point.cache.metrics_share == 0.6
    quietness.or_not_judged()
    assert point.latency is not None
    true = planned(script, point)
    assert median(true.ttft_s) == pytest.approx(0.59, rel=FOLLOWED)
    assert max(true.ttft_s) == pytest.approx(0.88, rel=FOLLOWED)
    assert median(true.itl_s) == pytest.approx(0.15, rel=FOLLOWED)
    assert_found(point.latency.ttft_from_schedule_s, true.ttft_s)
    assert_found(point.latency.e2e_from_schedule_s, true.e2e_s)
    assert_found(point.latency.tpot_s, true.tpot_s)
    assert_found(point.latency.itl_per_chunk_s, true.itl_s)
    assert point.sent_rps == pytest.approx(10.0, rel=0.02)


def test_a_stalled_server_shows_as_latency_and_not_as_a_lower_rate(
    timed_bench: Bench, quietness: Quietness, tmp_path: Path
) -> None:
    """It says nothing for a second; the requests that fell due in that time leave on time all the same."""
    begun = 0.0

    def answer(index: int) -> Answer:
        nonlocal begun
        begun = begun if index else time.monotonic()
        return Answer(ttft_s=max(0.0, begun + 1.0 - time.monotonic()), itl_s=0.0)

    script = Script(answer=after_warm_up(answer))
    point = only(timed_bench(script, tmp_path))
    quietness.or_not_judged()
    true = planned(script, point)
    assert point.sent_rps == pytest.approx(10.0, rel=0.02)
    assert max(true.ttft_s) == pytest.approx(1.0, rel=FOLLOWED)
    assert sorted(true.ttft_s)[-10:] == pytest.approx([0.1 * waited for waited in range(1, 11)], abs=0.05)
    assert_found(ttft(point), true.ttft_s)


def test_a_queue_shows_as_latency_from_the_plan_and_as_not_sustained(
    timed_bench: Bench, quietness: Quietness, tmp_path: Path
) -> None:
    """One request at a time, 0.15 s each, 10 rps offered: only 6.7 rps can be served."""
    script, workload = Script(one_at_a_time_s=0.15), WORKLOAD.model_copy(update={"requests": 50})
    point = only(timed_bench(script, tmp_path, workload=workload))
    assert point.sustained is False
    quietness.or_not_judged()
    true = planned(script, point)
    assert max(true.ttft_s) == pytest.approx(0.15 + 49 * 0.05, rel=FOLLOWED)
    assert_found(ttft(point), true.ttft_s)
    assert point.sent_rps == pytest.approx(10.0, rel=0.02)
    grown = linear_regression(true.begun_s[25:], true.ttft_s[25:]).slope
    assert grown == pytest.approx(0.5, rel=FOLLOWED)
    assert point.ttft_growth_s_per_s == pytest.approx(grown, rel=0.05)


def test_the_knee_lies_between_a_rate_that_holds_and_one_that_does_not(
    timed_bench: Bench, quietness: Quietness, tmp_path: Path
) -> None:
    workload = WORKLOAD.model_copy(update={"requests": 100, "rates_rps": (16.0, 32.0)})
    result = timed_bench(
        Script(one_at_a_time_s=0.04, answer=lambda _: Answer(cached_tokens=300)), tmp_path, workload=workload
    )
    assert result.points[1].sustained is False
    quietness.or_not_judged()
    assert result.points[0].sustained is True
    assert result.knee_rps == 16.0


def test_slow_accept_counts_as_latency(timed_bench: Bench, quietness: Quietness, tmp_path: Path) -> None:
    """The first request finds the warm-up's connection still open, the three others need one each."""
    script = Script(answer=lambda _: Answer(ttft_s=0.3), connect_delay_s=0.3)
    workload = WORKLOAD.model_copy(update={"requests": 4, "rates_rps": (20.0,)})
    point = only(timed_bench(script, tmp_path, workload=workload))
    quietness.or_not_judged()
    true = planned(script, point)
    assert true.ttft_s == pytest.approx([0.3, 0.6, 0.6, 0.6], rel=FOLLOWED)
    assert_found(ttft(point), true.ttft_s)


@pytest.mark.parametrize("usage_at_end_only", [False, True])
def test_several_tokens_in_a_chunk_and_chunks_in_halves(
    timed_bench: Bench, quietness: Quietness, tmp_path: Path, *, usage_at_end_only: bool
) -> None:
    slow = Answer(
        ttft_s=0.3, itl_s=0.4, tokens_per_chunk=3, split_s=0.1, usage_at_end_only=usage_at_end_only, cached_tokens=300
    )
    script = Script(answer=lambda _: slow)
    point = only(timed_bench(script, tmp_path))
    assert point.output_tokens == 30 * TOKENS
    assert point.latency is not None
    assert point.latency.tokens_per_chunk == 3.0
    quietness.or_not_judged()
    true = planned(script, point)
    assert median(true.ttft_s) == pytest.approx(0.4, rel=FOLLOWED)  # a chunk has come when its second half has
    assert median(true.itl_s) == pytest.approx(0.4, rel=FOLLOWED)
    assert median(true.tpot_s) == pytest.approx(0.4 / (TOKENS - 1), rel=FOLLOWED)
    assert_found(ttft(point), true.ttft_s)
    assert_found(point.latency.itl_per_chunk_s, true.itl_s)
    assert_found(point.latency.tpot_s, true.tpot_s)


def test_failures_are_counted_by_kind_and_delay_nobody(
    timed_bench: Bench, quietness: Quietness, tmp_path: Path
) -> None:
    bad = {
        3: Answer(status=503),
        7: Answer(ttft_s=0.1, reset_after_chunks=2),
        11: Answer(error_after_chunks=1),
        15: Answer(silent=True),
    }
    script = Script(answer=after_warm_up(lambda index: bad.get(index, Answer(ttft_s=0.3, cached_tokens=300))))
    result = timed_bench(script, tmp_path, workload=WORKLOAD.model_copy(update={"timeout_s": 3.0}))
    point = only(result)
    assert {failure.kind for failure in point.failures} == {"http-503", "reset", "stream-error", "timeout"}
    assert point.succeeded == 26
    assert kinds(result) == {MarkKind.FAILED_REQUESTS}
    quietness.or_not_judged()
    true = planned(script, point)
    assert max(true.ttft_s) == pytest.approx(0.3, rel=FOLLOWED)
    assert_found(ttft(point), true.ttft_s)
    assert point.sent_rps == pytest.approx(10.0, rel=0.02)


def test_one_request_at_a_time(timed_bench: Bench, quietness: Quietness, tmp_path: Path) -> None:
    """0.3 s to the first token and 0.1 s for each of five others: 6 tokens in 0.8 s."""
    workload = load_workload("single-stream-10k-1.5k").model_copy(
        update={"output_tokens": TOKENS, "requests": 4, "prompts": "random", "token_ids": (1000, 100000)}
    )
    script = Script(answer=lambda _: Answer(ttft_s=0.3, itl_s=0.1))
    result = timed_bench(script, tmp_path, workload=workload)
    point, true = only(result), from_arrival(script.exchanges[-4:])
    assert (point.label, point.concurrency, point.offered_rps, point.sustained) == ("closed-1", 1, None, None)
    assert not kinds(result)
    quietness.or_not_judged()
    assert median(true.ttft_s) == pytest.approx(0.3, rel=FOLLOWED)
    assert median(true.e2e_s) == pytest.approx(0.8, rel=FOLLOWED)
    assert_found(ttft(point), true.ttft_s)
    assert point.full_run is not None
    assert point.full_run.output_tok_per_s == pytest.approx(4 * TOKENS / sum(true.e2e_s), rel=0.02)
