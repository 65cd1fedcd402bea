"""What several runs tell, beside figures reckoned elsewhere."""

import pytest

from orchestrator.bench.confidence import Change, Estimate, change, estimate


def of(*values: float) -> Estimate:
    found = estimate(values)
    assert found is not None
    return found


def test_confidence_interval_requires_several_runs() -> None:
    """10, 11, 12: mean 11, deviation 1, and 4.303 / sqrt(3) on each side of it."""
    three = of(10, 11, 12)
    assert (three.mean, three.margin) == pytest.approx((11, 2.4843), abs=1e-3)
    assert of(10).margin is None
    assert estimate(()) is None


def test_change_significance_follows_welch() -> None:
    """scipy 1.17, `ttest_ind(equal_var=False).confidence_interval()` of these: -0.788 to 5.454 with 3.45 degrees of
    freedom; with 3, which ours takes, -1.021 to 5.688.
    """
    found = change(of(10, 11, 12), of(12, 13, 15))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.share == pytest.approx(7 / 33)
    assert found.low * 11 == pytest.approx(-1.0213, abs=1e-3)
    assert found.high * 11 == pytest.approx(5.6879, abs=1e-3)
    assert found.is_significant is False
    more = change(of(10, 10.1, 9.9), of(12, 12.1, 11.9))
    assert more is not None
    assert more.is_significant is True


def test_change_between_single_runs_has_unknown_significance() -> None:
    assert change(of(10), of(12)) == Change(share=pytest.approx(0.2))
    assert Change(share=0.25).is_significant is None


def test_single_run_uses_noise_of_repeated_runs() -> None:
    """Student's test of 10 and 12, 13: deviation 0.7071, 1 degree of freedom: 2.5 ± 12.706 × 0.7071 × √(1 + 1/2)."""
    found, back = change(of(10), of(12, 13)), change(of(12, 13), of(10))
    assert found is not None
    assert back is not None
    assert (found.low, found.high) == pytest.approx((-0.8504, 1.3504), abs=1e-3)
    assert back.is_significant is False
    clear = change(of(10.0, 10.01), of(20.0))
    assert clear is not None
    assert clear.is_significant is True


def test_identical_runs_have_no_noise() -> None:
    found = change(of(10, 10), of(11, 11))
    assert found is not None
    assert found.is_significant is True
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))


def test_change_from_zero_is_undefined() -> None:
    assert change(of(0, 0), of(1, 2)) is None
