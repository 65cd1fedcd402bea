"""The measuring instrument, measured: a loopback server with scripted timing, through the whole program."""

import base64
import itertools
import json
import os
import re
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression, median

import pytest
from command_line import CommandLine
from patience import PATIENCE
from quiet import Quietness
from scripted_server import Answer, Script, ScriptedServer, scripted
from true_times import TrueTimes, assert_found, from_arrival, from_plan

from orchestrator.bench import BenchRequest, UnwrittenError, Workload, load_workload, measure
from orchestrator.commands.runs import load_result
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.secret import Secret
from orchestrator.results import BenchEnding, BenchResult, FailureCount, MarkKind, Point, ServerProvenance, Spread

pytestmark = pytest.mark.alone

TOKENS = 6
WORKLOAD = load_workload("smoke-tiny").model_copy(
    update={"output_tokens": TOKENS, "requests": 30, "rates_rps": (10.0,), "prefixes": 2, "timeout_s": 5.0}
)
QUICK = WORKLOAD.model_copy(update={"rates_rps": (60.0,)})  # where no time is judged
IN_THE_SECOND_RATE = 2 * WORKLOAD.prefixes + WORKLOAD.requests + 10  # answers from the start of a run
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
    """As `bench`; what was measured while the machine was not quiet is measured again, twice at most."""

    def timed(script: Script, directory: Path, *, workload: Workload = WORKLOAD, **changes: object) -> BenchResult:
        with quietness.watched():
            result = bench(script, directory, workload=workload, **changes)
        for _ in range(2):
            if quietness.quiet:
                break
            with quietness.watched():
                result = bench(script, directory, workload=workload, **changes)
        return result

    return timed


def bench(script: Script, directory: Path, *, workload: Workload = QUICK, **changes: object) -> BenchResult:
    """Measure a scripted server. Its answers are counted from 0 after the warm-up, see `after_warm_up`."""
    script.forget()
    with scripted(script) as server:
        return measure(order(server, directory, workload=workload, **changes), lambda _text, _far: None)


