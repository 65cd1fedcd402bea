"""The search: what Optuna is asked and told. Nothing is measured here, the objective is a formula."""

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.experiments.sweep.objective import Goal, Objective
from orchestrator.experiments.sweep.search import Search, Suggestion, SweepTrial, TrialOutcome
from orchestrator.experiments.sweep.space import SearchSpace, SweepParameter

SPACE = SearchSpace(
    parameters=(
        SweepParameter(key="flags.running", values=(1, 2, 4, 8, 16, 32)),
        SweepParameter(key="flags.policy", values=("lpm", "fcfs", None)),
        SweepParameter(key="flags.chunk", values=(512, 1024, 2048, 4096)),
    )
)
GOAL = Goal(objective=Objective.TOK_S, at_rps=2.0, ttft_p95_s=5.0)
PLANTED = 4  # running 16
OWN = {"flags.running": 1, "flags.policy": 0, "flags.chunk": 0}


def search(
    folder: Path, goal: Goal = GOAL, *, seed: int = 1, space: SearchSpace = SPACE, sweep_identity: str = "one"
) -> Search:
    return Search(folder / "journal.log", space, goal, seed=seed, sweep_identity={"profile": sweep_identity})


def tok_s(point: dict[str, int]) -> float:
    """16 running requests are best; the others matter little."""
    return 100.0 - 10 * abs(point["flags.running"] - PLANTED) + point["flags.policy"]


def go(found: Search, count: int, value: Callable[[dict[str, int]], float] = tok_s) -> list[dict[str, int]]:
    tried = []
    for _ in range(count):
        asked = found.ask(OWN)
        assert asked is not None
        point = dict(asked.point)
        tried.append(point)
        number = len(found.trials) + 1
        ended = SweepTrial(
            number=number,
            point=point,
            outcome=TrialOutcome.MEASURED,
            values=(value(point),),
            is_baseline=asked.is_baseline,
        )
        found.record_trial(asked, ended)
    return tried


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_search_finds_planted_optimum_within_20_trials(tmp_path: Path, seed: int) -> None:
    found = search(tmp_path, seed=seed)
    tried = go(found, 20)
    assert found.best()[0].point["flags.running"] == PLANTED
    assert tried[0] == OWN
    assert len({tuple(point.values()) for point in tried}) == 20, "no point is tried twice"
    weights = found.importances()
    assert max(weights, key=lambda key: weights[key]) == "flags.running"
    assert sum(weights.values()) == pytest.approx(1)


def test_search_resumes_from_its_journal(tmp_path: Path) -> None:
    first = go(search(tmp_path), 5)
    again = search(tmp_path)
    assert [dict(trial.point) for trial in again.trials] == first
    more = go(again, 5)
    assert not [point for point in more if point in first]
    assert [trial.is_baseline for trial in again.trials].count(True) == 1
    with pytest.raises(UsageError, match="started with another profile"):
        search(tmp_path, sweep_identity="two")


def test_every_point_is_tried_once(tmp_path: Path) -> None:
    small = SearchSpace(parameters=SPACE.parameters[1:2])
    found = search(tmp_path, space=small)
    tried = []
    while (asked := found.ask(None)) is not None:
        tried.append(asked.point["flags.policy"])
        found.record_trial(
            asked, SweepTrial(number=len(tried), point=asked.point, outcome=TrialOutcome.INFEASIBLE, reason="no room")
        )
    assert sorted(tried) == [0, 1, 2]
    assert found.best() == ()


def test_interrupted_or_killed_trial_is_repeated(tmp_path: Path) -> None:
    found = search(tmp_path)
    asked = found.ask(OWN)
    assert asked is not None
    found.record_trial(
        asked, SweepTrial(number=1, point=asked.point, outcome=TrialOutcome.INTERRUPTED, is_baseline=True)
    )
    killed = found.ask(OWN)
    assert killed is not None
    assert killed.point == OWN
    later = search(tmp_path)
    assert [trial.state.name for trial in later._study.trials] == ["FAIL", "FAIL"]
    again = later.ask(OWN)
    assert again is not None
    assert again.point == OWN


