"""Replay traces and sessions against a scripted server with a prefix cache: order, times, prompts, counts."""

import asyncio
import json
import time
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import pytest
from cpu_server import CpuServer
from scripted_runs import bench, only, order_of
from scripted_server import Answer, Exchange, Script, answer_ids, scripted

from orchestrator.bench import record_file, run_point
from orchestrator.bench.benchmark import measure
from orchestrator.bench.cache_forecast import PointForecasts
from orchestrator.bench.energy import EnergyReading
from orchestrator.bench.load_generator import Request
from orchestrator.bench.result import EndReason, Point
from orchestrator.bench.sessions import TreeSession, open_sessions
from orchestrator.bench.traces.synthetic import SessionShape, Subagents
from orchestrator.bench.workload import Workload, load_workload
from orchestrator.core.errors import BenchError, ProfileError

QUICK = {"load": "closed", "timeout_s": 20.0, "token_ids": (10, 500)}
SHAPE = SessionShape(
    count=6,
    turns=(3, 3),
    system_prompt_tokens=64,
    first_prompt_tokens=32,
    turn_tokens=16,
    output_tokens=16,
    subagents=Subagents(every_turns=2, count=2, first_prompt_tokens=32),
)


def replay(script: Script, folder: Path, workload: Workload, **changes: object) -> Point:
    result = bench(script, folder / "result", workload=workload, source=open_sessions(workload), **changes)
    assert result.end_reason is EndReason.COMPLETE
    return only(result)


MEASURED = slice(2, None)  # after the check for token ids and the warm-up


def prompts(script: Script) -> list[list[int]]:
    return [json.loads(body)["prompt"] for body in script.bodies[MEASURED]]


def mooncake(folder: Path, *lines: dict[str, object]) -> str:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps({"output_length": 4, **line}) + "\n" for line in lines))
    return str(path)


def at(milliseconds: float, ids: list[int], **more: object) -> dict[str, object]:
    return {"timestamp": milliseconds, "hash_ids": ids, "input_length": 512 * len(ids), **more}


def max_concurrent(exchanges: list[Exchange]) -> int:
    ends = [(exchange.ended_s or 0.0, -1) for exchange in exchanges]
    events = sorted([(exchange.arrived_s, 1) for exchange in exchanges] + ends)
    maximum = now = 0
    for _, change in events:
        now += change
        maximum = max(maximum, now)
    return maximum


def test_trace_keeps_arrival_times_and_shared_blocks(tmp_path: Path) -> None:
    script = Script(prefixes=set())
    trace = mooncake(tmp_path, at(0, [1, 2]), at(300, [1, 2, 3]), at(900, [9]), at(900, [1, 2, 4], input_length=1100))
    point = replay(script, tmp_path, Workload(trace=trace, timeout_s=20.0, token_ids=(10, 500)))
    assert (point.label, point.arrivals, point.requests, point.succeeded) == ("x1", "recorded", 4, 4)
    assert sorted(len(prompt) for prompt in prompts(script)) == [512, 1024, 1100, 1536]
    other, first, last, second = sorted(prompts(script), key=len)
    assert second[:1024] == first
    assert last[:1024] == first
    assert other[:100] != first[:100]
    arrived = [exchange.arrived_s for exchange in script.exchanges[MEASURED]]
    assert [pytest.approx(later - arrived[0], abs=0.2) for later in arrived] == [0, 0.3, 0.9, 0.9]
    assert point.cache is not None
    assert point.cache.usage_share == pytest.approx(2048 / (1024 + 1536 + 512 + 1100))
    assert point.sessions is not None
    assert (point.sessions.sessions, point.sessions.next_prompts) == (4, "the recorded blocks")
    assert point.sustained is None


def test_speed_scales_arrival_times(tmp_path: Path) -> None:
    script = Script(prefixes=set())
    trace = mooncake(tmp_path, at(0, [1]), at(2000, [2]))
    point = replay(script, tmp_path, Workload(trace=trace, speeds=(4.0,), timeout_s=20.0))
    begin, end = (exchange.arrived_s for exchange in script.exchanges[MEASURED])
    assert end - begin == pytest.approx(0.5, abs=0.2)
    assert (point.label, point.sessions and point.sessions.speed) == ("x4", 4.0)


