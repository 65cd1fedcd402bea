"""The measuring instrument, measured: a loopback server with scripted timing, through the whole program.

Most of a measurement is waiting, so two are made at a time, in a lane each; what was disturbed is made once more, by
itself. Each is looked at by a test of its own.
"""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median

import pytest
from quiet import Quietness, preferred
from scripted_runs import TOKENS, WORKLOAD, after_warm_up, bench, kinds, only
from scripted_server import Answer, Exchange, Script
from true_times import TrueTimes, assert_accurate, from_arrival, from_plan
from waits import TIMEOUT

from orchestrator.bench.result import BenchResult, Distribution, IssueKind, Point
from orchestrator.bench.workload import Workload, load_workload

pytestmark = pytest.mark.slow

FOLLOWED = 0.2  # how far from its script the server may be


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured, how."""

    script: Script
    workload: Workload = WORKLOAD
    api: str = "completions"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was found, what the server really did, and how quiet the machine was meanwhile."""

    result: BenchResult
    exchanges: Sequence[Exchange]
    quietness: Quietness

    @property
    def only(self) -> Point:
        return only(self.result)

    @property
    def planned(self) -> TrueTimes:
        """What the server really did at the one point that was measured."""
        assert self.only.offered_rps is not None
        return from_plan(self.exchanges[-self.only.requests :], rate_rps=self.only.offered_rps)


Find = Callable[[str], Measured]  # by the name of the case


def rising() -> Script:
    """TTFT rises from 0.3 s to 0.88 s over 30 requests, then a token every 0.15 s."""
    return Script(answer=after_warm_up(lambda index: Answer(ttft_s=0.3 + 0.02 * index, itl_s=0.15, cached_tokens=300)))


def stalled() -> Script:
    """It says nothing for a second."""
    begun = 0.0

    def answer(index: int) -> Answer:
        nonlocal begun
        begun = begun if index else time.monotonic()
        return Answer(ttft_s=max(0.0, begun + 1.0 - time.monotonic()), itl_s=0.0)

    return Script(answer=after_warm_up(answer))


def in_halves(*, usage_at_end_only: bool) -> Script:
    slow = Answer(
        ttft_s=0.3, itl_s=0.4, tokens_per_chunk=3, split_s=0.1, usage_at_end_only=usage_at_end_only, cached_tokens=300
    )
    return Script(answer=lambda _: slow)


def failing() -> Script:
    bad = {
        3: Answer(status=503),
        7: Answer(ttft_s=0.1, reset_after_chunks=2),
        11: Answer(error_after_chunks=1),
        15: Answer(silent=True),
    }
    return Script(answer=after_warm_up(lambda index: bad.get(index, Answer(ttft_s=0.3, cached_tokens=300))))


def changed(**changes: object) -> Workload:
    return WORKLOAD.model_copy(update=changes)


ONE_AT_A_TIME = load_workload("single-stream-10k-1.5k").model_copy(
    update={"output_tokens": TOKENS, "requests": 4, "prompts": "random", "token_ids": (1000, 100000)}
)
# In two lanes of the same length, each its longest first.
CASES: Mapping[str, Case] = {
    "knee": Case(
        script=Script(one_at_a_time_s=0.04, answer=lambda _: Answer(cached_tokens=300)),
        workload=changed(requests=100, request_rates=(16.0, 32.0)),
    ),
    "queue": Case(script=Script(one_at_a_time_s=0.15), workload=changed(requests=50)),
    "in halves, usage at the end": Case(script=in_halves(usage_at_end_only=True)),
    "in halves": Case(script=in_halves(usage_at_end_only=False)),
    "rising, completions": Case(script=rising()),
    "rising, generate": Case(script=rising(), api="generate"),
    "one at a time": Case(script=Script(answer=lambda _: Answer(ttft_s=0.3, itl_s=0.1)), workload=ONE_AT_A_TIME),
    "failing": Case(script=failing(), workload=changed(timeout_s=3.0)),
    "slow accept": Case(
        script=Script(answer=lambda _: Answer(ttft_s=0.3), connect_delay_s=0.3),
        workload=changed(requests=4, request_rates=(20.0,)),
    ),
    "stalled": Case(script=stalled()),
}


