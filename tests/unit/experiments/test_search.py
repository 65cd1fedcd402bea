"""Test the search with Optuna on a formula in place of measurements."""

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
OPTIMUM = 4  # index of `running` 16
PROFILE_POINT = {"flags.running": 1, "flags.policy": 0, "flags.chunk": 0}


def search(
    folder: Path, goal: Goal = GOAL, *, seed: int = 1, space: SearchSpace = SPACE, sweep_identity: str = "one"
) -> Search:
    return Search(folder / "journal.log", space, goal, seed=seed, sweep_identity={"profile": sweep_identity})


def tok_s(point: dict[str, int]) -> float:
    """Return a value that is best at 16 running requests; the other parameters matter little."""
    return 100.0 - 10 * abs(point["flags.running"] - OPTIMUM) + point["flags.policy"]


def run_trials(search_: Search, count: int, value: Callable[[dict[str, int]], float] = tok_s) -> list[dict[str, int]]:
    tried = []
    for _ in range(count):
        suggestion = search_.ask(PROFILE_POINT)
        assert suggestion is not None
        point = dict(suggestion.point)
        tried.append(point)
        number = len(search_.trials) + 1
        trial = SweepTrial(
            number=number,
            point=point,
            outcome=TrialOutcome.MEASURED,
            values=(value(point),),
            is_baseline=suggestion.is_baseline,
        )
        search_.record_trial(suggestion, trial)
    return tried


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_search_finds_optimum_within_20_trials(tmp_path: Path, seed: int) -> None:
    search_ = search(tmp_path, seed=seed)
    tried = run_trials(search_, 20)
    assert search_.best()[0].point["flags.running"] == OPTIMUM
    assert tried[0] == PROFILE_POINT
    assert len({tuple(point.values()) for point in tried}) == 20, "no point is tried twice"
    weights = search_.importances()
    assert max(weights, key=lambda key: weights[key]) == "flags.running"
    assert sum(weights.values()) == pytest.approx(1)


def test_search_resumes_from_its_journal(tmp_path: Path) -> None:
    first = run_trials(search(tmp_path), 5)
    resumed = search(tmp_path)
    assert [dict(trial.point) for trial in resumed.trials] == first
    more = run_trials(resumed, 5)
    assert not [point for point in more if point in first]
    assert [trial.is_baseline for trial in resumed.trials].count(True) == 1
    with pytest.raises(UsageError, match="started with another profile"):
        search(tmp_path, sweep_identity="two")


def test_every_point_is_tried_once(tmp_path: Path) -> None:
    small = SearchSpace(parameters=SPACE.parameters[1:2])
    search_ = search(tmp_path, space=small)
    tried = []
    while (suggestion := search_.ask(None)) is not None:
        tried.append(suggestion.point["flags.policy"])
        search_.record_trial(
            suggestion,
            SweepTrial(number=len(tried), point=suggestion.point, outcome=TrialOutcome.INFEASIBLE, reason="no room"),
        )
    assert sorted(tried) == [0, 1, 2]
    assert search_.best() == ()


def test_interrupted_or_killed_trial_is_repeated(tmp_path: Path) -> None:
    search_ = search(tmp_path)
    suggestion = search_.ask(PROFILE_POINT)
    assert suggestion is not None
    search_.record_trial(
        suggestion, SweepTrial(number=1, point=suggestion.point, outcome=TrialOutcome.INTERRUPTED, is_baseline=True)
    )
    killed = search_.ask(PROFILE_POINT)
    assert killed is not None
    assert killed.point == PROFILE_POINT
    resumed = search(tmp_path)
    assert [trial.state.name for trial in resumed._study.trials] == ["FAIL", "FAIL"]
    again = resumed.ask(PROFILE_POINT)
    assert again is not None
    assert again.point == PROFILE_POINT


