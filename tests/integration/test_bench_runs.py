"""Test results, errors and failure counts of measurements of a scripted server, without judging times."""

import base64
import gc
import itertools
import json
import re
import signal
import ssl
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine
from scripted_runs import QUICK, WORKLOAD, after_warm_up, bench, kinds, only, order
from scripted_server import Answer, Script, scripted
from waits import TIMEOUT

from orchestrator.bench.benchmark import measure
from orchestrator.bench.result import RESULT_FILE, BenchResult, EndReason, FailureCount, IssueKind
from orchestrator.bench.result_files import load_result
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret

SECOND_RATE = 2 * WORKLOAD.num_prefixes + WORKLOAD.requests + 10  # index of a request in the second rate


def test_endpoint_ignoring_ignore_eos_is_rejected_at_warmup(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="returned 4 tokens; 6 were requested"):
        bench(Script(answer=lambda _: Answer(stops_after_tokens=4)), tmp_path)


def test_short_response_counts_as_failed_request(tmp_path: Path) -> None:
    answer = after_warm_up(lambda index: Answer(stops_after_tokens=4 if index == 9 else None, cached_tokens=300))
    result = bench(Script(answer=answer), tmp_path)
    assert kinds(result) == {IssueKind.FAILED_REQUESTS}
    failure = FailureCount(kind="wrong-length", count=1, example="500 in / 4 out tokens; requested 500 in / 6 out")
    assert only(result).failures == (failure,)


def test_short_context_is_rejected_before_sending_requests(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="context of 505 tokens; the workload needs 506"):
        bench(Script(context_length=505), tmp_path)
    assert not list(tmp_path.iterdir())


def test_unreachable_endpoint_is_an_error(tmp_path: Path) -> None:
    with scripted(Script()) as server:
        stopped = server
    with pytest.raises(BenchError, match="cannot reach the endpoint"):
        measure(order(stopped, tmp_path), lambda _text, _transient: None)


def test_garbage_collection_is_disabled_during_measurement(tmp_path: Path) -> None:
    """A full collection takes tens of milliseconds, which would count as latency."""
    gc_enabled: list[bool] = []

    def answer(_: int) -> Answer:
        gc_enabled.append(gc.isenabled())
        return Answer()

    bench(Script(answer=answer), tmp_path, workload=QUICK.model_copy(update={"requests": 4}))
    assert gc_enabled == [True, *[False] * (WORKLOAD.num_prefixes + 4)]  # the first request checks for token ids
    assert gc.isenabled()


def test_warmup_targets_every_rank_but_load_is_unpinned(tmp_path: Path) -> None:
    script = Script(replicas=2, answer=lambda _: Answer(cached_tokens=300))
    result = bench(script, tmp_path)
    assert sorted(rank for rank in script.pinned if rank is not None) == [0, 0, 1, 1]
    assert script.pinned[5:] == [None] * 30  # after the check for token ids and the warm-up
    assert "each of 2 DP ranks" in result.run.warmup


def test_vllm_warmup_targets_every_rank_by_header(tmp_path: Path) -> None:
    script = Script(other_engine=True, replicas=2)
    result = bench(script, tmp_path, engine="vllm")
    assert sorted(rank for rank in script.pinned if rank is not None) == [0, 0, 1, 1]
    assert script.pinned[5:] == [None] * 30  # after the check for token ids and the warm-up
    assert "each of 2 DP ranks (X-data-parallel-rank)" in result.run.warmup
    assert b"routed_dp_rank" not in b"".join(script.bodies)


def test_generate_api_is_rejected_for_vllm(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="vllm has no `/generate`"):
        bench(Script(other_engine=True), tmp_path, engine="vllm", api="generate")


def test_url_ending_in_v1_gets_a_hint(tmp_path: Path) -> None:
    with scripted(Script(other_engine=True)) as server, pytest.raises(BenchError) as raised:
        measure(order(server, tmp_path, url=f"{server.url}/v1"), lambda _text, _transient: None)
    assert raised.value.hint == f"omit `/v1` at the end: `{server.url}`"


def test_same_seed_sends_identical_requests(tmp_path: Path) -> None:
    first, second = Script(), Script()
    bench(first, tmp_path / "1")
    bench(second, tmp_path / "2")
    assert first.bodies == second.bodies
    assert len(set(first.bodies)) == 33  # with the warm-up and the check for token ids


def test_unflushable_cache_gets_different_prompts_in_each_run(tmp_path: Path) -> None:
    first, second = Script(other_engine=True), Script(other_engine=True)
    result = bench(first, tmp_path / "1")
    bench(second, tmp_path / "2")
    assert "caches cannot be flushed: prompts varied by " in result.run.warmup
    assert result.run.endpoint.engine == "unknown"
    assert len(first.bodies) == len(second.bodies) == 33
    assert {*first.bodies} & {*second.bodies} == {first.bodies[0]}  # the check for token ids


def test_dead_server_ends_run_that_can_be_resumed(tmp_path: Path) -> None:
    workload = WORKLOAD.model_copy(update={"request_rates": (40.0, 41.0, 42.0)})
    answered = itertools.count()

    def answer(_: int) -> Answer:
        if next(answered) == SECOND_RATE:
            dying.die_after = 0
        return Answer(cached_tokens=300)

    dying = Script(answer=answer)
    with scripted(dying) as server:
        result = measure(order(server, tmp_path, workload=workload), lambda _text, _transient: None)
    assert result.end_reason is EndReason.ENDPOINT_DIED
    assert [point.end_reason for point in result.points] == [EndReason.COMPLETE, EndReason.ENDPOINT_DIED]
    assert result.points[1].requests < 30
    assert load_result(tmp_path) == result
    with scripted(Script(answer=lambda _: Answer(cached_tokens=300))) as server:
        again = order(server, tmp_path, workload=workload)
        earlier = replace(result, run=replace(result.run, endpoint=replace(result.run.endpoint, url=server.url)))
        resumed = measure(replace(again, previous=earlier), lambda _text, _transient: None)
    assert [point.label for point in resumed.points] == ["40", "41", "42"]
    assert resumed.points[0] == result.points[0]
    assert resumed.end_reason is EndReason.COMPLETE
    assert not kinds(resumed)