def order(server: ScriptedServer, directory: Path, *, workload: Workload = QUICK, **changes: object) -> BenchRequest:
    plain = BenchRequest(
        url=server.url,
        api="completions",
        key=None,
        workload_name="scripted",
        workload=workload,
        overridden=(),
        command="deploy bench",
        provenance=ServerProvenance(gpus=8),
        kernel_gate=lambda: None,
        price=None,
        read_energy=None,
        directory=directory,
        text="",
        earlier=None,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def after_warm_up(answer: Callable[[int], Answer], workload: Workload = WORKLOAD) -> Callable[[int], Answer]:
    """Quick answers to the warm-up, then `answer(0)`, `answer(1)`, ..."""
    return lambda index: answer(index - workload.prefixes) if index >= workload.prefixes else Answer()


def only(result: BenchResult) -> Point:
    (point,) = result.points
    return point


def planned(script: Script, point: Point) -> TrueTimes:
    """What the server really did at the one point that was measured."""
    assert point.offered_rps is not None
    return from_plan(script.exchanges[-point.requests :], rate_rps=point.offered_rps)


def ttft(point: Point) -> Spread:
    assert point.latency is not None
    return point.latency.ttft_from_schedule_s


def kinds(result: BenchResult) -> set[MarkKind]:
    """Without the one that speaks of this machine and not of the endpoint."""
    return {mark.kind for mark in result.marks} - {MarkKind.CLIENT_LAGGED}


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


def test_an_endpoint_that_ignores_ignore_eos_is_refused_at_the_warm_up(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="answered with 4 tokens where 6 were asked"):
        bench(Script(answer=lambda _: Answer(stops_after_tokens=4)), tmp_path)


def test_an_answer_that_stops_early_is_a_failed_request(tmp_path: Path) -> None:
    answer = after_warm_up(lambda index: Answer(stops_after_tokens=4 if index == 9 else None, cached_tokens=300))
    result = bench(Script(answer=answer), tmp_path)
    assert kinds(result) == {MarkKind.FAILED_REQUESTS}
    failure = FailureCount(kind="wrong-length", count=1, example="500 in / 4 out where 500 / 6 were asked")
    assert only(result).failures == (failure,)


def test_a_context_too_short_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="context of 505 tokens, the workload needs 506"):
        bench(Script(context_length=505), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unreachable_endpoint(tmp_path: Path) -> None:
    with scripted(Script()) as server:
        gone = server
    with pytest.raises(BenchError, match="does not answer"):
        measure(order(gone, tmp_path), lambda _text, _far: None)


def test_every_replica_is_warmed_by_its_rank_and_the_load_is_not_pinned(tmp_path: Path) -> None:
    script = Script(replicas=2, answer=lambda _: Answer(cached_tokens=300))
    result = bench(script, tmp_path)
    assert sorted(rank for rank in script.pinned if rank is not None) == [0, 0, 1, 1]
    assert script.pinned[4:] == [None] * 30
    assert "each of 2 replicas" in result.run.warmup


def test_the_same_seed_sends_the_same_bytes(tmp_path: Path) -> None:
    first, second = Script(), Script()
    bench(first, tmp_path / "1")
    bench(second, tmp_path / "2")
    assert first.bodies == second.bodies
    assert len(set(first.bodies)) == 32


def test_a_server_that_dies_ends_the_run_with_what_was_measured_and_resume_goes_on(tmp_path: Path) -> None:
    workload = WORKLOAD.model_copy(update={"rates_rps": (40.0, 41.0, 42.0)})
    answered = itertools.count()

    def answer(_: int) -> Answer:
        if next(answered) == IN_THE_SECOND_RATE:
            dying.die_after = 0
        return Answer(cached_tokens=300)

    dying = Script(answer=answer)
    with scripted(dying) as server:
        result = measure(order(server, tmp_path, workload=workload), lambda _text, _far: None)
    assert result.ending is BenchEnding.ENDPOINT_DIED
    assert [point.ending for point in result.points] == [BenchEnding.COMPLETE, BenchEnding.ENDPOINT_DIED]
    assert result.points[1].requests < 30
    assert load_result(tmp_path) == result
    with scripted(Script(answer=lambda _: Answer(cached_tokens=300))) as server:
        again = order(server, tmp_path, workload=workload)
        earlier = replace(result, run=replace(result.run, endpoint=replace(result.run.endpoint, url=server.url)))
        whole = measure(replace(again, earlier=earlier), lambda _text, _far: None)
    assert [point.label for point in whole.points] == ["40", "41", "42"]
    assert whole.points[0] == result.points[0]
    assert whole.ending is BenchEnding.COMPLETE
    assert not kinds(whole)


def test_another_workload_is_not_resumed(tmp_path: Path) -> None:
    with scripted(Script()) as server:
        first = measure(order(server, tmp_path), lambda _text, _far: None)
        other = QUICK.model_copy(update={"seed": 1})
        with pytest.raises(UsageError, match="the workload is not the one"):
            measure(order(server, tmp_path, workload=other, earlier=first), lambda _text, _far: None)
        of_a_text = replace(first, run=replace(first.run, text_sha256="0" * 64))
        with pytest.raises(UsageError, match="the text is not the one"):
            measure(order(server, tmp_path, earlier=of_a_text), lambda _text, _far: None)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second write meets a full disk: the figures come back with the error."""
    writes: list[Path] = []

    def full(source: Path, target: Path) -> Path:
        writes.append(target)
        if len(writes) > 1:
            raise OSError(28, "No space left on device", str(target))
        return source.rename(target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UnwrittenError) as caught:
        bench(Script(), tmp_path)
    assert only(caught.value.result).succeeded == 30
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]  # the one from before, whole


def test_the_key_is_sent_and_written_nowhere(tmp_path: Path) -> None:
    bench(Script(), tmp_path, key=Secret("sk-hidden-value"))
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "sk-hidden-value" not in written
    assert "never-to-be-stored" not in written  # the server's own key, which /server_info shows in clear


def test_a_key_that_the_endpoint_repeats_is_written_nowhere(tmp_path: Path) -> None:
    key = "sk-wJ4/Tq8+Mv2=nobody7"
    encoded = base64.b64encode(f"user:{key}".encode()).decode()
    says = f"{'no route ' * 31}for Bearer {key}, Basic {encoded}, {key.encode().hex()}"
    bad = {1: Answer(status=500, says=says[200:]), 2: Answer(error_after_chunks=1, says=says), 3: Answer(says=says)}
    script = Script(answer=after_warm_up(lambda index: bad.get(index, Answer()), QUICK), model=f"model of {key}")
    result = bench(script, tmp_path, key=Secret(key))
    assert {failure.kind for failure in only(result).failures} == {"http-500", "stream-error"}
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "requests-60.jsonl"}
    for path in tmp_path.iterdir():
        written = path.read_text()
        assert "[REDACTED]" in written
        assert not any(told in written for told in (key[:9], encoded[10:18], key.encode().hex()[:16]))


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


def test_an_endpoint_behind_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days=1", "-subj=/CN=127.0.0.1"]
    made += ["-addext=subjectAltName=IP:127.0.0.1", f"-out={certificate}", f"-keyout={key}"]
    subprocess.run(made, check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with scripted(Script(answer=lambda _: Answer(cached_tokens=300)), tls=tls) as server:
        result = measure(order(server, tmp_path / "out"), lambda _text, _far: None)
    assert result.run.endpoint.url.startswith("https://")
    assert not kinds(result)


def test_a_closed_terminal_ends_nothing_that_runs_under_nohup(tmp_path: Path) -> None:
    workload, asked = tmp_path / "one-rate.yaml", threading.Event()
    workload.write_text(json.dumps({**WORKLOAD.to_dict(), "climb": None, "concurrency": None, "duration_s": None}))

    def answer(index: int) -> Answer:
        if index > WORKLOAD.prefixes:
            asked.set()
        return Answer(cached_tokens=300)

    with scripted(Script(answer=answer)) as server:
        words = ("bench", server.url, "--workload", str(workload), "--output", str(tmp_path / "out"))
        with CommandLine(Home(tmp_path / "home")).running(*words, ignores=("HUP",)) as bench:
            assert asked.wait(timeout=PATIENCE)
            code, said = bench.end(signal.SIGHUP)
    assert code == 0, said
    assert load_result(tmp_path / "out").ending is BenchEnding.COMPLETE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_and_reports_what_is_finished(tmp_path: Path, number: signal.Signals) -> None:
    """The server falls silent in the middle of the second rate: when the signal comes, that cannot be finished."""
    workload, kept_in = tmp_path / "two-rates.yaml", tmp_path / "out"
    rates = {"rates_rps": [20.0, 21.0], "climb": None, "concurrency": None, "duration_s": None, "timeout_s": 600.0}
    workload.write_text(json.dumps({**WORKLOAD.to_dict(), **rates}))
    answered, silence = itertools.count(), threading.Event()

    def answer(_: int) -> Answer:
        if next(answered) < IN_THE_SECOND_RATE:
            return Answer(cached_tokens=300)
        silence.set()
        return Answer(silent=True)

    with scripted(Script(answer=answer)) as server:
        words = ("bench", server.url, "--workload", str(workload), "--output", str(kept_in))
        with CommandLine(Home(tmp_path / "home")).running(*words) as bench:
            assert silence.wait(timeout=PATIENCE)
            bench.process.send_signal(number)
            out, err = bench.process.communicate(timeout=PATIENCE)
    assert bench.process.returncode == 130
    assert "Traceback" not in err
    assert "--resume" in err
    assert re.search(r"NOT COMPARABLE \(.*incomplete at 21", out)
    assert [point.ending for point in load_result(kept_in).points] == [BenchEnding.COMPLETE, BenchEnding.INTERRUPTED]
