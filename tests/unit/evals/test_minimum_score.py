"""`--min-gsm8k`: what each replica has to score before the next one is replaced."""

from pathlib import Path

import pytest

from orchestrator.bench.result import ServerProvenance
from orchestrator.bench.run import BenchTarget
from orchestrator.core.errors import SmokeError
from orchestrator.core.paths import Home
from orchestrator.evals import run
from orchestrator.evals.eval_result import AnsweredQuestion, EvalResult

TARGET = BenchTarget(
    url="http://127.0.0.1:9", key=None, provenance=ServerProvenance(), warnings=(), kernel_gate=lambda: None
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """The suites that were asked, each with how many questions; nineteen of twenty answers are right."""
    seen: list[tuple[str, int | None]] = []
    items = tuple(AnsweredQuestion(id=str(number), correct=number != 7) for number in range(20))

    def run_eval(_: BenchTarget, options: run.EvalOptions, **__: object) -> EvalResult:
        seen.append((options.suite, options.limit))
        scores = {
            "task": "gsm8k",
            "metric": "exact_match",
            "model": "tiny",
            "harness": "of this test",
            "command": "deploy",
        }
        return EvalResult(schema_version=2, suite=options.suite, items=items, **scores)

    monkeypatch.setattr(run, "run_eval", run_eval)
    return seen


@pytest.mark.parametrize(("least", "enough"), [(0.95, True), (0.96, False)])
def test_replica_below_minimum_score_stops_rolling_update(
    least: float, enough: bool, asked: list[tuple[str, int | None]], tmp_path: Path
) -> None:
    def ask() -> None:
        run.require_gsm8k(TARGET, minimum=least, name="replica 1 of 2", folder=tmp_path, home=Home(tmp_path))

    if enough:
        ask()
    else:
        with pytest.raises(SmokeError, match=r"replica 1 of 2 has a GSM8K score of 0[.]950"):
            ask()
    assert asked == [("gsm8k", 200)], "as many as were published"
    assert [path.name for path in tmp_path.iterdir()] == ["eval-gsm8k.json"], "kept either way"
