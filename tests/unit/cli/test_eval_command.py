"""`deploy eval`: what happens around the questions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.evals import evaluate
from orchestrator.commands.bench import MeasuredTarget, url_target
from orchestrator.commands.evals import EvalOptions, evaluate_beside, require_sampling, what_it_can_tell
from orchestrator.commands.runs import load_outcome
from orchestrator.core.errors import BenchError
from orchestrator.core.paths import Home
from orchestrator.evals import find_suite
from orchestrator.plan import Hazard
from orchestrator.results import Item, Outcome

OUTCOME = Outcome(
    schema_version=1,
    suite="gsm8k",
    task="gsm8k",
    metric="exact_match,flexible-extract",
    model="tiny",
    harness="lm-eval 0.4.13",
    command="deploy eval tiny",
    items=(Item(id="1", right=True), Item(id="2", right=False)),
)
TARGET = url_target("http://127.0.0.1:1", gpus=None, api_key_env=None)


def test_the_way_to_a_far_server_is_open_until_the_last_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    @contextmanager
    def fleet(_home: object, host: str) -> Iterator[str]:
        steps.append(f"connected to {host}")
        yield "servers"
        steps.append("closed")

    def asked(*_: object, **__: object) -> Outcome:
        steps.append("asked")
        return OUTCOME

    monkeypatch.setattr("orchestrator.commands.evals.fleet", fleet)
    monkeypatch.setattr("orchestrator.commands.evals.server_target", lambda _servers, _name: TARGET)
    monkeypatch.setattr("orchestrator.commands.evals.run_eval", asked)
    evaluate("tiny", suite="gsm8k", host="ssh://node", output=tmp_path)

    assert steps == ["connected to ssh://node", "asked", "closed"]
    assert (tmp_path / "eval-gsm8k.json").is_file()


GREEDY = Hazard(id="speculation-is-greedy", what="every request is decoded greedily", source="", hint="use 0.5.21")


@pytest.mark.parametrize(
    ("suite", "hazards", "taken"),
    [("gpqa-diamond", (GREEDY,), False), ("gpqa-diamond", (), True), ("gsm8k", (GREEDY,), True)],
)
def test_a_suite_that_samples_is_not_asked_of_a_server_that_cannot(
    suite: str, hazards: tuple[Hazard, ...], taken: bool
) -> None:
    target = replace(TARGET, hazards=hazards)
    if taken:
        require_sampling(target, find_suite(suite))
        return
    with pytest.raises(BenchError, match="and this server cannot") as caught:
        require_sampling(target, find_suite(suite))
    assert "use 0.5.21" in caught.value.hint


def test_a_baseline_that_is_a_server_is_asked_the_same_and_kept_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, object]] = []

    def ask(target: MeasuredTarget, options: EvalOptions, **_: object) -> Outcome:
        asked.append((target.url, options.limit))
        return OUTCOME if target.url.endswith(":1") else replace(OUTCOME, items=(Item(id="1", right=True),) * 2)

    monkeypatch.setattr("orchestrator.commands.evals.run_eval", ask)
    evaluate("http://127.0.0.1:1", suite="gsm8k", limit=200, baseline="http://127.0.0.1:2", output=tmp_path)
    assert asked == [("http://127.0.0.1:1", 200), ("http://127.0.0.1:2", 200)]
    assert load_outcome(tmp_path / "eval-gsm8k.json") == OUTCOME
    assert load_outcome(tmp_path / "baseline" / "eval-gsm8k.json").score == 1.0
    said = capsys.readouterr()
    assert "against http://127.0.0.1:2: cannot tell apart at this sample size: -0.500" in said.out
    assert "200 questions of `gsm8k` show a difference of 0.055 or more near 0.96 (80 % power)" in said.err
    assert "all 1,319 show 0.021" in said.err


def test_nobody_is_asked_where_the_baseline_cannot_sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("orchestrator.commands.evals.run_eval", lambda *_, **__: pytest.fail("it was asked"))
    options = EvalOptions(suite="gpqa-diamond", limit=None, data=None, command="", output=tmp_path)
    greedy = replace(TARGET, hazards=(GREEDY,))
    with pytest.raises(BenchError, match="and this server cannot"):
        evaluate_beside(TARGET, greedy, None, options, home=Home(tmp_path), say=print)


def test_what_a_sample_can_tell_is_worst_where_no_score_is_known() -> None:
    told = what_it_can_tell(find_suite("gpqa-diamond"), limit=None, near=None)
    assert told == "198 questions of `gpqa-diamond` show a difference of 0.141 or more near 0.5 (80 % power)"
    assert what_it_can_tell(find_suite("gpqa-diamond"), limit=500, near=None) == told
