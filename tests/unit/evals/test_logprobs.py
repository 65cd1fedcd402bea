"""Test the log-probability comparison with servers that have one error each, and the parsing of malformed responses."""

import copy
import dataclasses
import gc
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_api import EngineApi, Way, over_httpx
from smoke_target import NAME, TARGET, engine

from orchestrator.core.errors import BenchError, SmokeError
from orchestrator.core.secrets import Secret
from orchestrator.engine.client import EngineClient
from orchestrator.engine.logprobs import TokenLogprobs, read_scored
from orchestrator.engine.responses import UnexpectedResponseError
from orchestrator.evals.logprobs import scoring
from orchestrator.evals.logprobs.divergence import diverge
from orchestrator.evals.logprobs.reference import LogprobReference, load_reference, reference_to_json
from orchestrator.evals.logprobs.report import LogprobReport
from orchestrator.evals.logprobs.run import (
    LogprobOptions,
    LogprobSide,
    measure_reference,
    run_logprobs,
)
from orchestrator.verify.target import Target

OPTIONS = LogprobOptions(tolerance=None, max_length=512, allow_other_checkpoint=False)
Wrong = Callable[[int, int, Way], float | None]
Ask = Callable[..., tuple[LogprobReport, LogprobReference]]


def make_ask(patch: pytest.MonkeyPatch) -> Ask:
    """Return a function that runs the comparison on a scripted server, by default without a reference."""

    def run(
        server: EngineApi,
        *,
        reference: LogprobReference | None = None,
        options: LogprobOptions = OPTIONS,
        dp: int = 1,
        key: Secret | None = None,
        source: str | None = None,
    ) -> tuple[LogprobReport, LogprobReference]:
        def open_client(target: Target) -> EngineClient:
            return EngineClient(target.url, key=target.api_key, transport=over_httpx(server))

        patch.setattr(scoring, "open_client", open_client)
        target = dataclasses.replace(TARGET, dp=dp, api_key=key)
        side = LogprobSide(name=NAME, engines=(("", target),), source=source, run=None)
        return run_logprobs(side, reference, options, reference_name="a file")

    return run


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    return make_ask(monkeypatch)


@pytest.fixture(scope="module")
def correct() -> LogprobReference:
    with pytest.MonkeyPatch.context() as patch:
        return make_ask(patch)(engine())[1]


def issues_of(report: LogprobReport) -> dict[tuple[str, int], list[int]]:
    """Return the first positions of bands above the limit, by comparison and text length."""
    return {
        (row.title, row.length): [band.first for band in row.above_limit if band in row.bands]
        for row in report.rows
        if row.above_limit
    }


def test_same_server_matches_its_reference(ask: Ask, correct: LogprobReference) -> None:
    report, again = ask(engine(), reference=correct)
    assert report.ok
    assert again == correct
    assert {row.overall.maximum for row in report.rows} == {0.0}
    assert {row.compared_with for row in report.rows} == {
        *("the reference", "asked again", "decoded", "in a batch of 4", "32 cached", "256 cached")
    }
    assert "4 times the noise of the reference, 0.0005, the minimum of its rounding" in report.to_table()


def test_without_reference_there_is_no_limit(ask: Ask) -> None:
    report, _ = ask(engine(logprob_error=lambda _position, _rank, way: 0.1 * (way == "again")))
    assert report.ok
    assert "no limit" in report.to_table()
    assert {row.limit for row in report.rows} == {None}


FAULTS: tuple[tuple[Wrong, dict[tuple[str, int], list[int]]], ...] = (
    (lambda position, _rank, _way: position * 8e-6, {("the reference", 512): [64]}),
    (lambda position, _rank, way: 0.01 * (position >= 64 and way == "batch"), {("in a batch of 4", 512): [64]}),
    (lambda position, _rank, way: 0.01 * (position >= 257 and way == "cached"), {("256 cached", 512): [257]}),
    (lambda position, _rank, way: 0.01 * (position >= 512 and way == "alone"), {("decoded", 512): [512]}),
)


