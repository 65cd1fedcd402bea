"""Test workload files: their values and the messages about invalid ones."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.bench.prompts import arrival_times, prompts, warmup_prompts
from orchestrator.bench.run import WorkloadChanges, apply_changes
from orchestrator.bench.workload import Workload, load_workload, read_text, workload_name
from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.paths import data_root

SHAPE = {"count": 1, "turns": (1, 2), "first_prompt_tokens": 5, "turn_tokens": 5, "output_tokens": 5}
TEXT = (data_root() / "profiles/workloads/smoke-tiny.yaml").read_text()


def ids(array: tuple[bytes, ...]) -> list[int]:
    return [int(word) for word in b"".join(array).split(b",")]


def poisson(**changes: object) -> Workload:
    return load_workload("smoke-tiny").model_copy(update={"arrivals": "poisson", **changes})


def test_wafer_workload_matches_publication() -> None:
    wafer = load_workload("wafer-20k-1k")
    assert (wafer.input_tokens, wafer.output_tokens, wafer.cache_hit_rate) == (20_000, 1_000, 0.6)
    assert wafer.request_rates == (0.5, 1.0, 1.5, 2.0, 2.25, 2.4)
    assert wafer.slo.ttft_p95_s == 5.0
    assert wafer.prefix_tokens == 12_000


def test_workload_name_is_given_name_or_file_stem() -> None:
    assert workload_name("single-stream-10k-1.5k") == "single-stream-10k-1.5k"
    assert workload_name("/home/me/mine-2.5k.yaml") == "mine-2.5k"


def test_every_shipped_workload_is_valid() -> None:
    names = [path.stem for path in (data_root() / "profiles/workloads").glob("*.yaml")]
    assert {load_workload(name).load for name in names} == {"open", "closed"}


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("requests: 40", "requests: forty", "`requests` must be a whole number, found `forty`", 14),
        ("requests: 40", "request: 40", "unknown key `request`", 14),
        ("cache_hit_rate: 0.60", "cache_hit_rate: 1.0", "`cache_hit_rate`: should be less than 1, found 1.0", 7),
        (
            "request_rates: [1.0, 2.0, 4.0]",
            "request_rates: [1.0, -2.0, 4.0]",
            "`request_rates.1`: should be greater than 0, found -2.0",
            13,
        ),
        ("seed: 20260701", "seed: 1\nseed: 2", "duplicate key `seed`", 16),
        ("request_rates: [1.0, 2.0, 4.0]", "request_rates: [2.0, 1.0]", "`request_rates` must rise", 3),
        ("load: open", "load: closed", "a closed load needs `concurrency`", 3),
        ("load: open", "load: open\nprompts: texts", "`prompts`: should be 'random' or 'text'", 12),
        ("load: open", "load: open\nprompts: text", "`token_ids` requires `prompts: random`", 3),
        ("load: open", "load: open\ntext_file: mine.txt", "`text_file` requires `prompts: text`", 3),
    ],
)
def test_workload_problem_has_line_number(old: str, new: str, message: str, line: int, tmp_path: Path) -> None:
    assert old in TEXT
    path = tmp_path / "w.yaml"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ProfileError) as caught:
        load_workload(str(path))
    problems = {problem.location: problem.message for problem in caught.value.problems}
    assert message in problems[f"{path}:{line}"]


def test_unknown_workload_lists_known_names(tmp_path: Path) -> None:
    folder = tmp_path / "profiles/workloads"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(TEXT)
    with pytest.raises(UsageError) as caught:
        load_workload("yours", catalog=Catalog((tmp_path,)))
    assert "`mine`" in caught.value.hint


def test_prompts_have_exact_length_and_prefix_share() -> None:
    workload = load_workload("smoke-tiny")
    generated = [*prompts(workload, "2", 40)]
    prefixes = {warm.prefix for warm in warmup_prompts(workload, "2")}
    assert len(prefixes) == workload.num_prefixes
    for prompt in generated:
        assert len(ids(prompt.fragments)) == 500
        assert len(ids((prompt.prefix,))) == 300
        assert prompt.prefix in prefixes
    assert workload.token_ids is not None
    first, last = workload.token_ids
    assert all(first <= token <= last for token in ids(generated[0].fragments))


def test_prompt_suffixes_are_never_repeated() -> None:
    workload = load_workload("smoke-tiny")
    generated = [*prompts(workload, "1", 40), *prompts(workload, "2", 40), *warmup_prompts(workload, "1")]
    assert len({prompt.suffix for prompt in generated}) == len(generated)


def test_prompts_do_not_depend_on_count() -> None:
    workload = load_workload("smoke-tiny")
    generated = [*prompts(workload, "2", 7)]
    assert generated == [*prompts(workload, "2", 40)][:7]
    assert generated != [*prompts(workload.model_copy(update={"seed": 1}), "2", 7)]


def test_prompts_are_reproducible_across_hosts() -> None:
    assert next(prompts(load_workload("smoke-tiny"), "2", 1)).suffix.startswith(b"201,109,263,288,238,413,82,346,")


def test_zero_cache_hit_rate_has_no_shared_prefix() -> None:
    workload = load_workload("smoke-tiny").model_copy(update={"cache_hit_rate": 0.0})
    assert len(ids(next(prompts(workload, "2", 1)).fragments)) == 500


TEXT_TOKENS = tuple(range(5000, 6500))


def text_workload(**changes: object) -> Workload:
    return load_workload("smoke-tiny").model_copy(update={"prompts": "text", "token_ids": None, **changes})


def test_text_prompts_are_passages_of_exact_length() -> None:
    generated = [*prompts(text_workload(), "2", 40, TEXT_TOKENS)]
    assert {len(ids(prompt.fragments)) for prompt in generated} == {500}
    for part in [ids((part,)) for prompt in generated for part in (prompt.prefix, prompt.suffix)]:
        assert part == [5000 + (part[0] - 5000 + index) % 1500 for index in range(len(part))]
    assert {prompt.prefix for prompt in generated} <= {
        warm.prefix for warm in warmup_prompts(text_workload(), "2", TEXT_TOKENS)
    }


@pytest.mark.parametrize("length", [1000, 1499, 1500, 1536])
def test_passages_of_a_point_have_distinct_starts(length: int) -> None:
    generated = prompts(text_workload(), "2", length, TEXT_TOKENS[:length] if length <= 1500 else range(length))
    assert len({ids((prompt.suffix,))[0] for prompt in generated}) == length


def test_passages_depend_on_point_and_seed_not_count() -> None:
    generated = [*prompts(text_workload(), "2", 7, TEXT_TOKENS)]
    assert generated == [*prompts(text_workload(), "2", 40, TEXT_TOKENS)][:7]
    assert generated != [*prompts(text_workload(), "4", 7, TEXT_TOKENS)]
    assert generated != [*prompts(text_workload(seed=1), "2", 7, TEXT_TOKENS)]


def test_passage_longer_than_text_wraps_around() -> None:
    long = text_workload(input_tokens=4000, cache_hit_rate=0.0)
    assert len(ids(next(prompts(long, "2", 1, TEXT_TOKENS)).fragments)) == 4000


def test_shipped_text_is_the_default() -> None:
    text = read_text(load_workload("wafer-20k-1k"))
    assert text.startswith("CHAPTER I\n\nDown the Rabbit-Hole\n")
    assert 90_000 < len(text.encode()) < 100_000
    assert read_text(load_workload("smoke-tiny")) == ""


def test_user_text_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("wörds")
    assert read_text(text_workload(text_file=str(path))) == "wörds"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read `text_file`: No such file or directory"),
        (b"\xff\xfe", "cannot read `text_file`: not UTF-8"),
        (bytes((1 << 18) + 1), "cannot read `text_file`: File too large"),
    ],
)
def test_invalid_text_file_is_rejected(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProfileError, match=message) as caught:
        read_text(text_workload(text_file=str(path)))
    assert caught.value.location == str(path)


@pytest.mark.timeout(30)  # opening a FIFO may block forever
@pytest.mark.parametrize("endless", ["fifo", "/dev/zero"])
def test_fifo_and_device_are_rejected_as_text_file(endless: str, tmp_path: Path) -> None:
    """Both report a size of 0."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ProfileError, match="cannot read `text_file`: not a file"):
        read_text(text_workload(text_file=str(tmp_path / endless)))


