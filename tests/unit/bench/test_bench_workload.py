"""Workload files: what they say, and where they are wrong."""

from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.bench.prompts import arrival_times, prompts, warmup_prompts
from orchestrator.bench.workload import Workload, load_workload, workload_name
from orchestrator.core.catalogue import Catalogue
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.paths import data_root

TEXT = (data_root() / "profiles/workloads/smoke-tiny.yaml").read_text()


def ids(array: tuple[bytes, ...]) -> list[int]:
    return [int(word) for word in b"".join(array).split(b",")]


def poisson(**changes: object) -> Workload:
    return load_workload("smoke-tiny").model_copy(update={"arrivals": "poisson", **changes})


def test_the_published_workload_is_the_published_one() -> None:
    wafer = load_workload("wafer-20k-1k")
    assert (wafer.input_tokens, wafer.output_tokens, wafer.cached_share) == (20_000, 1_000, 0.6)
    assert wafer.rates_rps == (0.5, 1.0, 1.5, 2.0, 2.25, 2.4)
    assert wafer.limits.ttft_p95_s == 5.0
    assert wafer.prefix_tokens == 12_000


def test_a_workload_is_called_by_its_name_or_by_its_file_s() -> None:
    assert workload_name("single-stream-10k-1.5k") == "single-stream-10k-1.5k"
    assert workload_name("/home/me/mine-2.5k.yaml") == "mine-2.5k"


def test_every_shipped_workload_is_valid() -> None:
    names = [path.stem for path in (data_root() / "profiles/workloads").glob("*.yaml")]
    assert {load_workload(name).load for name in names} == {"open", "closed"}


@pytest.mark.parametrize(
    ("was", "is_", "message", "line"),
    [
        ("requests: 40", "requests: forty", "`requests` must be a whole number, found `forty`", 13),
        ("requests: 40", "request: 40", "unknown key `request`", 13),
        ("cached_share: 0.60", "cached_share: 1.0", "`cached_share`: should be less than 1, found 1.0", 6),
        (
            "rates_rps: [1.0, 2.0, 4.0]",
            "rates_rps: [1.0, -2.0, 4.0]",
            "`rates_rps.1`: should be greater than 0, found -2.0",
            12,
        ),
        ("seed: 20260701", "seed: 1\nseed: 2", "`seed` stands here twice", 15),
        ("rates_rps: [1.0, 2.0, 4.0]", "rates_rps: [2.0, 1.0]", "`rates_rps` must rise", 2),
        ("load: open", "load: closed", "a closed load needs `concurrency`", 2),
    ],
)
def test_a_fault_is_named_with_its_line(was: str, is_: str, message: str, line: int, tmp_path: Path) -> None:
    assert was in TEXT
    path = tmp_path / "w.yaml"
    path.write_text(TEXT.replace(was, is_))
    with pytest.raises(ProfileError) as caught:
        load_workload(str(path))
    problems = {problem.where: problem.message for problem in caught.value.problems}
    assert message in problems[f"{path}:{line}"]


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    folder = tmp_path / "profiles/workloads"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(TEXT)
    with pytest.raises(UsageError) as caught:
        load_workload("yours", catalogue=Catalogue((tmp_path,)))
    assert "`mine`" in caught.value.hint


def test_prompts_have_exactly_the_stated_tokens_and_share() -> None:
    workload = load_workload("smoke-tiny")
    made = prompts(workload, "2", 40)
    prefixes = {warm.prefix for warm in warmup_prompts(workload, "2")}
    assert len(prefixes) == workload.prefixes
    for prompt in made:
        assert len(ids(prompt.array)) == 500
        assert len(ids((prompt.prefix,))) == 300
        assert prompt.prefix in prefixes
    first, last = workload.token_ids
    assert all(first <= token <= last for token in ids(made[0].array))


def test_no_own_part_is_ever_sent_twice() -> None:
    workload = load_workload("smoke-tiny")
    made = [*prompts(workload, "1", 40), *prompts(workload, "2", 40), *warmup_prompts(workload, "1")]
    assert len({prompt.rest for prompt in made}) == len(made)


def test_a_prompt_does_not_depend_on_how_many_are_made() -> None:
    workload = load_workload("smoke-tiny")
    assert prompts(workload, "2", 7) == prompts(workload, "2", 40)[:7]
    assert prompts(workload, "2", 7) != prompts(workload.model_copy(update={"seed": 1}), "2", 7)


def test_prompts_are_these_bytes_on_every_machine() -> None:
    assert prompts(load_workload("smoke-tiny"), "2", 1)[0].rest.startswith(b"201,109,263,288,238,413,82,346,")


def test_nothing_shared_where_nothing_is_to_be_cached() -> None:
    workload = load_workload("smoke-tiny").model_copy(update={"cached_share": 0.0})
    assert len(ids(prompts(workload, "2", 1)[0].array)) == 500


def test_constant_arrivals() -> None:
    assert arrival_times(load_workload("smoke-tiny"), 4.0, 5) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_keep_the_nominal_rate_exactly_and_are_not_regular() -> None:
    times = arrival_times(poisson(), 2.0, 201)
    assert times[-1] == pytest.approx(100.0)
    assert times == sorted(times)
    gaps = [b - a for a, b in pairwise(times)]
    squares = sum((gap - 0.5) ** 2 for gap in gaps) / len(gaps)
    assert squares**0.5 == pytest.approx(0.5, rel=0.2)  # an exponential's deviation is its mean


def test_poisson_arrivals_are_seeded() -> None:
    assert arrival_times(poisson(), 2.0, 50) == arrival_times(poisson(), 2.0, 50)
    assert arrival_times(poisson(), 2.0, 50) != arrival_times(poisson(seed=1), 2.0, 50)