@pytest.mark.parametrize(
    ("wrong", "expected"), FAULTS, ids=["growing with position", "in a batch", "cached", "decoding"]
)
def test_failed_comparison_names_first_wrong_position(
    ask: Ask,
    correct: LogprobReference,
    wrong: Wrong,
    expected: dict[tuple[str, int], list[int]],
) -> None:
    report, _ = ask(engine(logprob_error=wrong), reference=correct)
    assert issues_of(report) == expected
    with pytest.raises(SmokeError, match="failed the log-probability comparison") as caught:
        report.require()
    (name, length), (first,) = next(iter(expected.items()))
    assert caught.value.problems[0].message.startswith(f"{name}, {length} tokens, positions {first} to ")


def test_user_tolerance_applies_only_to_reference(ask: Ask, correct: LogprobReference) -> None:
    strict = dataclasses.replace(OPTIONS, tolerance=1e-4)
    slightly = engine(logprob_error=lambda position, _rank, way: 2e-4 * (position % 2 if way == "again" else 1))
    assert {name for name, _ in issues_of(ask(slightly, reference=correct, options=strict)[0])} == {"the reference"}
    assert ask(slightly, reference=correct)[0].ok


def test_each_rank_is_compared_with_first_rank(ask: Ask) -> None:
    second = engine(logprob_error=lambda _position, rank, _way: 0.01 * rank)
    report, _ = ask(second, options=dataclasses.replace(OPTIONS, tolerance=1e-3), dp=2)
    assert {name for name, _ in issues_of(report)} == {"rank 1: the first rank"}


def test_only_noise_of_reference_raises_the_limit(ask: Ask, correct: LogprobReference) -> None:
    noisy = engine(logprob_error=lambda _position, _rank, way: 0.004 * (way == "batch"))
    off = engine(logprob_error=lambda _position, _rank, way: 0.003 if way != "batch" else 0.009)
    reference = ask(noisy)[1]
    assert reference.noise == pytest.approx(0.004)
    assert ask(off, reference=reference)[0].ok
    assert {name for name, _ in issues_of(ask(off, reference=correct)[0])} == {"the reference", "in a batch of 4"}


def test_different_dtype_uses_limit_of_noisier_side(
    ask: Ask,
) -> None:
    exact = ask(engine(dtype="float32"))[1]
    rounded = engine(logprob_error=lambda _position, _rank, _way: 0.001)
    report, _ = ask(rounded, reference=exact)
    assert report.ok
    assert report.differences == ("`dtype` is auto on the server, float32 in the reference",)
    assert "of both sides, which differ in `dtype`" in report.basis
    faulty = dataclasses.replace(rounded, dtype="float32")
    assert not ask(faulty, reference=exact)[0].ok


@pytest.mark.parametrize("way", ["batch", "again", "alone"])
def test_rejected_logprobs_request_fails_with_server_message(ask: Ask, way: Way) -> None:
    server = engine(rejects_logprobs=lambda _, requested: requested == way)
    error = "returned HTTP 400: .*speculation does not support return_logprob yet"
    with pytest.raises(SmokeError, match=f"returns no log-probabilities: .*{error}"):
        ask(server)


def test_rank_returning_nan_fails_with_its_name(ask: Ask, correct: LogprobReference) -> None:
    server = engine(logprob_error=lambda position, rank, _way: None if rank and position == 40 else 0.0)
    nan = "rank 1: the log-probability at input token 40 is not a number; sglang writes NaN as null"
    with pytest.raises(SmokeError, match=f"returns no log-probabilities: {nan}"):
        ask(server, reference=correct, dp=2)


def test_disabled_cache_has_no_rows(ask: Ask) -> None:
    report, _ = ask(engine(cache_off=True))
    assert not [row for row in report.rows if "cached" in row.compared_with]


def test_api_key_is_sent_but_never_reported(ask: Ask) -> None:
    server = engine(key="sk-0123456789")
    report, reference = ask(server, key=Secret("sk-0123456789"))
    assert report.ok  # without the key, the server returns 401
    assert "sk-0123456789" not in json.dumps(dataclasses.asdict(report)) + str(reference)


def test_reference_round_trips_through_file(correct: LogprobReference, tmp_path: Path) -> None:
    (tmp_path / "reference.json").write_text(reference_to_json(correct))
    assert load_reference(tmp_path / "reference.json") == correct


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema_version", 1, "another version"),
        ("ids_sha256", "0", "is corrupt"),
        ("top", 4, "is corrupt"),
        ("noise", "much", "not a valid reference"),
        ("texts", [], "not a valid reference"),
    ],
)
def test_corrupt_reference_is_rejected(
    correct: LogprobReference, tmp_path: Path, key: str, value: object, message: str
) -> None:
    file = tmp_path / "reference.json"
    file.write_text(reference_to_json(correct))
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(BenchError, match=message):
        load_reference(file)


