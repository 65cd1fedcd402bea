"""Compare the benchmark client's metrics with a loopback server whose timing is scripted.

Most of the time is waiting, so two lanes of cases run in parallel; disturbed cases are measured again, alone.
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
from expected_latency import ExpectedLatency, assert_accurate, from_arrival, from_plan
from scheduling_delay import SchedulingDelay, preferred
from scripted_runs import TOKENS, WORKLOAD, after_warm_up, bench, kinds, only
from scripted_server import Answer, Exchange, Script
from waits import TIMEOUT

from orchestrator.bench.result import BenchResult, Distribution, IssueKind, Point
from orchestrator.bench.workload import Workload, load_workload

pytestmark = pytest.mark.slow

SCRIPT_TOLERANCE = 0.2  # of the scripted time


@dataclass(frozen=True, kw_only=True)
class Case:
    script: Script
    workload: Workload = WORKLOAD
    api: str = "completions"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A result, the exchanges of the server, and how busy the machine was."""

    result: BenchResult
    exchanges: Sequence[Exchange]
    delay: SchedulingDelay

    @property
    def only(self) -> Point:
        return only(self.result)

    @property
    def planned(self) -> ExpectedLatency:
        """Return the true times of the only point."""
        assert self.only.offered_rps is not None
        return from_plan(self.exchanges[-self.only.requests :], rate_rps=self.only.offered_rps)


Find = Callable[[str], Measured]  # by case name


def rising() -> Script:
    """Return a script whose TTFT rises from 0.3 s to 0.88 s over 30 requests, with a token every 0.15 s."""
    return Script(answer=after_warm_up(lambda index: Answer(ttft_s=0.3 + 0.02 * index, itl_s=0.15, cached_tokens=300)))


def stalled() -> Script:
    """Return a script of a server that does not respond in its first second."""
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
# Two lanes alternate, of equal length and with the longest cases first.
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
    delay = SchedulingDelay()
    with delay.measured():
        result = bench(case.script, directory, workload=case.workload, api=case.api)
    return Measured(result=result, exchanges=case.script.exchanges, delay=delay)


def measure_lane(directory: Path, names: Sequence[str]) -> None:
    """Measure these cases one after another in a subprocess and write each result into `directory`."""
    with preferred([os.getpid()]):
        for name in names:
            measurement = measure(CASES[name], directory / f"{name} result")
            (directory / name).write_bytes(pickle.dumps(measurement))


LANE = """
import sys
from pathlib import Path
import test_bench_instrument
test_bench_instrument.measure_lane(Path(sys.argv[1]), sys.argv[2:])
"""


def measure_in_lanes(directory: Path, *lanes: Sequence[str]) -> None:
    """Measure each lane in its own process, all lanes in parallel."""
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
    """Return a function that loads the measurement of a case."""
    directory, names = tmp_path_factory.mktemp("measured"), tuple(CASES)
    measure_in_lanes(directory, names[::2], names[1::2])

    def load(name: str) -> Measured:
        text = "".join(path.read_text() for path in directory.glob("*.log"))
        assert (directory / name).exists(), text
        saved = pickle.loads((directory / name).read_bytes())  # noqa: S301 - written above
        assert isinstance(saved, Measured)
        return saved

    if disturbed := [name for name in names if not load(name).delay.is_small]:
        measure_in_lanes(directory, disturbed)
    return load


def ttft(point: Point) -> Distribution:
    assert point.latency is not None
    return point.latency.ttft_from_schedule_s


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_every_percentile_is_accurate_within_two_percent(measured: Find, api: str) -> None:
    case = measured(f"rising, {api}")
    point = case.only
    assert (point.input_tokens, point.output_tokens) == (30 * 500, 30 * TOKENS)
    assert point.cache is not None
    assert point.cache.usage_share == point.cache.metrics_share == 0.6
    case.delay.skip_if_busy()
    assert point.latency is not None
    true = case.planned
    assert median(true.ttft_s) == pytest.approx(0.59, rel=SCRIPT_TOLERANCE)
    assert max(true.ttft_s) == pytest.approx(0.88, rel=SCRIPT_TOLERANCE)
    assert median(true.itl_s) == pytest.approx(0.15, rel=SCRIPT_TOLERANCE)
    assert_accurate(point.latency.ttft_from_schedule_s, true.ttft_s)
    assert_accurate(point.latency.e2e_from_schedule_s, true.e2e_s)
    assert_accurate(point.latency.tpot_s, true.tpot_s)
    assert_accurate(point.latency.itl_per_chunk_s, true.itl_s)
    assert point.send_lag_s is not None
    assert point.send_lag_s.p95 < 0.02


