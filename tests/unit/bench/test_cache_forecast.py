"""Test the forecast of the cache hit rate of workloads and traces, and the order in which a trace is sent."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from orchestrator.bench import cache_forecast
from orchestrator.bench.cache_forecast import (
    PointForecasts,
    forecast_load,
)
from orchestrator.bench.connection import Connections
from orchestrator.bench.endpoint import Endpoint
from orchestrator.bench.metrics import forecast_text
from orchestrator.bench.result import CacheHits, EndpointFacts, EndReason, Point, SessionLoad
from orchestrator.bench.sessions import open_sessions
from orchestrator.bench.traces import accesses
from orchestrator.bench.traces.accesses import cache_accesses
from orchestrator.bench.traces.request import TraceRequest, Tree, private_block_ids
from orchestrator.bench.traces.synthetic import SessionShape, Subagents, synthetic_trees
from orchestrator.bench.workload import Workload
from orchestrator.core.url import Address
from orchestrator.engine.client import EngineClient
from orchestrator.plan.reuse_distance import CacheAccess, hit_rates


def endpoint(*, cache_tokens: int | None, dp_ranks: int = 1, page: int = 1) -> Endpoint:
    address = Address.from_url("http://127.0.0.1:1")
    return Endpoint(
        connections=Connections(address, key=None, clock=lambda: 0.0),
        client=EngineClient(address.url, key=None),
        facts=EndpointFacts(url=address.url, api="completions", served_model="m", dp_ranks=dp_ranks, page_size=page),
        is_sglang=True,
        reports_cache=True,
        has_metrics=True,
        tier_tokens=cache_tokens,
    )


PREFIXES = Workload(
    input_tokens=1000, output_tokens=100, cache_hit_rate=0.8, num_prefixes=20, request_rates=(1.0,), requests=200
)


def test_cache_smaller_than_prefixes_lowers_forecast() -> None:
    small, large = (forecast_load(PREFIXES, None, endpoint(cache_tokens=size)) for size in (8_000, 100_000))
    assert small is not None
    assert large is not None
    assert small.unlimited_share == pytest.approx(0.8)
    assert small.share is not None
    assert small.share < 0.4
    assert large.share == pytest.approx(0.8, abs=0.01)
    assert large.sizes[-1].share == pytest.approx(0.8)
    assert "this server with 8,000:" in forecast_text(small)


def test_only_whole_pages_count_as_hits() -> None:
    """A prefix of 800 tokens has 12 full pages of 64."""
    forecast = forecast_load(PREFIXES, None, endpoint(cache_tokens=None, page=64))
    assert forecast is not None
    assert forecast.share is None
    assert forecast.unlimited_share == pytest.approx(12 * 64 / 1000)


def test_prefix_forecast_assumes_every_dp_rank_is_warm() -> None:
    forecast = forecast_load(PREFIXES, None, endpoint(cache_tokens=100_000, dp_ranks=3))
    assert forecast is not None
    assert forecast.share == pytest.approx(0.8, abs=0.01)
    assert forecast_load(PREFIXES.model_copy(update={"cache_hit_rate": 0.0}), None, endpoint(cache_tokens=9)) is None


SHAPE = SessionShape(
    count=12,
    turns=(4, 4),
    system_prompt_tokens=640,
    first_prompt_tokens=100,
    turn_tokens=50,
    output_tokens=30,
    subagents=Subagents(every_turns=2, count=2, first_prompt_tokens=80),
)


def test_session_reuses_its_prompts_and_answers() -> None:
    """The cache has the fourth prompt except the turn's new tokens and the last token of the answer's block."""
    shape = SHAPE.model_copy(update={"count": 1, "system_prompt_tokens": 0, "subagents": None})
    rates = hit_rates(cache_accesses(synthetic_trees(shape, 1), concurrency=1))
    prompts = [100 + 80 * turn for turn in range(4)]
    assert rates.prompt_tokens == sum(prompts)
    assert rates.unlimited * rates.prompt_tokens == pytest.approx(sum(130 + 80 * turn for turn in range(3)))


def test_session_blocks_scale_with_turns_not_tokens() -> None:
    """With blocks of 64 tokens, this session once had 30 million of them, both in its requests and in the forecast."""
    shape = SHAPE.model_copy(
        update={"count": 1, "system_prompt_tokens": 0, "subagents": None, "turns": (500, 500), "turn_tokens": 15_000}
    )
    (session,) = synthetic_trees(shape, 1)
    assert sum(len(access.block_ids) for access in session) == 2
    steps = list(cache_accesses([session], concurrency=1))
    assert [len(access.prompt) for access in steps][1:32] == [3 + turn for turn in range(1, 32)]
    assert len(steps[-1].prompt) < 100
    assert all(
        sum(tokens for _, tokens in access.prompt) == planned.input_tokens
        for access, planned in zip(steps, session, strict=True)
    )


def test_forecast_steps_scale_linearly_with_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 sessions of 800 turns once took 85 s, because each prompt had two blocks for each earlier turn; now 8 s."""

    def cache_steps(turns: int) -> Iterator[CacheAccess]:
        shape = SHAPE.model_copy(update={"count": 8, "subagents": None, "turns": (turns, turns)})
        return cache_accesses(synthetic_trees(shape, 1), concurrency=4)

    def steps(turns: int) -> int:
        return sum(len(session.cached_after) for session in cache_steps(turns))

    assert steps(400) < 8 * steps(100)
    grouped = hit_rates(cache_steps(100))
    monkeypatch.setattr(accesses, "_EXACT_BITS", 64)  # one block per turn
    assert steps(400) > 12 * steps(100)
    exact = hit_rates(cache_steps(100))
    for size in (5_000, 10_000, 20_000, 40_000):
        assert grouped.at(size) == pytest.approx(exact.at(size), abs=0.01)
    assert grouped.unlimited == pytest.approx(exact.unlimited)
    assert 0.1 < exact.at(5_000) < exact.at(20_000) < exact.unlimited - 0.01