def test_trial_reported_before_kill_is_counted(tmp_path: Path) -> None:
    asked = search(tmp_path).ask(OWN)
    assert asked is not None
    ended = SweepTrial(number=1, point=asked.point, outcome=TrialOutcome.MEASURED, values=(5.0,), is_baseline=True)
    asked.trial.set_user_attr("outcome", asdict(ended))
    assert search(tmp_path).best() == (ended,)


def test_large_space_is_not_reported_exhausted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the search suggests nothing but what was tried already."""
    monkeypatch.setattr("orchestrator.experiments.sweep.search._MAX_SUGGESTIONS", 0)
    knobs = (
        SweepParameter(key="flags.chunk", values=tuple(range(200))),
        SweepParameter(key="flags.running", values=tuple(range(100))),
    )
    asked = search(tmp_path, space=SearchSpace(parameters=knobs)).ask(None)
    assert asked is not None
    assert asked.point.keys() == {"flags.chunk", "flags.running"}


@pytest.mark.parametrize("objective", [Objective.TOK_S, Objective.USD])
def test_trial_worse_than_others_is_pruned(tmp_path: Path, objective: Objective) -> None:
    goal = replace(GOAL, objective=objective)
    found, higher = search(tmp_path, goal), goal.higher_is_better[0]

    def asked() -> Suggestion:
        proposed = found.ask(None)
        assert proposed is not None
        return proposed

    for number in range(1, 5):
        other = asked()
        assert not any(other.should_prune(rung, float(rung), higher_is_better=higher) for rung in (1, 2, 3))
        found.record_trial(
            other, SweepTrial(number=number, point=other.point, outcome=TrialOutcome.MEASURED, values=(1.0,))
        )
    same, less = asked(), asked()
    assert not any(same.should_prune(rung, float(rung), higher_is_better=higher) for rung in (1, 2, 3))
    assert [less.should_prune(rung, held, higher_is_better=higher) for rung, held in ((1, 1.0), (2, 1.9))] == [
        False,
        True,
    ]


def test_lowest_price_is_best(tmp_path: Path) -> None:
    found = search(tmp_path, Goal(objective=Objective.USD, at_rps=None, ttft_p95_s=5.0))
    go(found, 6)
    assert found.best()[0].values[0] == min(trial.values[0] for trial in found.trials)


def test_pareto_front_contains_only_non_dominated_trials(tmp_path: Path) -> None:
    found = search(tmp_path, Goal(objective=Objective.PARETO, at_rps=None, ttft_p95_s=5.0))
    for values in ((10.0, 5.0), (20.0, 1.0), (9.0, 4.0)):
        asked = found.ask(None)
        assert asked is not None
        found.record_trial(asked, SweepTrial(number=1, point=asked.point, outcome=TrialOutcome.MEASURED, values=values))
    assert [trial.values for trial in found.best()] == [(20.0, 1.0), (10.0, 5.0)]


@pytest.mark.parametrize("written", ["no json\n{}\n", '{"op_code": 99}\n', "[]\n"])
def test_foreign_journal_is_rejected(tmp_path: Path, written: str) -> None:
    (tmp_path / "journal.log").write_text(written)
    with pytest.raises(UsageError, match="cannot read the journal"):
        search(tmp_path)


@pytest.mark.parametrize("record", ["outcome", "confirmed"])
def test_journal_record_of_another_version_is_rejected(tmp_path: Path, record: str) -> None:
    first = search(tmp_path)
    go(first, 1)
    old = {"number": 1, "outcome": "measured", "values": [1.0]}  # without the point
    if record == "confirmed":
        first._study.set_user_attr(record, [old])
    else:
        asked = first.ask(None)
        assert asked is not None
        assert asked.trial is not None
        asked.trial.set_user_attr(record, old)
    with pytest.raises(UsageError, match="written by another version") as error:
        search(tmp_path)
    assert error.value.hint == "use another `--output`"


def test_missing_optuna_hints_at_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="not installed") as error:
        search(tmp_path)
    assert "`uv tool install '.[sweep]'` in a clone" in error.value.hint