def test_trial_reported_before_kill_is_counted(tmp_path: Path) -> None:
    suggestion = search(tmp_path).ask(PROFILE_POINT)
    assert suggestion is not None
    trial = SweepTrial(number=1, point=suggestion.point, outcome=TrialOutcome.MEASURED, values=(5.0,), is_baseline=True)
    suggestion.trial.set_user_attr("outcome", asdict(trial))
    assert search(tmp_path).best() == (trial,)


def test_large_space_is_not_reported_exhausted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search suggests only points that were already tried."""
    monkeypatch.setattr("orchestrator.experiments.sweep.search._MAX_SUGGESTIONS", 0)
    parameters = (
        SweepParameter(key="flags.chunk", values=tuple(range(200))),
        SweepParameter(key="flags.running", values=tuple(range(100))),
    )
    suggestion = search(tmp_path, space=SearchSpace(parameters=parameters)).ask(None)
    assert suggestion is not None
    assert suggestion.point.keys() == {"flags.chunk", "flags.running"}


@pytest.mark.parametrize("objective", [Objective.TOK_S, Objective.USD])
def test_trial_worse_than_others_is_pruned(tmp_path: Path, objective: Objective) -> None:
    goal = replace(GOAL, objective=objective)
    search_, higher = search(tmp_path, goal), goal.higher_is_better[0]

    def ask() -> Suggestion:
        proposed = search_.ask(None)
        assert proposed is not None
        return proposed

    for number in range(1, 5):
        other = ask()
        assert not any(other.should_prune(rung, float(rung), higher_is_better=higher) for rung in (1, 2, 3))
        search_.record_trial(
            other, SweepTrial(number=number, point=other.point, outcome=TrialOutcome.MEASURED, values=(1.0,))
        )
    same, worse = ask(), ask()
    assert not any(same.should_prune(rung, float(rung), higher_is_better=higher) for rung in (1, 2, 3))
    assert [worse.should_prune(rung, value, higher_is_better=higher) for rung, value in ((1, 1.0), (2, 1.9))] == [
        False,
        True,
    ]


def test_lowest_price_is_best(tmp_path: Path) -> None:
    search_ = search(tmp_path, Goal(objective=Objective.USD, at_rps=None, ttft_p95_s=5.0))
    run_trials(search_, 6)
    assert search_.best()[0].values[0] == min(trial.values[0] for trial in search_.trials)


def test_pareto_front_contains_only_non_dominated_trials(tmp_path: Path) -> None:
    search_ = search(tmp_path, Goal(objective=Objective.PARETO, at_rps=None, ttft_p95_s=5.0))
    for values in ((10.0, 5.0), (20.0, 1.0), (9.0, 4.0)):
        suggestion = search_.ask(None)
        assert suggestion is not None
        trial = SweepTrial(number=1, point=suggestion.point, outcome=TrialOutcome.MEASURED, values=values)
        search_.record_trial(suggestion, trial)
    assert [trial.values for trial in search_.best()] == [(20.0, 1.0), (10.0, 5.0)]


@pytest.mark.parametrize("content", ["no json\n{}\n", '{"op_code": 99}\n', "[]\n"])
def test_corrupt_journal_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "journal.log").write_text(content)
    with pytest.raises(UsageError, match="cannot read the journal"):
        search(tmp_path)


@pytest.mark.parametrize("record", ["outcome", "confirmed"])
def test_journal_record_of_another_version_is_rejected(tmp_path: Path, record: str) -> None:
    first = search(tmp_path)
    run_trials(first, 1)
    old = {"number": 1, "outcome": "measured", "values": [1.0]}  # without the point
    if record == "confirmed":
        first._study.set_user_attr(record, [old])
    else:
        suggestion = first.ask(None)
        assert suggestion is not None
        assert suggestion.trial is not None
        suggestion.trial.set_user_attr(record, old)
    with pytest.raises(UsageError, match="written by another version") as error:
        search(tmp_path)
    assert error.value.hint == "use another `--output`"


def test_missing_optuna_hints_at_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="not installed") as error:
        search(tmp_path)
    assert "`uv tool install '.[sweep]'` in a clone" in error.value.hint