def sent(requests: int, drawn_share: float = 0.0) -> Point:
    load = SessionLoad(
        sessions=12, subagents=0, warmup_requests=0, dropped_requests=0, next_prompts="", drawn_share=drawn_share
    )
    return Point(
        label="closed-12", arrivals="closed", end_reason=EndReason.COMPLETE, started_at="", requests=requests,
        succeeded=requests, success_share=1.0, failures=(), input_tokens=1, output_tokens=1, sessions=load,
        cache=CacheHits(wanted_share=None, usage_share=None, metrics_share=None),
    )  # fmt: skip


CLOSED = Workload(sessions=SHAPE, load="closed", concurrency=12, duration_s=1.0)
SESSIONS = open_sessions(CLOSED)
assert SESSIONS is not None
TOTAL = SESSIONS.totals.requests


def forecasts(cache_tokens: int | None = 1 << 20) -> PointForecasts:
    server = endpoint(cache_tokens=cache_tokens)
    forecast = forecast_load(CLOSED, SESSIONS, server)
    return PointForecasts(workload=CLOSED, source=SESSIONS, endpoint=server, forecast=forecast)


def achievable(point: Point) -> float | None:
    assert point.cache is not None
    return point.cache.achievable_share


def computed_share(point: Point) -> float:
    (completed,) = asyncio.run(forecasts().complete((point,), lambda _text, _transient: None))
    share = achievable(completed)
    assert share is not None
    return share


def test_achievable_share_uses_only_prompts_actually_sent() -> None:
    """The first prompts of a session are new, so a part of a trace reaches a lower hit rate than the whole."""
    whole = achievable(forecasts().with_known(sent(TOTAL)))
    assert whole == computed_share(sent(TOTAL))
    assert achievable(forecasts().with_known(sent(12))) is None
    assert computed_share(sent(12)) < whole - 0.1
    assert achievable(forecasts().with_known(sent(TOTAL, 1.0))) is None
    assert SESSIONS is not None
    prompts = SESSIONS.totals.input_tokens
    answers = 30 * SESSIONS.totals.continued  # each of 30 tokens, reused by each later prompt
    assert computed_share(sent(TOTAL, 1.0)) < whole - answers / prompts + 0.02


def test_drawn_answers_lower_share_in_proportion() -> None:
    whole, few, drawn = (computed_share(sent(TOTAL, share)) for share in (0.0, 0.2, 1.0))
    assert drawn < few < whole
    assert whole - few < (whole - drawn) / 2