def test_workload_digest_is_stable() -> None:
    """A changed digest would prevent `--resume` of a measurement begun by an earlier version."""
    assert load_workload("smoke-tiny").digest().startswith("8911eb3078a25a27")


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert arrival_times(load_workload("smoke-tiny"), 4.0, 5) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_have_exact_mean_and_exponential_gaps() -> None:
    times = arrival_times(poisson(), 2.0, 201)
    assert times[-1] == pytest.approx(100.0)
    assert times == sorted(times)
    gaps = [b - a for a, b in pairwise(times)]
    squares = sum((gap - 0.5) ** 2 for gap in gaps) / len(gaps)
    assert squares**0.5 == pytest.approx(0.5, rel=0.2)  # the standard deviation of an exponential equals its mean


def test_poisson_arrivals_are_seeded() -> None:
    assert arrival_times(poisson(), 2.0, 50) == arrival_times(poisson(), 2.0, 50)
    assert arrival_times(poisson(), 2.0, 50) != arrival_times(poisson(seed=1), 2.0, 50)


def test_custom_workload_inherits_defaults(tmp_path: Path) -> None:
    path = tmp_path / "owl-burst.yaml"
    path.write_text("input_tokens: 800\noutput_tokens: 64\nrequest_rates: [1, 2]\n")
    workload = load_workload(str(path))

    assert (workload.load, workload.requests, workload.cache_hit_rate, workload.slo.ttft_p95_s) == ("open", 100, 0, 5)
    assert len(ids(next(prompts(workload, "1", 1)).fragments)) == 800
    assert all(100 <= token <= 499 for token in ids(next(prompts(workload, "1", 1)).fragments))
    assert workload.to_dict()["token_ids"] == [100, 499]