def test_session_prompt_includes_previous_response(tmp_path: Path) -> None:
    script = Script(prefixes=set())
    workload = Workload(sessions=SHAPE, concurrency=2, **QUICK)
    point = replay(script, tmp_path, workload)
    main_prompts = sorted((prompt for prompt in prompts(script) if len(prompt) > 96), key=len)
    assert [len(prompt) for prompt in main_prompts] == [128] * 6 + [160] * 6
    for longer in main_prompts[6:]:
        assert any(longer[:128] == shorter and longer[128:144] == answer_ids(16) for shorter in main_prompts[:6])
    assert point.sessions is not None
    assert (point.sessions.sessions, point.sessions.subagents) == (6, 12)
    assert point.sessions.next_prompts == "the answers of the server, and new tokens"
    assert point.requests == 6 * 5
    assert point.input_tokens == sum(map(len, prompts(script)))
    assert point.cache is not None
    assert point.cache.usage_share is not None
    assert point.cache.metrics_share == pytest.approx(point.cache.usage_share)
    assert point.cache.wanted_share is None


def test_concurrency_counts_sessions_not_subagents(tmp_path: Path) -> None:
    script = Script(answer=lambda _: Answer(ttft_s=0.05))
    replay(script, tmp_path, Workload(sessions=SHAPE, concurrency=1, **QUICK))
    assert max_concurrent(script.exchanges[MEASURED]) == 2  # the two subagents of the one session
    replay(script, tmp_path / "two", Workload(sessions=SHAPE, concurrency=2, **QUICK))
    assert 2 <= max_concurrent(script.exchanges[MEASURED]) <= 4


def test_responses_without_token_ids_are_replaced_and_reported(tmp_path: Path) -> None:
    script = Script(prefixes=set(), returns_ids=False)
    point = replay(script, tmp_path, Workload(sessions=SHAPE, concurrency=2, **QUICK))
    assert point.succeeded == point.requests
    assert point.sessions is not None
    assert point.sessions.next_prompts.startswith("drawn tokens in place of 12 answers")
    assert point.sessions.drawn_share == 1.0


def test_failed_request_is_not_counted_as_replaced(tmp_path: Path) -> None:
    """One such request in ten thousand once gave the achievable hit rate of a load without cached answers."""
    script = Script(prefixes=set(), answer=lambda number: Answer(status=500 if number in {5, 6} else 200))
    point = replay(script, tmp_path, Workload(sessions=SHAPE, concurrency=1, **QUICK))
    assert (point.requests - point.succeeded, point.sessions and point.sessions.drawn_share) == (2, 0.0)
    assert point.sessions is not None
    assert point.sessions.next_prompts == "the answers of the server, and new tokens"


def test_resume_completes_interrupted_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object) -> NoReturn:
        raise asyncio.CancelledError

    workload = Workload(sessions=SHAPE, concurrency=2, **QUICK)
    with scripted(Script(prefixes=set(), returns_ids=False)) as server:
        request = order_of(server.url, tmp_path / "result", workload=workload, source=open_sessions(workload))
        with monkeypatch.context() as patched:
            patched.setattr(PointForecasts, "complete", interrupted)
            cut = measure(request, lambda _text, _transient: None)
        resumed = measure(replace(request, previous=cut), lambda _text, _transient: None)
    assert (cut.end_reason, resumed.end_reason) == (EndReason.INTERRUPTED, EndReason.COMPLETE)
    before, after = only(cut), only(resumed)
    assert before.cache is not None
    assert after.cache is not None
    assert (before.end_reason, before.cache.achievable_share) == (EndReason.COMPLETE, None)
    assert after.cache.achievable_share is not None
    assert after.started_at == before.started_at


