"""What is read of a measurement, where, and when higher rates tell nothing more."""

from dataclasses import replace

import pytest
from measured_samples import point, single_stream, tp8

from orchestrator.experiments.sweep.objective import Goal, Objective


def goal(objective: Objective, at_rps: float | None = None, *, closed: bool = False) -> Goal:
    return Goal(objective=objective, at_rps=at_rps, ttft_p95_s=5.0, closed=closed)


def test_the_knee_and_a_rate() -> None:
    result = tp8()  # sustains 1.5, and 2 no more
    assert goal(Objective.KNEE).values(result) == (1.5,)
    assert goal(Objective.TOK_S).values(result) == (1.5 * 985,)
    assert goal(Objective.TOK_S, at_rps=2.0).values(result) == (1480.0,)
    user = goal(Objective.PARETO).values(result)
    assert user is not None
    assert user[0] == 1.5 * 985
    assert goal(Objective.TOK_S, closed=True).values(single_stream()) is not None


def test_what_was_not_measured_has_no_value() -> None:
    none_sustained = replace(tp8(), knee_rps=None)
    assert goal(Objective.KNEE).values(none_sustained) == (0.0,)
    assert goal(Objective.TOK_S).values(none_sustained) is None
    assert goal(Objective.TOK_S).missing(none_sustained) == "no rate was sustained"
    assert goal(Objective.TOK_S, at_rps=9).missing(tp8()) == "9 requests/s was not measured"
    unpriced = replace(tp8(), points=tuple(replace(p, usd_per_million_output_tokens=None) for p in tp8().points))
    assert goal(Objective.USD).values(unpriced) is None
    assert goal(Objective.USD).missing(unpriced).startswith("$/M output tok was not measured")
    assert goal(Objective.USD).higher_is_better == (False,)


def test_the_ladder_ends_where_the_knee_is_known() -> None:
    below = replace(tp8(), points=tp8().points[:3])
    assert [goal(Objective.KNEE).known_now(result) for result in (below, tp8())] == [False, True]
    assert not goal(Objective.TOK_S, at_rps=2.0).known_now(tp8())


@pytest.mark.parametrize(
    ("p95", "success", "completed", "held"), [(0.5, 1.0, 1.0, 1.0), (10.0, 1.0, 1.0, 0.5), (0.5, 0.96, 0.5, 0.5)]
)
def test_noise_tells_no_two_apart(p95: float, success: float, completed: float, held: float) -> None:
    found = replace(point(1.0, 0.4, p95), success_share=success, completion_ratio=completed)
    assert goal(Objective.KNEE).held(found) == pytest.approx(held)