def test_server_stall_raises_latency_without_lowering_rate(measured: Find) -> None:
    """Requests that are due during the stall are still sent on time."""
    case = measured("stalled")
    point, true = case.only, case.planned
    case.delay.skip_if_busy()
    assert point.send_lag_s is not None
    assert point.send_lag_s.p95 < 0.02
    assert max(true.ttft_s) == pytest.approx(1.0, rel=SCRIPT_TOLERANCE)
    assert sorted(true.ttft_s)[-10:] == pytest.approx([0.1 * waited for waited in range(1, 11)], abs=0.05)
    assert_accurate(ttft(point), true.ttft_s)


def test_queueing_raises_scheduled_latency_and_rate_is_not_sustained(measured: Find) -> None:
    """The server needs 0.15 s for each request, one at a time: it can serve 6.7 of the 10 rps offered."""
    case = measured("queue")
    point, true = case.only, case.planned
    assert point.sustained is False
    case.delay.skip_if_busy()
    assert max(true.ttft_s) == pytest.approx(0.15 + 49 * 0.05, rel=SCRIPT_TOLERANCE)
    assert_accurate(ttft(point), true.ttft_s)
    assert point.send_lag_s is not None
    assert point.send_lag_s.p95 < 0.02
    grown = linear_regression(true.begun_s[25:], true.ttft_s[25:]).slope
    assert grown == pytest.approx(0.5, rel=SCRIPT_TOLERANCE)
    assert point.ttft_growth_s_per_s == pytest.approx(grown, rel=0.05)


def test_knee_is_highest_sustained_rate(measured: Find) -> None:
    case = measured("knee")
    assert case.result.points[1].sustained is False
    case.delay.skip_if_busy()
    assert case.result.points[0].sustained is True
    assert case.result.knee_rps == 16.0


def test_slow_accept_counts_as_latency(measured: Find) -> None:
    """The first request reuses the warm-up's connection; the other three each open a new one."""
    case = measured("slow accept")
    true = case.planned
    case.delay.skip_if_busy()
    assert true.ttft_s == pytest.approx([0.3, 0.6, 0.6, 0.6], rel=SCRIPT_TOLERANCE)
    assert_accurate(ttft(case.only), true.ttft_s)


@pytest.mark.parametrize("name", ["in halves", "in halves, usage at the end"])
def test_split_chunks_with_multiple_tokens_are_measured_correctly(measured: Find, name: str) -> None:
    case = measured(name)
    point, true = case.only, case.planned
    assert point.output_tokens == 30 * TOKENS
    assert point.latency is not None
    case.delay.skip_if_busy()
    assert median(true.ttft_s) == pytest.approx(0.4, rel=SCRIPT_TOLERANCE)  # a chunk ends with its second half
    assert median(true.itl_s) == pytest.approx(0.4, rel=SCRIPT_TOLERANCE)
    assert median(true.tpot_s) == pytest.approx(0.4 / (TOKENS - 1), rel=SCRIPT_TOLERANCE)
    assert_accurate(ttft(point), true.ttft_s)
    assert_accurate(point.latency.itl_per_chunk_s, true.itl_s)
    assert_accurate(point.latency.tpot_s, true.tpot_s)


def test_failures_are_counted_by_kind_without_delaying_others(measured: Find) -> None:
    case = measured("failing")
    point, true = case.only, case.planned
    assert {failure.kind for failure in point.failures} == {"http-503", "reset", "stream-error", "timeout"}
    assert point.succeeded == 26
    assert kinds(case.result) == {IssueKind.FAILED_REQUESTS}
    case.delay.skip_if_busy()
    assert max(true.ttft_s) == pytest.approx(0.3, rel=SCRIPT_TOLERANCE)
    assert_accurate(ttft(point), true.ttft_s)
    assert point.send_lag_s is not None
    assert point.send_lag_s.p95 < 0.02


def test_closed_loop_with_single_request_is_measured_correctly(measured: Find) -> None:
    """A request takes 0.3 s to the first token and 0.1 s for each of five others: 6 tokens in 0.8 s."""
    case = measured("one at a time")
    point, true = case.only, from_arrival(case.exchanges[-4:])
    assert (point.label, point.concurrency, point.offered_rps, point.sustained) == ("closed-1", 1, None, None)
    assert not kinds(case.result)
    case.delay.skip_if_busy()
    assert median(true.ttft_s) == pytest.approx(0.3, rel=SCRIPT_TOLERANCE)
    assert median(true.e2e_s) == pytest.approx(0.8, rel=SCRIPT_TOLERANCE)
    assert_accurate(ttft(point), true.ttft_s)
    assert point.full_run is not None
    assert point.full_run.output_tok_per_s == pytest.approx(4 * TOKENS / sum(true.e2e_s), rel=0.02)
