"""Every smoke check fails if, and only if, the server has the defect that it detects."""

import dataclasses
import io
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from engine_api import EngineApi, over_httpx
from smoke_target import TARGET, engine
from waits import TIMEOUT

from orchestrator.core.console import Progress
from orchestrator.core.errors import SmokeError
from orchestrator.core.origin import Origin
from orchestrator.core.secrets import Secret
from orchestrator.engine.client import EngineClient
from orchestrator.plan.plan import PlanWarning, SmokeQuestion
from orchestrator.planner.planning import load
from orchestrator.verify import memory, smoke, soak, tier_checks
from orchestrator.verify.client import SmokeClient
from orchestrator.verify.gateway import _stream_agrees
from orchestrator.verify.memory import MemoryGauge
from orchestrator.verify.report import CheckOutcome, CheckResult, SmokeReport, Verdict
from orchestrator.verify.target import Target, target_of

QUESTIONS = (("What is 17 times 3?", "51"), ("{filler} Which city?", "Paris"), ("{filler} Which word?", "kestrel"))
ANSWERS = {question.removeprefix("{filler}"): answer for question, answer in QUESTIONS}
CAUSE = PlanWarning(id="gemm", summary="a GEMM reckons wrongly", source="sglang #28685", hint="take another engine")
WITH_QUESTIONS = dataclasses.replace(
    TARGET,
    questions=tuple(
        SmokeQuestion(
            prompt=question, expected=answer, filler_words=words, max_tokens=8, origin=Origin.INFERRED, source=""
        )
        for (question, answer), words in zip(QUESTIONS, (0, 64, 300), strict=True)
    ),
    prefill_chunk=256,
    wrong_answers=(CAUSE,),
)
LONG_CONTEXT = dataclasses.replace(TARGET, context_length=65536, on_gpu=True)
EVERYTHING = dataclasses.replace(
    WITH_QUESTIONS,
    dp=2,
    speculative=True,
    api_key=Secret("sk-0123456789"),
    context_length=65536,
    on_gpu=True,
    soak_seconds=0.3,
    accept_length=3.6,
    tool_parser="glm47",
    tiers=("host", "storage"),
)


def run(server: EngineApi, target: Target = TARGET, *, faults: Sequence[str] | None = ()) -> SmokeReport:
    return smoke.smoke_test(
        target,
        faults=None if faults is None else lambda: faults,
        seed=1,
        progress=Progress(io.StringIO()),
        transport=over_httpx(server),
    )


def verdicts(report: SmokeReport) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in report.checks}


def failures(report: SmokeReport) -> dict[str, str]:
    return {check.name: check.evidence for check in report.failures}


def test_correct_server_passes_every_check() -> None:
    server = engine(
        dp=2,
        key="sk-0123456789",
        accept_length=3.3,
        known_answers=ANSWERS,
        context=65536,
        max_recall_words=6000,
        calls="parsed",
        saved_tiers=("host", "storage"),
    )
    report = run(server, EVERYTHING)
    assert {name for name, verdict in verdicts(report).items() if verdict is not Verdict.PASSED} == {
        "reasoning separated"
    }, report.to_table()
    assert len(report.checks) == 21


