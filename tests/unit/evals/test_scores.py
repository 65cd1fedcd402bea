"""Test the significance of score differences against worked examples from the literature."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.bench.published import load_published
from orchestrator.evals.eval_result import AnsweredQuestion, EvalResult
from orchestrator.evals.significance import (
    compare_independent,
    compare_results,
    independent_interval,
    paired_interval,
    required_sample_size,
    score_interval,
    sign_flip,
    wilson,
)


def result_of(answers: str, *, prefix: str = "q") -> EvalResult:
    """Return a result whose answers are correct (`+`) or wrong (`-`)."""
    items = tuple(
        AnsweredQuestion(id=f"{prefix}{index}", correct=answer == "+") for index, answer in enumerate(answers)
    )
    return EvalResult(
        schema_version=3, suite="gsm8k", task="gsm8k", metric="exact_match", model="m", harness="h", command="c",
        answered=items,
    )  # fmt: skip


def test_wilson_interval_matches_newcombe() -> None:
    """Newcombe 1998, Stat Med 17:857, table I, method 3: 81 of 263 gives 0.2553 to 0.3662."""
    interval = wilson(81 / 263, 263)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)


def test_independent_interval_matches_newcombe() -> None:
    """Newcombe 1998, Stat Med 17:873, table II (a), method 10: 56/70 against 48/80 gives 0.0524 to 0.3339."""
    interval = independent_interval(baseline=48 / 80, candidate=56 / 70, sizes=(80, 70))
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.0524, 0.3339)


def changes(*, lost: int, gained: int, same: int = 0) -> list[Fraction]:
    return [Fraction(-1)] * lost + [Fraction(1)] * gained + [Fraction(0)] * same


@pytest.mark.parametrize(
    ("lost", "gained", "p"), [(0, 0, 1.0), (1, 1, 1.0), (0, 5, 2 / 32), (1, 9, 2 * 11 / 1024), (0, 1500, 0.0)]
)
def test_sign_flip_equals_exact_mcnemar_for_one_seed(lost: int, gained: int, p: float) -> None:
    assert sign_flip([changes(lost=lost, gained=gained, same=7)]) == pytest.approx(p)


def test_sign_flip_handles_several_seeds() -> None:
    """The sum of +1, +1/2 and -1/2 is 1; six of the eight sign choices give a sum at least as far from 0."""
    assert sign_flip([[Fraction(1), Fraction(1, 2), Fraction(-1, 2)]]) == pytest.approx(6 / 8)


def test_sign_flip_weights_domains_equally() -> None:
    """+1 of two tasks and -1 of four have the weights 2 and 1; all sums (3, 1, -1, -3) are at least 1 from 0."""
    small, large = changes(lost=0, gained=1, same=1), changes(lost=1, gained=0, same=3)
    assert sign_flip([small, large]) == 1.0
    assert sign_flip([small, changes(lost=0, gained=1, same=3)]) == pytest.approx(2 / 4)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_sign_flip_matches_full_enumeration(quarters: list[int]) -> None:
    sums = [abs(sum(signs)) for signs in product(*((total, -total) for total in quarters))]
    expected = sum(total >= abs(sum(quarters)) for total in sums) / len(sums)
    assert sign_flip([[Fraction(quarter, 4) for quarter in quarters]]) == pytest.approx(expected)


def test_sign_flip_uses_normal_approximation_for_large_sums() -> None:
    """All 9 changes in one direction give z = 3, which is p = 0.0027."""
    coprime = [[Fraction(1, 999_983)] * 9, [Fraction(0)] * 999_979]
    assert sign_flip(coprime) == pytest.approx(2 / 512)
    uneven = [Fraction(10**6 + excess, 10**6) for excess in range(9)]
    assert sign_flip([uneven]) == pytest.approx(0.0027, abs=1e-4)


@given(st.integers(0, 60), st.integers(0, 60))
def test_sign_flip_is_symmetric(lost: int, gained: int) -> None:
    forward, backward = ([changes(lost=one, gained=other, same=1)] for one, other in ((lost, gained), (gained, lost)))
    assert sign_flip(forward) == sign_flip(backward) <= 1


def test_paired_interval_matches_agresti_and_min() -> None:
    """14 lost and 5 gained of 100: (5.5 - 14.5) / 102 = -0.0882, ± 1.96 × sqrt(20 - 81 / 102) / 102 = 0.0842."""
    interval = paired_interval([changes(lost=14, gained=5, same=81)])
    assert (round(interval.low, 4), round(interval.high, 4)) == (-0.1724, -0.0040)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(80, 2000))
def test_paired_interval_contains_the_difference(lost: int, gained: int, items: int) -> None:
    interval = paired_interval([changes(lost=lost, gained=gained, same=items - lost - gained)])
    assert interval.low < (gained - lost) / items < interval.high


@pytest.mark.parametrize("suite", ["gsm8k", "gpqa-diamond"])
def test_published_score_differences_are_not_significant(suite: str) -> None:
    line = next(line for line in load_published("wafer-glm52").evals if line.suite == suite)
    assert line.samples is not None
    judgment = compare_independent(
        baseline=line.baseline.score, candidate=line.candidate.score, sizes=(line.samples, line.samples)
    )
    assert not judgment.significant
    assert judgment.detectable > 0.05  # the published differences are 0.010 and 0.019
    assert judgment.answers_needed is not None
    assert judgment.answers_needed > 3000  # GSM8K has 1,319 questions, GPQA-Diamond 198
    assert judgment.sentence.startswith("not significant at this sample size")


def test_results_on_same_questions_are_paired() -> None:
    """A loss of 8 in 40 is significant for paired questions, but not for two independent samples."""
    before, after = result_of("+" * 36 + "-" * 4), result_of("-" * 8 + "+" * 28 + "-" * 4)
    judgment = compare_results(before, after)
    assert (judgment.lost, judgment.gained) == (8, 0)
    assert judgment.p_value == pytest.approx(2 / 256)
    assert judgment.significant
    assert judgment.sentence.startswith("worse: -0.200")


def test_different_questions_are_independent_samples() -> None:
    judgment = compare_results(result_of("+" * 36 + "-" * 4), result_of("+" * 28 + "-" * 12, prefix="other"))
    assert judgment.p_value is None
    assert judgment.method.startswith("independent")


def test_duplicate_questions_are_paired_in_order() -> None:
    repeated = result_of("++--")
    result = EvalResult(
        **{
            **vars(repeated),
            "answered": tuple(AnsweredQuestion(id="same", correct=item.correct) for item in repeated.answered),
        }
    )
    assert compare_results(result, result).answers == 4


def seeded(*answers: str, group: str = "") -> tuple[AnsweredQuestion, ...]:
    """Return the answers (`+` or `-`) to the same questions, one text per seed."""
    return tuple(
        AnsweredQuestion(id=f"q{index}", correct=answer == "+", seed=seed, group=group)
        for seed, answered in enumerate(answers)
        for index, answer in enumerate(answered)
    )


def result_of_items(*items: AnsweredQuestion) -> EvalResult:
    return replace(result_of("+"), answered=items)


def test_effective_sample_size_reflects_seed_variation() -> None:
    """p = 3/4: with shares 1, 1, 1, 0 the variance is 3/16 and n = 4; with 1, 1, 1/2, 1/2 it is 1/16 and n = 12."""
    alike, other = result_of_items(*seeded("+++-", "+++-")), result_of_items(*seeded("+++-", "++-+"))
    assert (alike.score, other.score) == (0.75, 0.75)
    assert (alike.effective_answers, other.effective_answers) == (pytest.approx(4), pytest.approx(12))
    assert score_interval(alike) == wilson(0.75, alike.effective_answers)
    assert other.by_seed == {0: 0.75, 1: 0.75}


def test_single_seed_effective_size_is_question_count() -> None:
    assert result_of("+" * 190 + "-" * 10).effective_answers == pytest.approx(200)
    assert result_of("+" * 200).effective_answers == 200


def test_seeds_are_clustered_by_question() -> None:
    """Both seeds lose the same six questions: p = 2 / 2^6, while 12 separate pairs would give 2 / 2^12."""
    before, after = "+" * 20, "-" * 6 + "+" * 14
    judgment = compare_results(result_of_items(*seeded(before, before)), result_of_items(*seeded(after, after)))
    assert judgment.p_value == pytest.approx(2 / 2**6)
    assert (judgment.lost, judgment.gained, judgment.test) == (6, 0, "sign-flip")
    assert "clustered by question" in judgment.method


def test_different_seed_counts_are_independent_samples() -> None:
    one, two = result_of_items(*seeded("++-")), result_of_items(*seeded("++-", "+--"))
    assert compare_results(one, two).p_value is None


def test_domains_are_weighted_equally() -> None:
    """The score is 0.75 for 1 of 2 and 4 of 4, not 0.83 as for 5 of 6."""
    assert result_of_items(*seeded("+-", group="airline"), *seeded("++++", group="retail")).score == 0.75


def test_identical_answers_across_seeds_are_deterministic() -> None:
    alike = tuple(replace(item, answer="a" + item.id) for item in seeded("++-", "++-"))
    assert result_of_items(*alike).is_deterministic
    assert not result_of_items(replace(alike[0], answer="b"), *alike[1:]).is_deterministic
    assert not result_of_items(*seeded("++-", "++-")).is_deterministic, "answers without text cannot be compared"
    assert not result_of_items(*alike[:3]).is_deterministic, "one seed repeats no question"


def test_zero_difference_has_no_required_sample_size() -> None:
    assert required_sample_size(0.9, 0.0) is None