def test_think_time_is_honored_up_to_its_bound(tmp_path: Path) -> None:
    turn = {"session_id": "a", "input_length": 20}
    trace = mooncake(tmp_path, {**turn, "timestamp": 0}, {**turn, "delay": 400}, {**turn, "delay": 60_000})
    script = Script()
    replay(script, tmp_path, Workload(trace=trace, concurrency=1, max_think_time_s=0.6, **QUICK))
    exchanges = script.exchanges[MEASURED]
    gaps = [later.arrived_s - (earlier.ended_s or 0.0) for earlier, later in pairwise(exchanges)]
    assert gaps == [pytest.approx(0.4, abs=0.15), pytest.approx(0.6, abs=0.15)]


def test_warmup_requests_are_not_measured(tmp_path: Path) -> None:
    script = Script(prefixes=set(), answer=lambda _: Answer(ttft_s=0.3))
    trace = mooncake(tmp_path, *(at(0, [number]) for number in range(10)))
    point = replay(script, tmp_path, Workload(trace=trace, concurrency=1, warmup_requests=4, **QUICK))
    assert (point.requests, point.sessions and point.sessions.warmup_requests) == (6, 4)
    assert point.server is not None
    assert point.server.prompt_tokens is not None
    assert 5 * 512 <= point.server.prompt_tokens <= 7 * 512  # the counters are read during the load
    assert point.full_run is not None
    lines = (tmp_path / "result/requests-closed-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["session"] for line in lines] == [f"line {number}" for number in range(5, 11)]


def test_requests_in_flight_after_warmup_are_measured(tmp_path: Path) -> None:
    """The warm-up requests are the first that end; all others are measured."""
    script = Script(answer=lambda index: Answer(ttft_s=0.2 + 0.1 * (index % 8)))
    trace = mooncake(tmp_path, *(at(0, [number]) for number in range(16)))
    point = replay(script, tmp_path, Workload(trace=trace, concurrency=8, warmup_requests=3, **QUICK))
    assert (point.requests, point.output_tokens) == (13, 4 * 13)


@pytest.mark.parametrize("loop", ["speeds", "closed"])
def test_unflushable_cache_gets_different_prompts_at_each_point(tmp_path: Path, loop: str) -> None:
    script = Script(prefixes=set(), flushes=False)
    trace = mooncake(tmp_path, at(0, [1]), at(5, [2]), at(10, [3]))
    workload = Workload(trace=trace, speeds=(1.0, 2.0), timeout_s=20.0, token_ids=(10, 500))
    if loop == "closed":
        workload = Workload(trace=trace, concurrency=1, **QUICK)
        replay(script, tmp_path / "before", workload)
    script.forget()
    with scripted(script) as server:
        request = order_of(server.url, tmp_path / "result", workload=workload, source=open_sessions(workload))
        result = measure(request, lambda _text, _transient: None)
    assert [point.cache and point.cache.usage_share for point in result.points] == [0.0] * len(result.points)
    assert "caches cannot be flushed: prompts varied by" in result.run.warmup


def test_energy_readings_do_not_delay_requests(tmp_path: Path) -> None:
    """A reading by amd-smi takes a second."""

    def slow() -> EnergyReading:
        time.sleep(1.0)
        return EnergyReading(source="amd-smi", joules=(time.monotonic(),), at_s=time.monotonic())

    script = Script(answer=lambda _: Answer(ttft_s=0.02))
    trace = mooncake(tmp_path, *(at(50 * number, [number]) for number in range(30)))
    workload = Workload(trace=trace, warmup_requests=2, timeout_s=20.0, token_ids=(10, 500))
    point = replay(script, tmp_path, workload, read_energy=slow)
    assert point.energy is not None
    assert point.energy.valid
    assert point.send_lag_s is not None
    assert point.send_lag_s.max < 0.5


def test_session_prompts_are_built_just_before_sending(tmp_path: Path) -> None:
    built: list[float] = []

    class Watched(TreeSession):
        def build(self, index: int) -> Request:
            built.append(time.monotonic())
            return super().build(index)

    turn = {"session_id": "a"}
    trace = mooncake(tmp_path, *(at(500 * number, [number], **turn) for number in range(4)))
    script = Script()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_point, "TreeSession", Watched)
        replay(script, tmp_path, Workload(trace=trace, timeout_s=20.0, token_ids=(10, 500)))
    arrived = [exchange.arrived_s for exchange in script.exchanges[MEASURED]]
    assert all(sent - made < 0.45 for made, sent in zip(built, arrived, strict=True))


