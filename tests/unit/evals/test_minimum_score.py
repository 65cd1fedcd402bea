"""Test `--min-gsm8k`, the score that each replica needs before the next one is replaced."""

from pathlib import Path

import pytest

from orchestrator.bench.benchmark import BenchTarget
from orchestrator.bench.result import ServerProvenance
from orchestrator.core.errors import SmokeError
from orchestrator.core.paths import Home
from orchestrator.evals import run
from orchestrator.evals.eval_result import AnsweredQuestion, EvalResult

TARGET = BenchTarget(
    url="http://127.0.0.1:9", key=None, provenance=ServerProvenance(), warnings=(), kernel_gate=lambda: None
)


@pytest.fixture
def evaluated_suites(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Return the evaluated suites with their question limits; 19 of 20 answers are correct."""
    suites: list[tuple[str, int | None]] = []
    items = tuple(AnsweredQuestion(id=str(number), correct=number != 7) for number in range(20))

    def run_eval(_: BenchTarget, options: run.EvalOptions, **__: object) -> EvalResult:
        suites.append((options.suite, options.limit))
        scores = {
            "task": "gsm8k",
            "metric": "exact_match",
            "model": "tiny",
            "harness": "test",
            "command": "deploy",
        }
        return EvalResult(schema_version=3, suite=options.suite, answered=items, **scores)

    monkeypatch.setattr(run, "run_eval", run_eval)
    return suites


@pytest.mark.parametrize(("minimum", "passes"), [(0.95, True), (0.96, False)])
def test_replica_below_minimum_score_stops_rolling_update(
    minimum: float, passes: bool, evaluated_suites: list[tuple[str, int | None]], tmp_path: Path
) -> None:
    def ask() -> None:
        run.require_gsm8k(TARGET, minimum=minimum, name="replica 1 of 2", folder=tmp_path, home=Home(tmp_path))

    if passes:
        ask()
    else:
        with pytest.raises(SmokeError, match=r"replica 1 of 2 has a GSM8K score of 0[.]950"):
            ask()
    assert evaluated_suites == [("gsm8k", 200)], "the published number of questions"
    assert [path.name for path in tmp_path.iterdir()] == ["eval-gsm8k.json"], "the result is saved in both cases"
