"""Test the confidence of a change between repeated and single runs."""

import pytest

from orchestrator.bench.confidence import Change, Estimate, change, estimate


def estimate_of(*values: float) -> Estimate:
    result = estimate(values)
    assert result is not None
    return result


def test_confidence_interval_requires_several_runs() -> None:
    """For 10, 11 and 12: mean 11, deviation 1, margin 4.303 / sqrt(3)."""
    three = estimate_of(10, 11, 12)
    assert (three.mean, three.margin) == pytest.approx((11, 2.4843), abs=1e-3)
    assert estimate_of(10).margin is None
    assert estimate(()) is None


def test_change_significance_follows_welch() -> None:
    """Source: scipy 1.17, `ttest_ind(equal_var=False).confidence_interval()`, gives -0.788 to 5.454 with 3.45 degrees
    of freedom; 3 degrees, the whole number used here, give -1.021 to 5.688.
    """
    difference = change(estimate_of(10, 11, 12), estimate_of(12, 13, 15))
    assert difference is not None
    assert difference.low is not None
    assert difference.high is not None
    assert difference.share == pytest.approx(7 / 33)
    assert difference.low * 11 == pytest.approx(-1.0213, abs=1e-3)
    assert difference.high * 11 == pytest.approx(5.6879, abs=1e-3)
    assert difference.is_significant is False
    more = change(estimate_of(10, 10.1, 9.9), estimate_of(12, 12.1, 11.9))
    assert more is not None
    assert more.is_significant is True


def test_change_between_single_runs_has_unknown_significance() -> None:
    assert change(estimate_of(10), estimate_of(12)) == Change(share=pytest.approx(0.2))
    assert Change(share=0.25).is_significant is None


def test_single_run_uses_noise_of_repeated_runs() -> None:
    """Student's test of 10 against 12 and 13: deviation 0.7071, 1 degree of freedom, 2.5 ± 12.706 × 0.7071 × √1.5."""
    difference, back = change(estimate_of(10), estimate_of(12, 13)), change(estimate_of(12, 13), estimate_of(10))
    assert difference is not None
    assert back is not None
    assert (difference.low, difference.high) == pytest.approx((-0.8504, 1.3504), abs=1e-3)
    assert back.is_significant is False
    clear = change(estimate_of(10.0, 10.01), estimate_of(20.0))
    assert clear is not None
    assert clear.is_significant is True


def test_identical_runs_have_no_noise() -> None:
    difference = change(estimate_of(10, 10), estimate_of(11, 11))
    assert difference is not None
    assert difference.is_significant is True
    assert (difference.low, difference.high) == pytest.approx((0.1, 0.1))


def test_change_from_zero_is_undefined() -> None:
    assert change(estimate_of(0, 0), estimate_of(1, 2)) is None
