"""Test which metric of a measurement a sweep uses, and when higher rates are unnecessary."""

from dataclasses import replace

import pytest
from measured_samples import point, single_stream, tp8

from orchestrator.bench.result import BenchResult, ComparabilityIssue, IssueKind
from orchestrator.experiments.sweep.objective import Goal, Objective


def goal(objective: Objective, at_rps: float | None = None, *, closed: bool = False) -> Goal:
    return Goal(objective=objective, at_rps=at_rps, ttft_p95_s=5.0, closed=closed)


def test_objective_value_is_knee_or_rate_metric() -> None:
    result = tp8()  # 1.5 requests/s are sustained, 2 are not
    assert goal(Objective.KNEE).values(result) == (1.5,)
    assert goal(Objective.TOK_S).values(result) == (1.5 * 985,)
    assert replace(goal(Objective.TOK_S, at_rps=2.0), ttft_p95_s=99.0).values(result) == (1480.0,)
    values = goal(Objective.PARETO).values(result)
    assert values is not None
    assert values[0] == 1.5 * 985
    assert goal(Objective.TOK_S, closed=True).values(single_stream()) is not None


def test_unmeasured_objective_has_no_value() -> None:
    none_sustained = replace(tp8(), knee_rps=None)
    assert goal(Objective.KNEE).values(none_sustained) is None
    assert goal(Objective.TOK_S).values(none_sustained) is None
    for objective in (Objective.KNEE, Objective.TOK_S):
        assert goal(objective).overload(none_sustained) == "at 2 requests/s: TTFT grew by 0.21 s a second"
    unpriced = replace(tp8(), points=tuple(replace(p, usd_per_million_output_tokens=None) for p in tp8().points))
    assert goal(Objective.USD).values(unpriced) is None
    assert goal(Objective.USD).missing(unpriced).startswith("$/M output tok was not measured")
    assert goal(Objective.USD).higher_is_better == (False,)


def overloaded(*, p95: float, window: bool) -> BenchResult:
    late = replace(point(2.0, 0.4, p95), sustained=False, not_sustained_because=(f"TTFT p95 {p95:.2f} s exceeds 5 s",))
    return replace(tp8(), knee_rps=None, points=(late if window else replace(late, window=None),))


@pytest.mark.parametrize(("p95", "window"), [(17.2, True), (17.2, False), (1.0, False)])
def test_overloaded_setting_has_a_reason_instead_of_value(p95: float, window: bool) -> None:
    """Such a setting once ended the whole sweep with `output tok/s per node was not measured`."""
    result = overloaded(p95=p95, window=window)
    at_rate = goal(Objective.TOK_S, at_rps=2.0)
    assert at_rate.overload(result) == f"TTFT p95 {p95:.2f} s exceeds 5 s"


def test_rate_above_knee_counts_if_within_limits() -> None:
    result = overloaded(p95=1.0, window=True)
    assert goal(Objective.TOK_S, at_rps=2.0).overload(result) == ""
    assert goal(Objective.TOK_S, at_rps=2.0).values(result) is not None


def test_ladder_ends_once_knee_is_known() -> None:
    below = replace(tp8(), points=tp8().points[:3])
    assert [goal(Objective.KNEE).knee_found(result) for result in (below, tp8())] == [False, True]
    assert not goal(Objective.TOK_S, at_rps=2.0).knee_found(tp8())


@pytest.mark.parametrize(
    ("p95", "success", "completed", "attained"), [(0.5, 1.0, 1.0, 1.0), (10.0, 1.0, 1.0, 0.5), (0.5, 0.96, 0.5, 0.5)]
)
def test_attained_rate_drops_only_beyond_limits(p95: float, success: float, completed: float, attained: float) -> None:
    measured = replace(point(1.0, 0.4, p95), success_share=success, completion_ratio=completed)
    assert goal(Objective.KNEE).attained(measured) == pytest.approx(attained)


def test_client_lag_is_reported_for_relevant_points() -> None:
    lag = ComparabilityIssue(kind=IssueKind.CLIENT_LAGGED, detail="the load client was late", point="1")
    result = replace(tp8(), comparability_issues=(lag,))
    assert goal(Objective.KNEE).client_lag(result) == "the load client was late"
    assert goal(Objective.TOK_S, at_rps=1.0).client_lag(result) == "the load client was late"
    assert goal(Objective.TOK_S, at_rps=2.0).client_lag(result) == ""
    assert goal(Objective.KNEE).client_lag(tp8()) == ""