class Forgetful(list[Any]):
    """A list that stores nothing, so that the memory of the server does not grow."""

    def append(self, _: object) -> None:
        pass


def test_replay_memory_per_request_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk times of older requests go to a file: in memory, their text alone would take 3 kB per request."""
    monkeypatch.setattr(record_file, "_MAX_NEWEST_CHUNKS", 0)  # all requests are older
    requests, nothing, used = 20, Forgetful(), list[int]()

    def answer(_: int) -> Answer:
        used.append(tracemalloc.get_traced_memory()[0])  # no other request runs
        return Answer()

    script = Script(answer=answer, pinned=nothing, bodies=nothing, heads=nothing, exchanges=nothing)
    trace = mooncake(tmp_path, *[at(0, [1], input_length=20, output_length=500)] * requests)
    workload = Workload(trace=trace, concurrency=1, **QUICK)
    with scripted(script) as server:
        request = order_of(server.url, tmp_path / "result", workload=workload, source=open_sessions(workload))
        tracemalloc.start()
        try:
            assert only(measure(request, lambda _text, _transient: None)).succeeded == requests
        finally:
            tracemalloc.stop()
    growth = [after - before for before, after in pairwise(used[-15:])]
    assert median(growth) < 2500


def test_fixed_duration_load_skips_pending_think_time(tmp_path: Path) -> None:
    turn = at(0, [1], session_id="a")
    trace = mooncake(tmp_path, turn, {**turn, "delay": 600_000})
    begin = time.monotonic()
    point = replay(Script(), tmp_path, Workload(trace=trace, concurrency=1, duration_s=1.0, **QUICK))
    assert point.requests == 1
    assert point.cache is not None
    assert point.cache.achievable_share == 0.0  # both requests together would give one half
    assert time.monotonic() - begin < 60


def test_trace_removed_during_run_is_reported(tmp_path: Path) -> None:
    lines = [{"session_id": f"s{number}", "input_length": 20, "timestamp": 100 * number} for number in range(8)]
    trace = Path(mooncake(tmp_path, *lines))

    def answer(_: int) -> Answer:
        if len(script.bodies) > MEASURED.start:
            trace.unlink(missing_ok=True)
        return Answer()

    workload = Workload(trace=str(trace), timeout_s=20.0, token_ids=(10, 500))
    script = Script(answer=answer)
    with scripted(script) as server:
        request = order_of(server.url, tmp_path / "result", workload=workload, source=open_sessions(workload))
        with pytest.raises(ProfileError, match="cannot read the trace: No such file") as failed:
            measure(request, lambda _text, _transient: None)
    assert failed.value.location == str(trace)


def test_overlong_session_requests_are_rejected_or_dropped(tmp_path: Path) -> None:
    script = Script(context_length=1200)
    turn = {"session_id": "a", "input_length": 600}
    trace = mooncake(tmp_path, {**turn, "timestamp": 0}, turn, turn, at(5, [1]))
    workload = Workload(trace=trace, concurrency=1, **QUICK)
    with pytest.raises(BenchError, match="has a context of 1200 tokens; the workload needs 1812") as caught:
        replay(script, tmp_path, workload)
    assert "--max-context" in caught.value.hint
    assert not script.bodies
    point = replay(script, tmp_path, Workload(trace=trace, concurrency=1, max_context=1200, **QUICK))
    assert (point.requests, point.sessions and point.sessions.dropped_requests) == (2, 2)


def test_session_header_is_sent_with_every_request(tmp_path: Path) -> None:
    script = Script()
    workload = Workload(sessions=SHAPE.model_copy(update={"count": 2}), concurrency=1, **QUICK)
    replay(script, tmp_path, workload, session_header="x-smg-routing-key")
    named = [head.split(b"x-smg-routing-key: ")[1].split(b"\r\n")[0] for head in script.heads[MEASURED]]
    assert named == [b"session-0"] * 5 + [b"session-1"] * 5


def test_session_id_cannot_inject_a_header(tmp_path: Path) -> None:
    script = Script()
    trace = mooncake(tmp_path, {"session_id": "a\r\nX-Other: 1", "input_length": 20, "timestamp": 0})
    replay(script, tmp_path, Workload(trace=trace, concurrency=1, **QUICK), session_header="x-smg-routing-key")
    (head,) = script.heads[MEASURED]
    assert b"x-smg-routing-key: " in head
    assert b"X-Other" not in head


def test_session_continues_after_failed_request(tmp_path: Path) -> None:
    script = Script(answer=lambda _: Answer(status=503) if len(script.bodies) == 3 else Answer())
    shape = SHAPE.model_copy(update={"count": 1, "subagents": None})
    point = replay(script, tmp_path, Workload(sessions=shape, concurrency=1, **QUICK))
    assert (point.requests, point.succeeded) == (3, 2)


@pytest.mark.parametrize("name", ["agent-sessions", "agent-sessions-tiny"])
def test_shipped_session_workloads_have_multiple_turns(name: str) -> None:
    source = open_sessions(load_workload(name))
    assert source is not None
    assert source.totals.subagents
    assert source.totals.continued > source.totals.sessions


def weka(folder: Path) -> str:
    """Write two sessions of 64-token blocks, the first with a subagent."""

    def call(t: float, ids: list[int], **more: object) -> dict[str, object]:
        return {"t": t, "type": "s", "model": "m", "in": 64 * len(ids), "out": 8, "hash_ids": ids, **more}

    child = {"t": 0.3, "type": "subagent", "agent_id": "a1", "subagent_type": "Explore", "status": "completed"}
    child |= {"models": ["m"], "requests": [call(0.3, [1, 9])], "duration_ms": 200}
    first = [call(0.0, [1, 2], api_time=0.2), child, call(0.6, [1, 2, 3])]
    second = [call(0.0, [1, 2, 4]), call(0.4, [1, 2, 4, 5])]
    path = folder / "trace.jsonl"
    header = {"models": ["m"], "block_size": 64, "hash_id_scope": "local"}
    path.write_text(
        "".join(
            json.dumps({"id": name, **header, "requests": prompt}) + "\n"
            for name, prompt in (("s1", first), ("s2", second))
        )
    )
    return str(path)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "api", "hits", "tokens"),
    [
        # the second line repeats the first block, the third repeats the second line; the last token is always computed
        ("mooncake", "completions", 512 + 1023, 512 + 1024 + 1024),
        # the subagent: block 1; the third: blocks 1 and 2; the last: blocks 1, 2 and 4
        ("weka", "completions", 64 + 128 + 192, 128 + 128 + 192 + 192 + 256),
        # 0.5.14 returns the ids of an answer only from its own API
        ("sessions", "generate", None, None),
        ("sessions", "completions", None, None),
    ],
)
def test_real_server_cache_hits_match_shared_blocks(
    server: CpuServer, tmp_path: Path, form: str, api: str, hits: int | None, tokens: int | None
) -> None:
    if form == "sessions":
        workload = load_workload("agent-sessions-tiny")
    elif form == "weka":
        workload = Workload(trace=weka(tmp_path), concurrency=1, **QUICK)
    else:
        trace = mooncake(tmp_path, at(0, [1]), at(800, [1, 2]), at(1600, [1, 2]))
        workload = Workload(trace=trace, timeout_s=60.0, token_ids=(10, 500))
    request = order_of(server.url, tmp_path / "result", workload=workload, source=open_sessions(workload), api=api)
    point = only(measure(request, lambda _text, _transient: None))
    assert (point.succeeded, point.failures) == (point.requests, ())
    assert point.cache is not None
    assert point.cache.metrics_share is not None
    if hits is not None and tokens is not None:
        assert point.input_tokens == tokens
        assert point.cache.metrics_share == pytest.approx(hits / tokens, abs=0.005)
    else:
        assert point.sessions is not None
        assert point.cache.metrics_share > 0.6
        real = "the answers of the server, and new tokens"
        assert (point.sessions.next_prompts == real) is (api == "generate")
