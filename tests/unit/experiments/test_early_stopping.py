"""Test that the rates of a trial end at its knee, or when the trial is worse than earlier ones."""

from dataclasses import replace
from pathlib import Path

from measured_samples import tp8

from orchestrator.bench.result import BenchResult, EndReason
from orchestrator.core.paths import Home
from orchestrator.experiments.sweep.objective import Objective
from orchestrator.experiments.sweep.run import Budget, SweepRequest, open_search, plan_sweep
from orchestrator.experiments.sweep.search import SweepTrial, TrialOutcome
from orchestrator.experiments.sweep.trial import _EarlyStopping


def result_after(count: int, *, success: float = 1.0) -> BenchResult:
    """Return a result after the first `count` rates, the last one with this success share."""
    points = tp8().points[:count]
    last = replace(points[-1], success_share=success, sustained=points[-1].sustained and success > 0.99)
    return replace(tp8(), points=(*points[:-1], last))


def test_early_stopping_ends_trial_at_knee_or_when_worse(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("flags: {max-running-requests: [4, 8, 16, 32, 64, 128]}\n")
    request = SweepRequest(
        profile="mi355x-tp8",
        space=tmp_path / "space.yaml",
        output=tmp_path / "out",
        budget=Budget(),
        workload="wafer-20k-1k",
        at_rps=2.0,
        objective=Objective.TOK_S,
    )
    sweep = plan_sweep(request, Home(tmp_path))
    with open_search(sweep) as search:
        for number in range(1, 5):
            suggestion = search.ask(None)
            assert suggestion is not None
            early_stopping = _EarlyStopping(sweep, suggestion)
            assert [early_stopping(result_after(count)) for count in (1, 2, 3)] == [None] * 3
            measured = SweepTrial(
                number=number, point=suggestion.point, outcome=TrialOutcome.MEASURED, values=(1000.0,)
            )
            search.record_trial(suggestion, measured)
        suggestion = search.ask(None)
        assert suggestion is not None
        worse = _EarlyStopping(sweep, suggestion)
        assert worse(result_after(1)) is None
        assert (worse(result_after(2, success=0.5)), worse.pruned) == (EndReason.INTERRUPTED, True)
        last = _EarlyStopping(sweep, suggestion)
        assert last(result_after(4, success=0.5)) is None, "the last rate leaves no time to save"
        knee = _EarlyStopping(
            plan_sweep(replace(request, at_rps=None, objective=Objective.KNEE), Home(tmp_path)), suggestion
        )
        assert (knee(tp8()), knee.pruned) == (EndReason.COMPLETE, False)
