"""What a difference of scores can tell, against worked examples of the literature."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report import load_published
from orchestrator.results.scores import (
    Item,
    Outcome,
    independent_interval,
    items_to_show,
    judge_independent,
    judge_outcomes,
    mcnemar,
    paired_interval,
    wilson,
)


def outcome(answers: str, *, prefix: str = "q") -> Outcome:
    """`+` a right answer, `-` a wrong one."""
    items = tuple(Item(id=f"{prefix}{index}", right=answer == "+") for index, answer in enumerate(answers))
    return Outcome(
        schema_version=1, suite="gsm8k", task="gsm8k", metric="exact_match", model="m", harness="h", command="c",
        items=items,
    )  # fmt: skip


def test_wilson_interval() -> None:
    """81 of 263: 0.2553 to 0.3662 (Newcombe 1998, Stat Med 17:857, table I, method 3)."""
    interval = wilson(81 / 263, 263)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)


def test_difference_of_independent_shares() -> None:
    """56/70 against 48/80: 0.0524 to 0.3339 (Newcombe 1998, Stat Med 17:873, table II (a), method 10)."""
    interval = independent_interval(baseline=48 / 80, candidate=56 / 70, items=(80, 70))
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.0524, 0.3339)


@pytest.mark.parametrize(
    ("lost", "gained", "p"), [(0, 0, 1.0), (1, 1, 1.0), (0, 5, 2 / 32), (1, 9, 2 * 11 / 1024), (0, 1500, 0.0)]
)
def test_exact_mcnemar_is_the_sign_test_on_discordant_items(lost: int, gained: int, p: float) -> None:
    assert mcnemar(lost=lost, gained=gained) == pytest.approx(p)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_does_not_care_which_side_is_which(lost: int, gained: int) -> None:
    assert mcnemar(lost=lost, gained=gained) == mcnemar(lost=gained, gained=lost) <= 1


@given(st.integers(0, 40), st.integers(0, 40), st.integers(80, 2000))
def test_a_paired_interval_holds_its_difference_and_has_a_width(lost: int, gained: int, items: int) -> None:
    interval = paired_interval(lost=lost, gained=gained, items=items)
    assert interval.low < (gained - lost) / items < interval.high


@pytest.mark.parametrize("suite", ["gsm8k", "gpqa-diamond"])
def test_the_published_tables_cannot_tell(suite: str) -> None:
    line = next(line for line in load_published("wafer-glm52").evals if line.suite == suite)
    assert line.samples is not None
    judgement = judge_independent(
        baseline=line.baseline.score, candidate=line.candidate.score, items=(line.samples, line.samples)
    )
    assert not judgement.significant
    assert judgement.detectable > 0.05  # while the differences are 0.010 and 0.019
    assert judgement.items_needed is not None
    assert judgement.items_needed > 3000  # GSM8K has 1,319 questions, GPQA-Diamond 198
    assert judgement.sentence.startswith("cannot tell apart at this sample size")


def test_the_same_items_are_paired() -> None:
    """Eight lost and none gained is seen in 40 paired items, while two independent samples would not show it."""
    before, after = outcome("+" * 36 + "-" * 4), outcome("-" * 8 + "+" * 28 + "-" * 4)
    judgement = judge_outcomes(before, after)
    assert (judgement.lost, judgement.gained) == (8, 0)
    assert judgement.p_value == pytest.approx(2 / 256)
    assert judgement.significant
    assert judgement.sentence.startswith("worse: -0.200")


def test_other_items_are_independent_samples() -> None:
    judgement = judge_outcomes(outcome("+" * 36 + "-" * 4), outcome("+" * 28 + "-" * 12, prefix="other"))
    assert judgement.p_value is None
    assert judgement.method.startswith("independent")


def test_questions_asked_twice_are_paired_in_order() -> None:
    twice = outcome("++--")
    both = Outcome(**{**vars(twice), "items": tuple(Item(id="same", right=item.right) for item in twice.items)})
    assert judge_outcomes(both, both).items == 4


def test_no_number_of_items_shows_no_difference() -> None:
    assert items_to_show(0.9, 0.0) is None