def test_hit_rate_is_computed_once_for_equal_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages: list[str] = []
    points = (sent(12), replace(sent(12), label="x2"), sent(TOTAL, 1.0), forecasts().with_known(sent(TOTAL)))
    one, two, drawn, known = asyncio.run(forecasts().complete(points, lambda text, _transient: messages.append(text)))
    assert messages == ["closed-12: computing the achievable hit rate"] * 2
    assert achievable(one) == achievable(two) != achievable(drawn)
    assert known == points[-1]
    unsized = forecasts(cache_tokens=None)
    monkeypatch.setattr(cache_forecast, "hit_rates", None)
    assert asyncio.run(unsized.complete(points, lambda _text, _transient: None)) == points


def test_sampled_forecast_is_labeled_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = forecast_load(PREFIXES, None, endpoint(cache_tokens=8_000))
    assert exact is not None
    assert (exact.sampled_share, "estimated" in forecast_text(exact)) == (None, False)
    monkeypatch.setattr(cache_forecast, "hit_rates", partial(hit_rates, max_blocks=100))
    sampled = forecast_load(PREFIXES, None, endpoint(cache_tokens=8_000))
    assert sampled is not None
    assert sampled.sampled_share == 0.25
    assert "estimated from 25 % of the blocks" in forecast_text(sampled)


def test_small_cache_favors_low_concurrency() -> None:
    one, many = (
        hit_rates(cache_accesses(synthetic_trees(SHAPE, 1), concurrency=concurrency)) for concurrency in (1, 12)
    )
    assert one.unlimited == pytest.approx(many.unlimited)
    assert many.at(2_500) < one.at(2_500)


def tree(name: str, arrival_s: float, *delays: float) -> Tree:
    return tuple(
        TraceRequest(
            session=name,
            position=position,
            arrival_s=arrival_s if not position else None,
            after=(position - 1,) if position else (),
            delay_s=delay,
            block_ids=private_block_ids(name, 64, 64),
            block_tokens=64,
            input_tokens=64,
            output_tokens=50,  # one second
        )
        for position, delay in enumerate((0.0, *delays))
    )


TREES = (tree("a", 0.0, 10.0), tree("b", 5.0, 1.0), tree("c", 30.0))


def test_requests_are_ordered_by_arrival() -> None:
    order = [access.session for access in cache_accesses(TREES)]
    assert order == ["a", "b", "b", "a", "c"]


def test_sessions_are_not_interleaved_at_concurrency_one() -> None:
    assert [access.session for access in cache_accesses(TREES, concurrency=1)] == ["a", "a", "b", "b", "c"]


def test_maximum_delay_changes_request_order() -> None:
    assert [access.session for access in cache_accesses(TREES, max_delay_s=0.5)] == ["a", "a", "b", "b", "c"]


def test_every_request_of_a_tree_is_sent_once() -> None:
    trees = tuple(synthetic_trees(SHAPE, 1))
    steps = list(cache_accesses(trees, concurrency=3))
    assert len(steps) == sum(map(len, trees))
    assert {access.session for access in steps} == {access[0].session for access in trees}


def test_point_records_forecast_hit_rate() -> None:
    point = Point(
        label="1", arrivals="constant", end_reason=EndReason.COMPLETE, started_at="", requests=2, succeeded=2,
        success_share=1.0, failures=(), input_tokens=1, output_tokens=1, cache=CacheHits(wanted_share=0.8),
    )  # fmt: skip
    forecast = forecast_load(PREFIXES, None, endpoint(cache_tokens=8_000))
    assert forecast is not None
    of_point = PointForecasts(
        workload=PREFIXES, source=None, endpoint=endpoint(cache_tokens=8_000), forecast=forecast
    ).with_known
    assert achievable(of_point(point)) == forecast.share
    assert of_point(replace(point, cache=None)).cache is None


def test_session_forecast_excludes_warmup_requests() -> None:
    workload = Workload(sessions=SHAPE, load="closed", concurrency=3, warmup_requests=10)
    cold = workload.model_copy(update={"warmup_requests": 0})
    forecast = forecast_load(workload, open_sessions(workload), endpoint(cache_tokens=50_000))
    whole = forecast_load(cold, open_sessions(cold), endpoint(cache_tokens=1))
    assert forecast is not None
    assert whole is not None
    assert forecast.prompt_tokens < whole.prompt_tokens
    assert forecast.share is not None
    assert forecast.share > whole.unlimited_share