def test_resume_with_different_workload_is_rejected(tmp_path: Path) -> None:
    with scripted(Script()) as server:
        first = measure(order(server, tmp_path), lambda _text, _transient: None)
        other = QUICK.model_copy(update={"seed": 1})
        with pytest.raises(UsageError, match="the workload differs from the previous run"):
            measure(order(server, tmp_path, workload=other, previous=first), lambda _text, _transient: None)
        with_text = replace(first, run=replace(first.run, text_sha256="0" * 64))
        with pytest.raises(UsageError, match="the text differs from the previous run"):
            measure(order(server, tmp_path, previous=with_text), lambda _text, _transient: None)


def test_full_disk_is_an_error_and_keeps_earlier_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[Path] = []

    def full(source: Path, target: Path) -> Path:
        writes.append(target)
        if len(writes) > 1:
            raise OSError(28, "No space left on device", str(target))
        return source.rename(target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left on device"):
        bench(Script(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]  # the earlier result is intact


def test_api_key_is_not_written_to_result_files(tmp_path: Path) -> None:
    bench(Script(), tmp_path, key=Secret("sk-hidden-value"))
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "sk-hidden-value" not in written
    assert "never-to-be-stored" not in written  # /server_info returns the server's own key in plain text


def test_api_key_echoed_by_endpoint_is_redacted(tmp_path: Path) -> None:
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
        assert not any(part in written for part in (key[:9], encoded[10:18], key.encode().hex()[:16]))


def test_https_endpoint_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days=1", "-subj=/CN=127.0.0.1"]
    argv += ["-addext=subjectAltName=IP:127.0.0.1", f"-out={certificate}", f"-keyout={key}"]
    subprocess.run(argv, check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with scripted(Script(answer=lambda _: Answer(cached_tokens=300)), tls=tls) as server:
        result = measure(order(server, tmp_path / "out"), lambda _text, _transient: None)
    assert result.run.endpoint.url.startswith("https://")
    assert not kinds(result)


def test_benchmark_under_nohup_survives_sighup(tmp_path: Path) -> None:
    workload, request_received = tmp_path / "one-rate.yaml", threading.Event()
    workload.write_text(json.dumps({**WORKLOAD.to_dict(), "ramp": None, "concurrency": None, "duration_s": None}))

    def answer(index: int) -> Answer:
        if index > WORKLOAD.num_prefixes:
            request_received.set()
        return Answer(cached_tokens=300)

    with scripted(Script(answer=answer)) as server:
        words = ("bench", server.url, "--workload", str(workload), "--output", str(tmp_path / "out"))
        with CommandLine(Home(tmp_path / "home")).running(*words, ignores=[signal.SIGHUP]) as bench:
            assert request_received.wait(timeout=TIMEOUT)
            code, output = bench.end(signal.SIGHUP)
    assert code == 0, output
    assert load_result(tmp_path / "out").end_reason is EndReason.COMPLETE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_keeps_and_reports_finished_points(tmp_path: Path, number: signal.Signals) -> None:
    """The server stops responding during the second rate, so that the signal always interrupts that rate."""
    workload, saved_in = tmp_path / "two-rates.yaml", tmp_path / "out"
    rates = {"request_rates": [20.0, 21.0], "ramp": None, "concurrency": None, "duration_s": None, "timeout_s": 600.0}
    workload.write_text(json.dumps({**WORKLOAD.to_dict(), **rates}))
    answered, stalled = itertools.count(), threading.Event()

    def answer(_: int) -> Answer:
        if next(answered) < SECOND_RATE:
            return Answer(cached_tokens=300)
        stalled.set()
        return Answer(silent=True)

    with scripted(Script(answer=answer)) as server:
        words = ("bench", server.url, "--workload", str(workload), "--output", str(saved_in))
        with CommandLine(Home(tmp_path / "home")).running(*words) as bench:
            assert stalled.wait(timeout=TIMEOUT)
            bench.send(number)
            code, out, err = bench.wait()
    assert code == 130
    assert "Traceback" not in err
    assert "--resume" in err
    assert re.search(r"NOT COMPARABLE \(.*incomplete at 21", out)
    assert [point.end_reason for point in load_result(saved_in).points] == [EndReason.COMPLETE, EndReason.INTERRUPTED]


@pytest.mark.parametrize("tokens", [10**13, 10**15, 10**18])
def test_result_with_huge_counters_can_be_read(tokens: int, tmp_path: Path) -> None:
    script = Script()

    def answer(_: int) -> Answer:
        script.prompt_tokens += tokens
        script.output_tokens += tokens
        return Answer(cached_tokens=300)

    script.answer = answer
    result = bench(script, tmp_path)
    assert only(result).succeeded == WORKLOAD.requests
    assert BenchResult.from_json((tmp_path / RESULT_FILE).read_text(), location="") == result


@pytest.mark.parametrize("tokens", [10**13, 10**15])
def test_responses_claiming_huge_token_counts_are_failures(tokens: int, tmp_path: Path) -> None:
    result = bench(Script(answer=after_warm_up(lambda _: Answer(claims=tokens))), tmp_path)
    assert (only(result).succeeded, kinds(result)) == (0, {IssueKind.FAILED_REQUESTS})
    assert BenchResult.from_json((tmp_path / RESULT_FILE).read_text(), location="") == result