HEAD: dict[str, object] = {
    "schema_version": 1,
    "model": "m",
    "source": None,
    "numerics": {},
    "ids_sha256": "",
    "noise": 0.0,
    "top": 5,
}


def memory_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def reference_filled_with(unit: str, location: str, max_bytes: int) -> str:
    """Return a reference file of at most `max_bytes` that is filled with one value in place of its texts or scores."""
    values = ",".join([unit] * (max_bytes // (len(unit) + 1)))
    texts = f"[{values}]" if location == "texts" else f'[{{"ids": [1, 2], "actual": [0], "top": [{values}]}}]'
    return json.dumps({**HEAD, "texts": "here"}).replace('"here"', texts)


def test_malformed_reference_is_rejected_in_bounded_memory(tmp_path: Path) -> None:
    """The files have as many values as are allowed, and as many as fit: 2 MiB of `[]` once took 171 MiB."""
    file = tmp_path / "reference.json"
    for unit in ("[[[[]]]]", "[[1,0]]", "[1,2]", "[]", "{}", "1", '""'):
        lists, values = unit.count("[") + unit.count("{"), unit.count(",") + 1
        allowed = min(79_990 // max(lists, 1), 199_990 // values) * (len(unit) + 1)
        for size, location in itertools.product((1 << 20, allowed), ("texts", "top")):
            file.write_text(reference_filled_with(unit, location, size))
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            before = memory_kib("VmRSS")
            with pytest.raises(BenchError):
                load_reference(file)
            assert memory_kib("VmHWM") - before < 48 << 10, (unit, size, location)  # a command may use 64 MiB


def test_logprobs_of_later_ranks_are_not_accumulated(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has lists of 8 MiB, and there may be 64 ranks."""
    alive: list[int] = []
    score_rank = scoring.score_rank

    def count_and_score(*args: Any, **kwargs: Any) -> scoring.RankScores:  # noqa: ANN401 - passed on unchanged
        gc.collect()
        alive.append(sum(isinstance(obj, TokenLogprobs) for obj in gc.get_objects()))
        return score_rank(*args, **kwargs)

    monkeypatch.setattr(scoring, "score_rank", count_and_score)
    report, _ = ask(engine(), dp=5, options=dataclasses.replace(OPTIONS, max_length=100))
    assert report.ok
    assert alive[1] > alive[0]  # the scores of the first rank
    assert alive[2:] == [2 * alive[1]] * 3  # plus those of the previous rank


def test_reference_of_another_checkpoint_needs_explicit_consent(ask: Ask, correct: LogprobReference) -> None:
    with pytest.raises(BenchError, match=r"another checkpoint: `glm-5\.2`, not `other`"):
        ask(engine(model="other"), reference=correct)
    allowed = dataclasses.replace(OPTIONS, allow_other_checkpoint=True)
    assert ask(engine(model="other"), reference=correct, options=allowed)[0].ok
    sourced = ask(engine(), source="amd/GLM-5.2-MXFP4@1")[1]
    with pytest.raises(BenchError, match=r"`amd/GLM-5\.2-MXFP4@1`, not `amd/GLM-5\.2-MXFP4@2`"):
        ask(engine(), reference=sourced, source="amd/GLM-5.2-MXFP4@2")


def test_reference_with_another_tokenizer_is_rejected_before_scoring(ask: Ask, correct: LogprobReference) -> None:
    other = engine(tokenizer_shift=1)
    with pytest.raises(BenchError, match="different tokens for the same text"):
        ask(other, reference=correct)
    assert not other.scored


def test_longer_reference_accepts_shorter_maximum_length(ask: Ask, correct: LogprobReference) -> None:
    report, _ = ask(engine(), reference=correct, options=dataclasses.replace(OPTIONS, max_length=100))
    assert report.ok
    assert {row.length for row in report.rows} == {64}


def test_a_reference_can_be_another_server(ask: Ask, correct: LogprobReference) -> None:
    ask(engine(), dp=2)
    side = LogprobSide(name="other", engines=(("", dataclasses.replace(TARGET, dp=2)),), source=None, run=None)
    assert measure_reference(side, dataclasses.replace(OPTIONS, tolerance=1e-9)) == correct


def test_server_rejecting_queries_cannot_be_reference(ask: Ask) -> None:
    with pytest.raises(SmokeError):
        ask(engine(rejects_logprobs=lambda _, requested: requested == "batch"))
    side = LogprobSide(name="other", engines=(("", TARGET),), source=None, run=None)
    with pytest.raises(SmokeError, match="returns no log-probabilities"):
        measure_reference(side, OPTIONS)


def flat(*scores: float) -> TokenLogprobs:
    tops = tuple(((7, score), (8, math.log(0.25))) for score in scores)
    return TokenLogprobs(actual=scores, top=tops)


def test_divergence_is_computed_from_probability_masses() -> None:
    likely, unlikely = flat(math.log(0.5)), flat(math.log(0.25))
    overall, bands = diverge(likely, unlikely, first=3)
    assert overall == bands[0]
    assert (overall.first, overall.last, overall.positions) == (3, 3, 1)
    assert overall.mean == overall.maximum == pytest.approx(math.log(2))
    assert overall.kl == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.25 / 0.5))
    assert overall.top1_agreement == 1.0  # of two equally likely tokens, one is the other side's choice
    assert diverge(likely, flat(math.log(0.1)), first=3)[0].top1_agreement == 0.0


def test_position_bands_have_expected_bounds() -> None:
    long = flat(*[-1.0] * 3000)
    _, bands = diverge(long, long, first=1)
    assert [(band.first, band.last) for band in bands] == [(1, 63), (64, 511), (512, 2047), (2048, 3000)]
    assert [band.first for band in diverge(long, long, first=700)[1]] == [700, 2048]
    with pytest.raises(ValueError, match="no log-probabilities to compare"):
        diverge(flat(), long, first=1)


RESPONSE = engine().scores(
    [5, 6, 7],
    {"logprob_start_len": 0, "sampling_params": {"max_new_tokens": 2}, "top_logprobs_num": 2},
    rank=0,
    way="alone",
)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("meta_info", "input_token_logprobs", 1, 0), None, "input token 1 is not a number"),
        (("meta_info", "input_token_logprobs", 1, 0), "-1", "input token 1 is not a number"),
        (("meta_info", "input_token_logprobs", 1, 0), True, "input token 1 is not a number"),
        (("meta_info", "input_token_logprobs", 1, 0), -(10**400), r"no log-probability \(at most 0\)"),
        (("meta_info", "input_token_logprobs", 1, 0), 0.5, r"no log-probability \(at most 0\)"),
        (("meta_info", "input_token_logprobs", 1, 1), 9, "for other tokens than its input"),
        (("meta_info", "input_token_logprobs", 1), {}, "no token with a log-probability"),
        (("meta_info", "input_token_logprobs"), None, "returned no `input_token_logprobs`"),
        (("meta_info", "input_token_logprobs"), [], "0 entries, 3"),
        (("meta_info", "input_top_logprobs", 2), [], "the 2 likeliest tokens at input token 2"),
        (("meta_info", "output_token_logprobs", 0, 0), None, "output token 0 is not a number"),
        (("meta_info", "cached_tokens"), -1, "`cached_tokens` is -1"),
        (("meta_info", "finish_reason"), {"type": "abort"}, "aborted its answer"),
        (("output_ids",), [1], "generated 1 tokens, 2"),
        (("output_ids",), "abc", "expected a list of token ids"),
    ],
)
def test_malformed_logprobs_response_is_rejected(keys: tuple[Any, ...], value: object, message: str) -> None:
    read_scored(RESPONSE, (5, 6, 7), start=0, tokens=2, top=2)
    answer = copy.deepcopy(RESPONSE)
    inner: Any = answer
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    with pytest.raises(UnexpectedResponseError, match=message):
        read_scored(answer, (5, 6, 7), start=0, tokens=2, top=2)


def test_zero_token_id_for_last_vocabulary_entry_is_accepted() -> None:
    answer = copy.deepcopy(RESPONSE)
    answer["meta_info"]["input_token_logprobs"][2][1] = 0
    assert read_scored(answer, (5, 6, 7), start=0, tokens=2, top=2) == read_scored(
        RESPONSE, (5, 6, 7), start=0, tokens=2, top=2
    )