def test_request_without_key_is_rejected_before_its_body() -> None:
    """Otherwise sglang resets the connection, which ends `kubectl port-forward`."""
    bodies, server = [], over_httpx(engine(key="sk-0123456789"))

    def record(request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and "Authorization" not in request.headers:
            bodies.append(request.read())
        return server.handle_request(request)

    target = dataclasses.replace(TARGET, api_key=Secret("sk-0123456789"))
    report = smoke.smoke_test(target, faults=None, seed=1, transport=httpx.MockTransport(record))
    assert verdicts(report)["API key required"] is Verdict.PASSED
    assert bodies == [b""]


def test_503_during_kernel_compilation_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prefill server once compiled for 112 s on an H200, while the gateway rejected every request."""
    now, rejections, server = [0.0], iter(range(3)), over_httpx(engine())

    def gateway(request: httpx.Request) -> httpx.Response:
        if not now[0]:
            now[0] = 92.0  # the duration of the first request
        elif next(rejections, None) is not None:
            return httpx.Response(503, json={"error": {"code": "no_available_workers"}})
        return server.handle_request(request)

    monkeypatch.setattr(smoke, "poll_until", partial(smoke.poll_until, sleep=lambda _: None))
    monkeypatch.setattr(smoke, "time", SimpleNamespace(monotonic=lambda: now[0]))
    target = dataclasses.replace(TARGET, on_gpu=True, engine_url=TARGET.url)
    report = smoke.smoke_test(
        target,
        faults=lambda: (),
        seed=1,
        progress=Progress(io.StringIO()),
        transport=httpx.MockTransport(gateway),
    )
    assert not failures(report), report.to_table()
    assert report.first_sample_seconds == 92.0
    assert sum(check.seconds for check in report.checks) == 0  # no check waited for the compiler


@pytest.mark.parametrize(("drops", "passes"), [(1, True), (2, True), (3, False)])
def test_dropped_connections_of_a_gateway_are_retried(
    drops: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining, server = iter(range(drops)), over_httpx(engine())

    def gateway(request: httpx.Request) -> httpx.Response:
        if next(remaining, None) is not None:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return server.handle_request(request)

    monkeypatch.setattr(smoke, "poll_until", partial(smoke.poll_until, sleep=lambda _: None))
    report = smoke.smoke_test(
        dataclasses.replace(TARGET, on_gpu=True, engine_url=TARGET.url),
        faults=lambda: (),
        seed=1,
        progress=Progress(io.StringIO()),
        transport=httpx.MockTransport(gateway),
    )
    assert report.ok is passes, report.to_table()


def sampled_by(ask: Callable[[int], None]) -> tuple[SmokeReport, list[str]]:
    """Check a server of two ranks on a GPU; `ask` is called before a rank answers its first sampled request."""
    server, calls = over_httpx(engine(dp=2)), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        if b'"top_p"' in request.content and b'"top_k"' in request.content:
            rank = json.loads(request.content)["routed_dp_rank"]
            ask(rank)
            calls.append(f"sampled {rank}")
        else:
            calls.append(request.url.path)
        return server.handle_request(request)

    report = smoke.smoke_test(
        dataclasses.replace(TARGET, dp=2, on_gpu=True),
        faults=lambda: (),
        seed=1,
        progress=Progress(io.StringIO()),
        transport=httpx.MockTransport(answer),
    )
    return report, calls


def test_all_ranks_sample_concurrently_before_first_check() -> None:
    barrier = threading.Barrier(2)
    report, calls = sampled_by(lambda _: barrier.wait(TIMEOUT) and None)
    assert not failures(report), report.to_table()
    assert sorted(calls[:2]) == ["sampled 0", "sampled 1"]


def test_checks_fail_when_first_sample_times_out() -> None:
    def time_out(rank: int) -> None:
        if rank == 1:
            raise httpx.ReadTimeout("")

    report, calls = sampled_by(time_out)
    assert calls == ["sampled 0"]
    assert not report.ok
    output = (
        "not run: rank 1 does not answer a sampled request: http://127.0.0.1:30000/generate: no response within 600 s"
    )
    assert set(failures(report).values()) == {output}


PARSED = dataclasses.replace(TARGET, reasoning_parser="qwen3", tool_parser="qwen")


@pytest.mark.parametrize(
    ("behaviors", "check", "verdict", "evidence"),
    [
        ({"calls": "parsed"}, "tool call parsed", Verdict.PASSED, "called `get_weather`"),
        ({"calls": "as text"}, "tool call parsed", Verdict.FAILED, "`tool-call-parser` qwen left a call in the text"),
        ({"calls": "of another"}, "tool call parsed", Verdict.FAILED, "called `get_time`, not `get_weather`"),
        ({}, "tool call parsed", Verdict.SKIPPED, "the model called no tool"),
        ({"reasoning": "separate"}, "reasoning separated", Verdict.PASSED, "11 characters of reasoning, separate"),
        (
            {"reasoning": "in the answer"},
            "reasoning separated",
            Verdict.FAILED,
            "`reasoning-parser` qwen3 left `</think>` in the answer",
        ),
        ({"reasoning": "everything"}, "reasoning separated", Verdict.FAILED, "took the whole answer for reasoning"),
        ({}, "reasoning separated", Verdict.SKIPPED, "the model did not reason"),
    ],
)
def test_wrong_parser_is_detected(behaviors: dict[str, str], check: str, verdict: Verdict, evidence: str) -> None:
    result = {check_.name: check_ for check_ in run(engine(**behaviors), PARSED).checks}[check]
    assert (result.verdict, evidence in result.evidence) == (verdict, True), result
    unparsed = {check_.name: check_ for check_ in run(engine(**behaviors)).checks}[check]
    assert (unparsed.verdict, "the profile has no `" in unparsed.evidence) == (Verdict.SKIPPED, True)


def with_parsers(answer: Callable[[httpx.Request], httpx.Response]) -> SmokeReport:
    """Check a server with both parsers in its profile; `answer` handles its requests."""
    return smoke.smoke_test(
        PARSED, faults=lambda: (), seed=1, progress=Progress(io.StringIO()), transport=httpx.MockTransport(answer)
    )


@pytest.mark.parametrize(("content", "limits"), [("and so on", [128]), ("", [128, 512])])
def test_endless_model_gets_a_small_token_limit(content: str, limits: list[int]) -> None:
    """A call of 512 tokens took 123 s, so only a model that is still reasoning gets more than 128."""
    tokens, server = [], over_httpx(engine())

    def endless(request: httpx.Request) -> httpx.Response:
        response = server.handle_request(request)
        if b'"tools"' not in request.content:
            return response
        tokens.append(json.loads(request.content)["max_tokens"])
        data = json.loads(response.read())
        data["choices"][0]["message"] = {"content": content, "reasoning_content": None if content else "Hm."}
        return httpx.Response(200, json=data)

    report = with_parsers(endless)
    assert verdicts(report)["tool call parsed"] is Verdict.SKIPPED
    assert tokens == limits


@pytest.mark.parametrize(
    ("reasoning", "content", "finish", "verdict", "evidence"),
    [
        ("◁think▷Twice seven.◁/think▷ It is 14", None, "length", Verdict.FAILED, "left `◁think▷` in the reasoning"),
        (
            "Twice seven.<|close|>think<|sep|>14",
            None,
            "length",
            Verdict.FAILED,
            "left `<|close|>think` in the reasoning",
        ),
        ("So two weeks. And so on", None, "length", Verdict.SKIPPED, "the reasoning did not end in 512 tokens"),
        (None, "So two weeks. And so on", "length", Verdict.SKIPPED, "no reasoning seen, and no end in 512 tokens"),
        ("Twice seven.", "14", "length", Verdict.PASSED, "12 characters of reasoning, separate from the answer"),
    ],
)
def test_unfinished_reasoning_does_not_verify_parser(
    reasoning: str | None, content: str | None, finish: str, verdict: Verdict, evidence: str
) -> None:
    """`deepseek-r1` takes all text before its end mark for reasoning; it once passed on a model with other marks."""
    server = over_httpx(engine())

    def thinking(request: httpx.Request) -> httpx.Response:
        response = server.handle_request(request)
        if b'"enable_thinking": true' not in request.content and b'"enable_thinking":true' not in request.content:
            return response
        data = json.loads(response.read())
        data["choices"][0]["message"] = {"content": content, "reasoning_content": reasoning}
        data["choices"][0]["finish_reason"] = finish
        return httpx.Response(200, json=data)

    report = with_parsers(thinking)
    (result,) = (check_ for check_ in report.checks if check_.name == "reasoning separated")
    assert (result.verdict, evidence in result.evidence) == (verdict, True), result


FAULTY = {
    "another model": (engine(model="llama"), "served model", "serves `llama`, not `glm-5.2`"),
    "a shorter context": (engine(context=2048), "served model", "accepts 2048 tokens, but the profile sets 4096"),
    "random tokens": (
        engine(samples_at_temperature_0=True),
        "greedy deterministic",
        "two greedy answers differ at token",
    ),
    "streaming loses text": (engine(stream_drops_chunk=True), "streaming matches", "streaming gives 'w"),
    "streaming in one piece": (engine(stream_in_one_chunk=True), "streaming matches", "the response is not streamed"),
    "unterminated stream": (engine(stream_without_done=True), "streaming matches", "ended without `data: [DONE]`"),
    "wrong streaming count": (engine(stream_overcounts_tokens=True), "streaming matches", "counts 33 tokens streaming"),
    "ignored temperature": (
        engine(ignores_temperature=True),
        "sampling varies",
        "rank 0 begins 8 of 8 answers differently at temperature 0.01, 8 at 2",
    ),
    "ignored sampling": (engine(samples=False), "sampling varies", "the same 32 tokens twice"),
    "one prompt token too many": (
        engine(overcounts_prompt_tokens=True),
        "token counts",
        "prompt tokens in `meta_info`: 38, not 37",
    ),
    "one completion token too few": (
        engine(undercounts_completion_tokens=True),
        "token counts",
        "completion tokens in `meta_info`: 15, not 16",
    ),
    "a wrong total": (
        engine(usage_total_wrong=True),
        "token counts",
        "total tokens in `usage`: 54, not 53",
    ),
    "no cache": (engine(cache_off=True), "prefix cache", "0 from cache, 960 expected (page 64)"),
    "false cache report": (
        engine(overreports_cache=True),
        "prefix cache",
        "of a new prompt are reported as cached",
    ),
    "no cache report": (engine(usage_hides_cache=True), "prefix cache", "`usage` reports 0 cached tokens"),
    "schema ignored": (engine(ignores_schema=True), "structured output", "not JSON"),
    "schema broken": (engine(breaks_schema=True), "structured output", "JSON that does not match the schema"),
    "500 for a malformed request": (
        engine(malformed_status=500),
        "bad requests rejected",
        "broken JSON to `/generate` returns status 500",
    ),
    "200 for a malformed request": (engine(malformed_status=200), "bad requests rejected", "returns status 200"),
    "500 for an over-long prompt": (engine(overlong_status=500), "overlong prompt rejected", "returns status 500"),
    "silently truncated over-long prompt": (
        engine(overlong_status=200),
        "overlong prompt rejected",
        "returns status 200",
    ),
    "a shorter second answer": (
        engine(returns_fewer_tokens_per_call=True),
        "greedy deterministic",
        "two greedy answers differ at token 29",
    ),
    "a stream without text": (engine(stream_without_text=True), "streaming matches", "streaming gives ''"),
    "list as color": (engine(returns_list_for_color=True), "structured output", "JSON that does not match the schema"),
    "page size 0": (engine(page=0), "prefix cache", "`page_size` in `/server_info` is 0"),
    "no metrics": (
        engine(metrics_absent=True),
        "metrics",
        "has no number for `sglang:generation_tokens_total`",
    ),
    "constant metrics": (engine(metrics_frozen=True), "metrics", "went from 0 to 0"),
}


@pytest.mark.parametrize(("server", "check", "evidence"), FAULTY.values(), ids=FAULTY)
def test_each_defect_fails_only_its_check(server: EngineApi, check: str, evidence: str) -> None:
    failed = failures(run(server))
    assert list(failed) == [check]
    assert evidence in failed[check]


LONG_PROMPTS = {
    "missed fact deep in a long text": (
        {"max_recall_words": 4000},
        "fact in a long text found",
        Verdict.FAILED,
        r"at 90% of \d\d,\d{3} tokens '.*' instead of '\d{5}'",
    ),
    "all facts found": ({"max_recall_words": 6000}, "fact in a long text found", Verdict.PASSED, "at 10%, 50%, 90% of"),
    "missed fact in the control text": (
        {"max_recall_words": 0},
        "fact in a long text found",
        Verdict.SKIPPED,
        "does not find a fact in a short text either",
    ),
    "crash on long prompt": (
        {"aborts_above": 23_170},
        "long prefill",
        Verdict.FAILED,
        "a prompt of 24,576 tokens: ",
    ),
    "crash on longer prompt": ({"aborts_above": 32_767}, "long prefill", Verdict.FAILED, "a prompt of 33,792 tokens: "),
    "long prompts served": ({}, "long prefill", Verdict.PASSED, "prompts of 24,576 and 33,792 tokens; still serving"),
}


@pytest.mark.parametrize(("behaviors", "check", "verdict", "evidence"), LONG_PROMPTS.values(), ids=LONG_PROMPTS)
def test_long_prompt_checks_detect_failures(
    behaviors: dict[str, int], check: str, verdict: Verdict, evidence: str
) -> None:
    result = result_of(run(engine(context=65536, **behaviors), LONG_CONTEXT), check)
    assert (result.verdict, bool(re.search(evidence, result.evidence))) == (verdict, True), result


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (TARGET, "a CPU takes minutes"),
        (dataclasses.replace(TARGET, on_gpu=True), "the context is"),
    ],
)
def test_long_prompt_checks_are_skipped_when_impractical(target: Target, reason: str) -> None:
    for check in ("fact in a long text found", "long prefill"):
        result = result_of(run(engine(), target), check)
        assert (result.verdict, reason in result.evidence) == (Verdict.SKIPPED, True), result


@pytest.mark.parametrize(
    ("length", "verdict"), [(3.3, Verdict.PASSED), (2.5, Verdict.PASSED), (2.2, Verdict.WARNING), (1.0, Verdict.FAILED)]
)
def test_accept_length_is_compared_with_published_value(length: float, verdict: Verdict) -> None:
    target = dataclasses.replace(TARGET, speculative=True, accept_length=3.61)
    result = result_of(run(engine(accept_length=length), target), "speculative decoding")
    assert result.verdict is verdict, result
    assert verdict is Verdict.FAILED or "published 3.61" in result.evidence


def test_cached_tokens_are_reported_by_tier() -> None:
    result = result_of(run(engine(tiers={"device": 100, "host": 860})), "prefix cache")
    assert result.evidence.endswith("(page 64), 100 from device, 860 from host")


TIERED = dataclasses.replace(TARGET, tiers=("host", "storage"))
NONDETERMINISTIC = dataclasses.replace(TIERED, nondeterministic=(CAUSE,))


@pytest.mark.parametrize(
    ("behaviors", "target", "verdict", "evidence"),
    [
        (
            {"saved_tiers": ("host", "storage")},
            TIERED,
            Verdict.PASSED,
            "960 from host after 68,096 other tokens; 960 from",
        ),
        ({}, TIERED, Verdict.FAILED, "of 1024 tokens that the device evicted, none cached; 960 from host expected"),
        ({"saved_tiers": ("host",)}, TIERED, Verdict.FAILED, "after a flush of device and host, none cached"),
        ({"saved_tiers": ("host",)}, dataclasses.replace(TIERED, tiers=("host",)), Verdict.PASSED, "960 from host"),
        (
            {"saved_tiers": ("host",), "corrupt_tier": "host"},
            TIERED,
            Verdict.FAILED,
            "the answer differs with tokens from host",
        ),
        (
            {"saved_tiers": ("host",), "corrupt_tier": "host"},
            NONDETERMINISTIC,
            Verdict.WARNING,
            "the answer differs with tokens from host at token",
        ),
        (
            {"saved_tiers": ("host", "storage"), "corrupt_tier": "storage"},
            TIERED,
            Verdict.FAILED,
            "with tokens from storage",
        ),
        ({"saved_tiers": ("host", "storage"), "rejects_flush": True}, TIERED, Verdict.WARNING, "storage was not read"),
        ({"saved_tiers": ("host",)}, TARGET, Verdict.SKIPPED, "the server has no cache tier"),
    ],
)
def test_cache_tier_check_uses_evicted_prompt(
    behaviors: dict[str, object], target: Target, verdict: Verdict, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_checks, "_STORED_SECONDS", 0.05)
    monkeypatch.setattr(tier_checks, "_INTERVAL", 0.01)
    result = result_of(run(engine(**behaviors), target), "cache tiers")
    assert (result.verdict, evidence in result.evidence) == (verdict, True), result


def test_truncated_tier_answer_fails_despite_nondeterminism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_checks, "_ANSWER", 32)  # tokens of the answers that the server truncates
    result = result_of(
        run(engine(saved_tiers=("host",), returns_fewer_tokens_per_call=True), NONDETERMINISTIC), "cache tiers"
    )
    assert result.verdict is Verdict.FAILED
    assert "the answer differs with tokens from host at token" in result.evidence


def test_storage_tier_is_verified_with_prompt_of_earlier_run() -> None:
    server = engine(saved_tiers=("host", "storage"))
    run(server, TIERED)
    server.answer("/flush_cache")
    assert result_of(run(server, TIERED), "cache tiers").evidence.endswith("960 from storage, written before")


def test_too_slow_cache_fill_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_checks, "_FILL_SECONDS", 0.0)
    result = result_of(run(engine(saved_tiers=("host",)), TIERED), "cache tiers")
    assert result.verdict is Verdict.WARNING
    assert "not tested: filling the 65,536 tokens on the GPU takes" in result.evidence


SOAK_TARGET = dataclasses.replace(TARGET, dp=2, speculative=True, soak_seconds=1.2)
SLOW_FAILURES = {
    "hanging rank": ({"hanging_rank": 1}, r"no request of rank (0, )?1 ended within 0.2 s"),
    "decreasing accept length": ({"accept_length_drops": True}, r"the accept length of rank 0 fell from 3\.3"),
    "leaked cache tokens": ({"leaks_cache_tokens": True}, "cache tokens are in use without a request"),
    "crash on long prompts": ({"aborts_above": 600}, "requests failed, the first one of kind long: "),
}


@pytest.mark.parametrize(("behaviors", "evidence"), SLOW_FAILURES.values(), ids=SLOW_FAILURES)
def test_soak_detects_slow_failures(
    behaviors: dict[str, object], evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "_STALL_SECONDS", 0.2 if "hanging_rank" in behaviors else 60.0)
    monkeypatch.setattr(soak, "_DRAIN_SECONDS", 0.1)
    monkeypatch.setattr(soak, "_INTERVAL", 0.01)
    result = run_soak(engine(dp=2, accept_length=3.3, **behaviors))
    assert (result.verdict, bool(re.search(evidence, result.evidence))) == (Verdict.FAILED, True), result


def test_soak_reports_its_load() -> None:
    result = run_soak(engine(dp=2, accept_length=3.3))
    assert result.verdict is Verdict.PASSED, result
    load = r"1 s: [\d,]+ requests, [\d,]+ of them aborted by the client, 4 clients a rank \(no benchmark names its"
    assert re.match(load + r" knee\); accept length 3\.3", result.evidence), result
    assert result.evidence.endswith("; memory not watched: the host of a URL is unknown")


def test_soak_with_other_traffic_skips_cache_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_DRAIN_SECONDS", 0.1)
    result = run_soak(engine(dp=2, leaks_cache_tokens=True, other_requests=1))
    assert (result.verdict, "cache tokens in use not compared: other requests run" in result.evidence) == (
        Verdict.PASSED,
        True,
    )


def test_soak_fails_when_memory_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MIN_SECONDS", 0.1)
    monkeypatch.setattr(soak, "_TICK", 0.02)
    growing = itertools.count(1 << 30, 8 << 20)
    result = run_soak(engine(dp=2, accept_length=3.3), MemoryGauge(name="GPU memory", read=lambda: next(growing)))
    assert result.verdict is Verdict.FAILED
    assert result.evidence.startswith("GPU memory keeps growing: 1,0"), result
    steady = MemoryGauge(name="host memory", read=lambda: 1 << 30)
    result = run_soak(engine(dp=2, accept_length=3.3), steady)
    assert result.evidence.endswith("; host memory 1,024, then 1,024 MiB"), result
    assert verdicts(run(engine()))["soak"] is Verdict.SKIPPED


def run_soak(server: EngineApi, *gauges: MemoryGauge) -> CheckOutcome:
    transport = over_httpx(server)

    def answer(request: httpx.Request) -> httpx.Response:
        time.sleep(0.02)  # else the clients use a whole core
        return transport.handle_request(request)

    with EngineClient(SOAK_TARGET.url, key=None, transport=httpx.MockTransport(answer)) as client:
        return soak.soak(SmokeClient(dataclasses.replace(SOAK_TARGET, memory=gauges), client, seed=1, faults=None))


UNEXPECTED_BODIES: tuple[object, ...] = (
    None,
    [],
    {},
    "text",
    -1,
    {"data": [{"id": 7, "max_model_len": 1}, {"id": "glm-5.2", "max_model_len": [1]}], "page_size": -64},
    {"output_ids": "abc", "meta_info": {"prompt_tokens": "7", "completion_tokens": None, "cached_tokens": True}},
    {"output_ids": [], "meta_info": {"prompt_tokens": 1, "completion_tokens": 0, "cached_tokens": 0, "dp_rank": []}},
    {
        "output_ids": [1],
        "meta_info": {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0, "spec_verify_ct": "many"},
    },
    {"choices": [], "usage": {}},
    {"choices": [{"message": {"content": ["a", 1]}, "finish_reason": {}}], "usage": {"completion_tokens": 1}},
    {"choices": [{"message": {"content": "\ud800\x1b[2J"}, "finish_reason": 1}], "usage": {"completion_tokens": 1}},
)
MALFORMED_BODIES = [
    *(json.dumps(body).encode() for body in UNEXPECTED_BODIES),
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b"1" * 5000,
    b"sglang:generation_tokens_total many\n",
    b"data: {}\n\ndata: [DONE]\n\n",
    b"data: [1]\n\ndata: [DONE]\n\n",
    b'data: {"choices": [{"delta": {}}]}\n\ndata: [DONE]\n\n',
    b'data: {"choices": [{"delta": {"content": 1}, "finish_reason": "stop"}], "usage": 1}\n\ndata: [DONE]\n\n',
]


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/model_info", "/server_info", "/generate", "/v1/completions", "/v1/chat/completions", "/metrics"],
)
@pytest.mark.parametrize("body", MALFORMED_BODIES, ids=lambda body: ascii(body[:40]))
def test_malformed_response_fails_a_check_without_exception(path: str, body: bytes) -> None:
    correct_server = over_httpx(engine(dp=2, accept_length=3.3))

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body) if request.url.path == path else correct_server.handle_request(request)

    report = smoke.smoke_test(
        dataclasses.replace(TARGET, dp=2, speculative=True),
        faults=None,
        seed=1,
        progress=Progress(io.StringIO()),
        transport=httpx.MockTransport(answer),
    )
    assert report.failures
    (report.to_table() + json.dumps(report.to_dict(), ensure_ascii=False)).encode()


def result_of(report: SmokeReport, check: str) -> CheckResult:
    return next(check_ for check_ in report.checks if check_.name == check)


def check_answers(server: EngineApi, target: Target = WITH_QUESTIONS) -> CheckResult:
    """Return the result of the answer check."""
    return next(check for check in run(server, target).checks if check.name == "correct answers")


def test_correct_answers_beyond_one_prefill_chunk_pass() -> None:
    result = check_answers(engine(known_answers={**ANSWERS, " Which city?": " PARIS.\n"}, always_reasons=True))
    assert result.verdict is Verdict.PASSED
    assert re.fullmatch(r"all 3, one of them after \d{4} tokens \(a prefill chunk has 256\)", result.evidence)


def test_two_wrong_answers_fail_with_known_causes() -> None:
    report = run(engine(known_answers=ANSWERS, wrong=(" Which city?", " Which word?")), WITH_QUESTIONS)
    assert list(failures(report)) == ["correct answers"]
    assert failures(report)["correct answers"].startswith("2 of 3 answers wrong; rank 0: after ")
    assert "'w1" in failures(report)["correct answers"]
    assert "instead of 'Paris'" in failures(report)["correct answers"]
    with pytest.raises(SmokeError) as caught:
        report.require()
    assert caught.value.details == (
        "known causes for `correct answers`:\n  - a GEMM reckons wrongly (sglang #28685); take another engine"
    )


def test_one_wrong_answer_of_three_warns_with_causes() -> None:
    report = run(engine(known_answers=ANSWERS, wrong=(" Which word?",)), WITH_QUESTIONS)
    assert verdicts(report)["correct answers"] is Verdict.WARNING
    assert report.to_table().endswith("a GEMM reckons wrongly (sglang #28685); take another engine")


def test_wrong_answer_to_only_question_fails() -> None:
    result = check_answers(engine(), dataclasses.replace(WITH_QUESTIONS, questions=WITH_QUESTIONS.questions[:1]))
    assert result.verdict is Verdict.FAILED


def test_wrong_answers_of_one_rank_fail() -> None:
    result = check_answers(engine(dp=2, known_answers=ANSWERS, wrong_rank=1), dataclasses.replace(WITH_QUESTIONS, dp=2))
    assert result.verdict is Verdict.FAILED
    assert result.evidence.startswith("3 of 3 answers wrong; rank 1: after ")


def test_no_prompt_beyond_prefill_chunk_is_a_warning() -> None:
    result = check_answers(engine(known_answers=ANSWERS), dataclasses.replace(WITH_QUESTIONS, prefill_chunk=4000))
    assert result.verdict is Verdict.WARNING
    assert "no prompt longer than a prefill chunk (4000 tokens)" in result.evidence


def test_model_without_questions_skips_answer_check() -> None:
    assert verdicts(run(engine()))["correct answers"] is Verdict.SKIPPED


def test_questions_use_greedy_decoding_without_thinking() -> None:
    bodies: list[dict[str, object]] = []
    answering = over_httpx(engine(known_answers=ANSWERS))

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/chat/completions" and b"enable_thinking" in request.content:
            bodies.append(json.loads(request.content))
        return answering.handle_request(request)

    smoke.smoke_test(WITH_QUESTIONS, faults=None, seed=1, transport=httpx.MockTransport(answer))
    plain_bodies = [body for body in bodies if "response_format" not in body]
    assert [body["chat_template_kwargs"] for body in plain_bodies] == [{"enable_thinking": False}] * 3
    assert {body["temperature"] for body in plain_bodies} == {0}


@pytest.mark.parametrize(
    ("server", "check"),
    [
        (engine(samples_at_temperature_0=True), "greedy deterministic"),
        (engine(stream_drops_chunk=True), "streaming matches"),
    ],
)
def test_nondeterministic_kernels_turn_differences_into_warnings(server: EngineApi, check: str) -> None:
    report = run(server, dataclasses.replace(TARGET, nondeterministic=(CAUSE,)))
    assert verdicts(report)[check] is Verdict.WARNING
    assert "known causes for" in report.to_table()


UNSAMPLED = {
    "nothing is sampled": ({"samples": False}, "returns the same 32 tokens twice"),
    "only the first token is sampled": ({"samples_only_first_token": True}, "samples only the first token"),
}


@pytest.mark.parametrize(("defect", "evidence"), UNSAMPLED.values(), ids=UNSAMPLED)
@pytest.mark.parametrize(("known", "verdict"), [((), Verdict.FAILED), ((CAUSE,), Verdict.WARNING)])
def test_greedy_speculation_fails_unless_known(
    defect: dict[str, bool], evidence: str, known: tuple[PlanWarning, ...], verdict: Verdict
) -> None:
    """sglang before 0.5.21 on ROCm samples only the token of the prefill."""
    server = engine(accept_length=3.3, **defect)  # type: ignore[arg-type]
    report = run(server, dataclasses.replace(TARGET, speculative=True, greedy=known))
    result = next(check for check in report.checks if check.name == "sampling varies")
    assert (result.verdict, evidence in result.evidence) == (verdict, True)
    assert report.ok == bool(known)


@pytest.mark.parametrize(
    ("engine", "greedy"), [("sglang-0.5.14-rocm", True), ("sglang-0.5.16-rocm", True), (None, False)]
)
def test_target_knows_whether_speculation_is_greedy(engine: str | None, greedy: bool) -> None:
    newer = ("engine.version=0.5.23", "engine.image=lmsysorg/sglang:v0.5.23-rocm720-mi35x")
    plan = load("mi355x-tp8", overrides=[f"engine={engine}"] if engine else newer).plan
    assert bool(target_of(plan, url="http://h", api_key=None).greedy) == greedy


def test_fewer_tokens_fail_despite_nondeterministic_kernels() -> None:
    report = run(engine(returns_fewer_tokens_per_call=True), dataclasses.replace(TARGET, nondeterministic=(CAUSE,)))
    assert list(failures(report)) == ["greedy deterministic"]


@pytest.mark.parametrize(
    ("streamed", "reason", "verdict"),
    [("ab", "length", Verdict.PASSED), ("ac", "length", Verdict.WARNING), ("ac", None, Verdict.FAILED)],
)
def test_truncated_stream_fails_despite_nondeterministic_kernels(
    streamed: str, reason: str | None, verdict: Verdict
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        stream = json.loads(request.content).get("stream")
        pieces = streamed if stream else ["ab"]
        reasons = [*[None] * (len(pieces) - 1), reason if stream else "length"]
        choices = [{"text": text, "finish_reason": end} for text, end in zip(pieces, reasons, strict=True)]
        events = [json.dumps({"choices": [choice]}) for choice in choices]
        return httpx.Response(200, text="".join(f"data: {e}\n\n" for e in [*events, "[DONE]"]) if stream else events[0])

    with EngineClient(NONDETERMINISTIC.url, key=None, transport=httpx.MockTransport(answer)) as client:
        assert _stream_agrees(client, NONDETERMINISTIC).verdict is verdict


def test_server_ignoring_its_api_key_fails() -> None:
    with_key = dataclasses.replace(TARGET, api_key=Secret("sk-0123456789"))
    failed = failures(run(engine(key="sk-0123456789", skips_key_check=True), with_key))
    assert failed == {"API key required": "a request without the key returns status 200"}


def test_rank_that_never_serves_fails() -> None:
    failed = failures(run(engine(dp=2, rank_zero_answers_all=True), dataclasses.replace(TARGET, dp=2)))
    assert failed == {"DP ranks": "rank 0 answered for rank 1"}


def test_missing_rank_in_response_is_a_warning() -> None:
    report = run(engine(dp=2, omits_rank=True), dataclasses.replace(TARGET, dp=2))
    assert verdicts(report)["DP ranks"] is Verdict.WARNING
    assert report.ok


@pytest.mark.parametrize(
    ("server", "evidence"),
    [
        (engine(), "the server reports no verification steps: speculation is off"),
        (engine(accept_length=1.0), "accept length 1.00: no draft"),
        (engine(accept_length=1.0, omits_draft_counts=True), "accept length 1.00: no draft"),
    ],
    ids=["off", "every draft rejected: 64 tokens in 63 steps", "every draft rejected, drafts not counted"],
)
def test_ineffective_speculation_fails(server: EngineApi, evidence: str) -> None:
    failed = failures(run(server, dataclasses.replace(TARGET, speculative=True)))
    assert list(failed) == ["speculative decoding"]
    assert evidence in failed["speculative decoding"]


def test_truncated_structured_output_is_a_warning() -> None:
    assert verdicts(run(engine(schema_output_never_stops=True)))["structured output"] is Verdict.WARNING


@pytest.mark.parametrize(
    ("bad_request", "check"), [("malformed", "bad requests rejected"), ("over-long", "overlong prompt rejected")]
)
def test_crash_on_bad_request_fails_following_checks(bad_request: str, check: str) -> None:
    report = run(engine(crashes_on=bad_request))
    failed = failures(report)
    assert next(iter(failed)) == check
    assert "no connection" in failed[check]
    assert failed["metrics"] == f"not run: the server stopped answering during `{check}`"


def test_hung_server_is_queried_once() -> None:
    failed = failures(run(engine(hanging_path="/generate")))
    assert failed["greedy deterministic"] == "http://127.0.0.1:30000/generate: no response within 180 s"
    assert failed["token counts"] == "not run: the server stopped answering during `greedy deterministic`"
    assert "soak" not in failed  # the soak was not requested


def test_known_fault_in_log_fails_clean_log() -> None:
    failed = failures(run(engine(), faults=["cuda-runtime-header: falling back to loop"]))
    assert failed == {"clean log": "cuda-runtime-header: falling back to loop"}


def test_checks_of_missing_features_are_skipped() -> None:
    bare = dataclasses.replace(TARGET, prefix_cache=False, cache_report=False, metrics=False, grammar=False)
    report = run(engine(cache_off=True, metrics_absent=True, ignores_schema=True), bare, faults=None)
    skipped = {name for name, verdict in verdicts(report).items() if verdict is Verdict.SKIPPED}
    assert skipped == {
        "API key required",
        "prefix cache",
        "cache tiers",
        "DP ranks",
        "speculative decoding",
        "structured output",
        "correct answers",
        "tool call parsed",
        "reasoning separated",
        "fact in a long text found",
        "long prefill",
        "soak",
        "metrics",
        "clean log",
    }
    assert {check.evidence for check in report.checks if check.name == "soak"} == {"not requested: `--soak MINUTES`"}
    assert report.ok


def test_each_run_uses_uncached_prompts() -> None:
    server = engine()
    for seed in (1, 2):
        report = smoke.smoke_test(
            TARGET,
            faults=None,
            seed=seed,
            progress=Progress(io.StringIO()),
            transport=over_httpx(server),
        )
        assert report.ok


def test_report_as_table_and_dict() -> None:
    report = run(engine(cache_off=True))
    assert "prefix cache" in report.to_table()
    assert report.to_table().splitlines()[-1] == "8 passed, 1 failed, 3 skipped" or "1 failed" in report.to_table()
    assert report.to_dict()["ok"] is False
    with pytest.raises(SmokeError) as caught:
        report.require()
    assert [problem.message.split(":")[0] for problem in caught.value.problems] == ["prefix cache"]
    run(engine()).require()


def test_report_never_contains_api_key() -> None:
    target = dataclasses.replace(TARGET, api_key=Secret("sk-0123456789"))
    report = run(engine(key="sk-0123456789", model="sk-0123456789"), target)
    assert "sk-0123456789" not in report.to_table() + str(report.to_dict())