def test_trace_replays_recorded_arrivals_or_concurrent_sessions() -> None:
    assert workload_name("/data/toolagent.jsonl") == "toolagent"
    recorded = load_workload("/data/toolagent.jsonl")
    assert (recorded.trace, recorded.load, recorded.speeds) == ("/data/toolagent.jsonl", "open", (1.0,))
    closed, _ = apply_changes(recorded, WorkloadChanges(concurrency=4, max_context=9000))
    assert (closed.load, closed.concurrency, closed.max_context) == ("closed", 4, 9000)
    faster, _ = apply_changes(recorded, WorkloadChanges(speeds=(2.0, 1.0)))
    assert faster.speeds == (1.0, 2.0)
    closed, _ = apply_changes(faster, WorkloadChanges(concurrency=4))  # replaces the speeds
    assert (closed.load, closed.concurrency) == ("closed", 4)
    with pytest.raises(UsageError, match="`--speed` is for recorded arrivals"):
        apply_changes(recorded, WorkloadChanges(concurrency=4, speeds=(2.0,)))
    with pytest.raises(UsageError, match="sessions have no rates"):
        apply_changes(recorded, WorkloadChanges(request_rates=(1.0,)))


def test_workload_name_with_line_break_is_rejected() -> None:
    with pytest.raises(UsageError, match="invalid workload"):
        load_workload("a\nb.jsonl")


def test_unset_limits_are_omitted_from_digest() -> None:
    assert load_workload("wafer-20k-1k").to_dict()["slo"] == {"ttft_p95_s": 5.0, "success_share": 0.99}


def test_trace_digest_depends_on_content_only() -> None:
    first, second = load_workload("a/trace.jsonl"), load_workload("b/trace.jsonl")
    assert first.digest("1") == second.digest("1") != second.digest("2")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "needs either"),
        ({"trace": "a.jsonl", "input_tokens": 5, "output_tokens": 5}, "needs either"),
        ({"trace": "a.jsonl", "request_rates": (1.0,)}, "own arrivals"),
        ({"trace": "a.jsonl", "cache_hit_rate": 0.5}, "`cache_hit_rate` is for independent prompts"),
        ({"input_tokens": 5, "output_tokens": 5, "request_rates": (1.0,), "max_context": 9}, "requires `sessions`"),
        (
            {"trace": "a.jsonl", "load": "closed", "concurrency": 2, "speeds": (2.0,)},
            "`speeds` are for recorded arrivals",
        ),
        ({"sessions": SHAPE, "request_rates": (1.0,)}, "`sessions` needs `load: closed`"),
        ({"sessions": {**SHAPE, "turns": (3, 2)}, "load": "closed", "concurrency": 1}, "must be a range"),
    ],
)
def test_session_keys_and_prompt_keys_are_exclusive(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(keys)