def measure(case: Case, directory: Path) -> Measured:
    quietness = Quietness()
    with quietness.watched():
        result = bench(case.script, directory, workload=case.workload, api=case.api)
    return Measured(result=result, exchanges=case.script.exchanges, quietness=quietness)


def measure_lane(directory: Path, names: Sequence[str]) -> None:
    """Measure these cases one after the other, each into a file of `directory`: what a process of its own does."""
    with preferred([os.getpid()]):
        for name in names:
            found = measure(CASES[name], directory / f"{name} result")
            (directory / name).write_bytes(pickle.dumps(found))


LANE = """
import sys
from pathlib import Path
import test_bench_instrument
test_bench_instrument.measure_lane(Path(sys.argv[1]), sys.argv[2:])
"""


def measure_in_lanes(directory: Path, *lanes: Sequence[str]) -> None:
    """Measure the cases of each lane beside those of the others."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as stack:
        running = []
        for number, names in enumerate(lanes):
            argv = [sys.executable, "-c", LANE, str(directory), *names]
            log = stack.enter_context((directory / f"{number}.log").open("ab"))
            lane = stack.enter_context(subprocess.Popen(argv, env=environment, stdout=log, stderr=log))
            stack.callback(lane.kill)
            running.append(lane)
        for lane in running:
            lane.wait(TIMEOUT)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Find:
    """What was measured, by the name of the case."""
    directory, names = tmp_path_factory.mktemp("measured"), tuple(CASES)
    measure_in_lanes(directory, names[::2], names[1::2])

    def found(name: str) -> Measured:
        text = "".join(path.read_text() for path in directory.glob("*.log"))
        assert (directory / name).exists(), text
        saved = pickle.loads((directory / name).read_bytes())  # noqa: S301 - written above
        assert isinstance(saved, Measured)
        return saved

    if disturbed := [name for name in names if not found(name).quietness.quiet]:  # by each other, or from elsewhere
        measure_in_lanes(directory, disturbed)
    return found


def ttft(point: Point) -> Distribution:
    assert point.latency is not None
    return point.latency.ttft_from_schedule_s


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_every_percentile_is_accurate_within_two_percent(measured: Find, api: str) -> None:
    found = measured(f"rising, {api}")
    point = found.only
    assert (point.input_tokens, point.output_tokens) == (30 * 500, 30 * TOKENS)
    assert point.cache is not None
    assert point.cache.usage_share == point.cache.metrics_share == 0.6
    found.quietness.or_not_judged()
    assert point.latency is not None
    true = found.planned
    assert median(true.ttft_s) == pytest.approx(0.59, rel=FOLLOWED)
    assert max(true.ttft_s) == pytest.approx(0.88, rel=FOLLOWED)
    assert median(true.itl_s) == pytest.approx(0.15, rel=FOLLOWED)
    assert_accurate(point.latency.ttft_from_schedule_s, true.ttft_s)
    assert_accurate(point.latency.e2e_from_schedule_s, true.e2e_s)
    assert_accurate(point.latency.tpot_s, true.tpot_s)
    assert_accurate(point.latency.itl_per_chunk_s, true.itl_s)
    assert point.send_lag_s is not None
    assert point.send_lag_s.p95 < 0.02


def test_server_stall_raises_latency_not_lowers_rate(measured: Find) -> None:
    """The requests that fell due while it said nothing leave on time all the same."""
    found = measured("stalled")
    point, true = found.only, found.planned
    found.quietness.or_not_judged()
    assert point.send_lag_s is not None
    assert point.send_lag_s.p95 < 0.02
    assert max(true.ttft_s) == pytest.approx(1.0, rel=FOLLOWED)
    assert sorted(true.ttft_s)[-10:] == pytest.approx([0.1 * waited for waited in range(1, 11)], abs=0.05)
    assert_accurate(ttft(point), true.ttft_s)


def test_queueing_raises_scheduled_latency_and_is_not_sustained(measured: Find) -> None:
    """One request at a time, 0.15 s each, 10 rps offered: only 6.7 rps can be served."""
    found = measured("queue")
    point, true = found.only, found.planned
    assert point.sustained is False
    found.quietness.or_not_judged()
    assert max(true.ttft_s) == pytest.approx(0.15 + 49 * 0.05, rel=FOLLOWED)
    assert_accurate(ttft(point), true.ttft_s)
    assert point.send_lag_s is not None
    assert point.send_lag_s.p95 < 0.02
    grown = linear_regression(true.begun_s[25:], true.ttft_s[25:]).slope
    assert grown == pytest.approx(0.5, rel=FOLLOWED)
    assert point.ttft_growth_s_per_s == pytest.approx(grown, rel=0.05)


def test_knee_is_highest_sustained_rate(measured: Find) -> None:
    found = measured("knee")
    assert found.result.points[1].sustained is False
    found.quietness.or_not_judged()
    assert found.result.points[0].sustained is True
    assert found.result.knee_rps == 16.0


def test_slow_accept_counts_as_latency(measured: Find) -> None:
    """The first request finds the warm-up's connection still open, the three others need one each."""
    found = measured("slow accept")
    true = found.planned
    found.quietness.or_not_judged()
    assert true.ttft_s == pytest.approx([0.3, 0.6, 0.6, 0.6], rel=FOLLOWED)
    assert_accurate(ttft(found.only), true.ttft_s)


@pytest.mark.parametrize("case", ["in halves", "in halves, usage at the end"])
def test_split_chunks_with_multiple_tokens_are_measured_correctly(measured: Find, case: str) -> None:
    found = measured(case)
    point, true = found.only, found.planned
    assert point.output_tokens == 30 * TOKENS
    assert point.latency is not None
    found.quietness.or_not_judged()
    assert median(true.ttft_s) == pytest.approx(0.4, rel=FOLLOWED)  # a chunk has come when its second half has
    assert median(true.itl_s) == pytest.approx(0.4, rel=FOLLOWED)
    assert median(true.tpot_s) == pytest.approx(0.4 / (TOKENS - 1), rel=FOLLOWED)
    assert_accurate(ttft(point), true.ttft_s)
    assert_accurate(point.latency.itl_per_chunk_s, true.itl_s)
    assert_accurate(point.latency.tpot_s, true.tpot_s)


def test_failures_are_counted_by_kind_without_delaying_others(measured: Find) -> None:
    found = measured("failing")
    point, true = found.only, found.planned
    assert {failure.kind for failure in point.failures} == {"http-503", "reset", "stream-error", "timeout"}
    assert point.succeeded == 26
    assert kinds(found.result) == {IssueKind.FAILED_REQUESTS}
    found.quietness.or_not_judged()
    assert max(true.ttft_s) == pytest.approx(0.3, rel=FOLLOWED)
    assert_accurate(ttft(point), true.ttft_s)
    assert point.send_lag_s is not None
    assert point.send_lag_s.p95 < 0.02


def test_closed_loop_with_single_request_is_measured_correctly(measured: Find) -> None:
    """0.3 s to the first token and 0.1 s for each of five others: 6 tokens in 0.8 s."""
    found = measured("one at a time")
    point, true = found.only, from_arrival(found.exchanges[-4:])
    assert (point.label, point.concurrency, point.offered_rps, point.sustained) == ("closed-1", 1, None, None)
    assert not kinds(found.result)
    found.quietness.or_not_judged()
    assert median(true.ttft_s) == pytest.approx(0.3, rel=FOLLOWED)
    assert median(true.e2e_s) == pytest.approx(0.8, rel=FOLLOWED)
    assert_accurate(ttft(point), true.ttft_s)
    assert point.full_run is not None
    assert point.full_run.output_tok_per_s == pytest.approx(4 * TOKENS / sum(true.e2e_s), rel=0.02)
