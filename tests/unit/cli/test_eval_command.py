"""Test `deploy eval` around the harness: options, resumption, baselines and estimates."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import tp4dp2

from orchestrator.bench import metrics
from orchestrator.bench.benchmark import BenchTarget
from orchestrator.bench.result import ServerProvenance
from orchestrator.cli.eval import command as evaluate
from orchestrator.core.errors import BenchError, Interrupted, UsageError
from orchestrator.core.paths import Home
from orchestrator.engine.client import EngineClient
from orchestrator.engine.responses import UnauthorizedError
from orchestrator.evals.eval_result import AnsweredQuestion, EvalResult, load_eval_result
from orchestrator.evals.forecast import describe_sensitivity, find_pace
from orchestrator.evals.report import SuiteScore
from orchestrator.evals.run import (
    EvalOptions,
    require_sampling,
    run_suites,
    save_eval_result,
    served_model,
)
from orchestrator.evals.suites import find_suite
from orchestrator.plan.plan import PlanWarning
from orchestrator.planner.planning import load
from orchestrator.servers.targets import url_target

RESULT = EvalResult(
    schema_version=3,
    suite="gsm8k",
    task="gsm8k",
    metric="exact_match,flexible-extract",
    model="tiny",
    harness="lm-eval 0.4.13",
    command="deploy eval tiny",
    answered=(AnsweredQuestion(id="1", correct=True), AnsweredQuestion(id="2", correct=False)),
)
TARGET = url_target("http://127.0.0.1:1")


def test_remote_connection_stays_open_during_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    @contextmanager
    def fleet(_home: object, host: str, *, name: str) -> Iterator[str]:
        assert name == "tiny"
        steps.append(f"connected to {host}")
        yield "servers"
        steps.append("closed")

    def run_eval(*_: object, **__: object) -> EvalResult:
        steps.append("evaluated")
        return RESULT

    monkeypatch.setattr("orchestrator.servers.targets.open_servers", fleet)
    monkeypatch.setattr("orchestrator.servers.targets.server_target", lambda _servers, _name: TARGET)
    monkeypatch.setattr("orchestrator.evals.run.run_eval", run_eval)
    evaluate("tiny", suite="gsm8k", host="ssh://node", output=tmp_path)

    assert steps == ["connected to ssh://node", "evaluated", "closed"]
    assert (tmp_path / "eval-gsm8k.json").is_file()


GREEDY = PlanWarning(
    id="speculation-is-greedy", summary="every request is decoded greedily", source="", hint="use 0.5.21"
)


@pytest.mark.parametrize(
    ("suite", "warnings", "accepted"),
    [("gpqa-diamond", (GREEDY,), False), ("gpqa-diamond", (), True), ("gsm8k", (GREEDY,), True)],
)
def test_sampled_suite_is_rejected_for_greedy_only_server(
    suite: str, warnings: tuple[PlanWarning, ...], accepted: bool
) -> None:
    target = replace(TARGET, warnings=warnings)
    if accepted:
        require_sampling(target, find_suite(suite))
        return
    with pytest.raises(BenchError, match="which the server cannot") as caught:
        require_sampling(target, find_suite(suite))
    assert "use 0.5.21" in caught.value.hint


def test_baseline_server_is_evaluated_with_same_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[tuple[str, object]] = []

    def ask(target: BenchTarget, options: EvalOptions, **_: object) -> EvalResult:
        requests.append((target.url, options.limit))
        return (
            RESULT
            if target.url.endswith(":1")
            else replace(RESULT, answered=(AnsweredQuestion(id="1", correct=True),) * 2)
        )

    monkeypatch.setattr("orchestrator.evals.run.run_eval", ask)
    evaluate("http://127.0.0.1:1", suite="gsm8k", limit=200, baseline="http://127.0.0.1:2", output=tmp_path)
    assert requests == [("http://127.0.0.1:1", 200), ("http://127.0.0.1:2", 200)]
    assert load_eval_result(tmp_path / "eval-gsm8k.json") == RESULT
    assert load_eval_result(tmp_path / "baseline" / "eval-gsm8k.json").score == 1.0
    captured = capsys.readouterr()
    assert "against http://127.0.0.1:2: not significant at this sample size: -0.500" in captured.out
    assert "200 questions of `gsm8k` show a difference of 0.055 or more near 0.96 (80 % power)" in captured.err
    assert "all 1,319 show 0.021" in captured.err


def test_suite_is_rejected_if_baseline_cannot_sample(tmp_path: Path) -> None:
    targets = {"new": TARGET, "old": replace(TARGET, warnings=(GREEDY,))}
    options = EvalOptions(target="new", baseline="old", suite="gpqa-diamond", command="deploy eval", output=tmp_path)
    with pytest.raises(BenchError, match="which the server cannot"):
        run_suites(options, Home(tmp_path), targets.__getitem__, print)


class FakeHarness:
    """A harness that answers three questions per seed as in `answers`; it may be interrupted."""

    def __init__(self, *answers: str, interrupted_at: int | None = None) -> None:
        self.answers = answers
        self.interrupted_at = interrupted_at
        self.seeds: list[int | None] = []

    def __call__(self, _: BenchTarget, options: EvalOptions, *, seed: int | None, **__: object) -> EvalResult:
        self.seeds.append(seed)
        if seed is not None and seed == self.interrupted_at:
            raise KeyboardInterrupt
        answers = self.answers[(seed or 1234) - 1234]
        items = tuple(
            AnsweredQuestion(id=f"q{index}", correct=answer == "+", seed=seed, answer=f"{answers}{index}")
            for index, answer in enumerate(answers)
        )
        suite = options.resolved_suite
        return replace(RESULT, suite=suite.name, answered=items, limit=options.limit, max_tokens=suite.max_tokens)


def gpqa(tmp_path: Path, **options: object) -> None:
    evaluate("http://127.0.0.1:1", suite="gpqa-diamond", dataset=tmp_path / "q", output=tmp_path / "out", **options)  # type: ignore[arg-type]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    (tmp_path / "q").mkdir()
    for name in ("gpqa_diamond.csv", "test.jsonl", "train.jsonl"):
        (tmp_path / "q" / name).touch()
    return tmp_path / "q"


@pytest.mark.usefixtures("questions")
def test_interrupted_evaluation_resumes_with_remaining_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shares by question are 1, 1/3, 1/3: 0.2469 / (0.0988 / 3) is 7.5 answers; Wilson gives 0.5367 ± 0.2898."""
    monkeypatch.setattr("sys.argv", ["deploy", "eval", "x", "--suite", "gpqa-diamond", "--seeds", "3"])
    interrupted = FakeHarness("++-", "+--", "+-+", interrupted_at=1235)
    monkeypatch.setattr("orchestrator.evals.run.run_eval", interrupted)
    with pytest.raises(Interrupted) as caught:
        gpqa(tmp_path, seeds=3)
    assert caught.value.hint.startswith(f"the 3 answers in `{tmp_path}/out/eval-gpqa-diamond.json` are saved; ")
    assert "; `deploy eval x --suite gpqa-diamond " in caught.value.hint
    assert caught.value.hint.endswith("--resume` continues")
    with pytest.raises(UsageError, match="already has a result"):
        gpqa(tmp_path, seeds=3)
    with pytest.raises(UsageError, match="the previous run used no `--limit`"):
        gpqa(tmp_path, seeds=3, limit=2, resume=True)
    with pytest.raises(UsageError, match="used `--max-tokens 32768`"):
        gpqa(tmp_path, seeds=3, max_tokens=64, resume=True)
    resumed = FakeHarness("", "+--", "+-+")
    monkeypatch.setattr("orchestrator.evals.run.run_eval", resumed)
    capsys.readouterr()
    gpqa(tmp_path, seeds=3, resume=True)
    assert (interrupted.seeds, resumed.seeds) == ([1234, 1235], [1235, 1236])
    stdout = capsys.readouterr().out
    assert (
        "gpqa-diamond: 0.5556 of 3 questions x 3 seeds (0.667, 0.333, 0.667; spread 0.192), 95 % interval 0.247"
        in stdout
    )
    assert "to 0.827, clustered by question: effective sample size 8" in stdout


@pytest.mark.usefixtures("questions")
def test_resumed_evaluation_rejects_changed_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = FakeHarness("++-", "++-")
    monkeypatch.setattr("orchestrator.evals.run.run_eval", harness)
    gpqa(tmp_path)
    monkeypatch.setattr("orchestrator.evals.run.run_eval", lambda *a, **k: replace(harness(*a, **k), model="other"))
    with pytest.raises(BenchError, match="the model changed from `tiny` to `other`"):
        gpqa(tmp_path, seeds=2, resume=True)
    assert len(load_eval_result(tmp_path / "out" / "eval-gpqa-diamond.json").answered) == 3


@pytest.mark.parametrize(("model", "published"), [("zai-org/GLM-5.2-FP8", True), ("glm-5.2", True), ("tiny", False)])
def test_published_score_is_shown_only_for_same_model(model: str, published: bool, tmp_path: Path) -> None:
    score = SuiteScore(result=replace(RESULT, model=model), file=tmp_path, baseline=None, baseline_name=None)
    text = "\n".join(score.lines())
    assert ("against GLM-5.2 FP8 0.965 published" in text) is published
    assert (f"nothing is published for `{model}`; `--baseline` compares" in text) is not published
    assert bool(score.to_output().against) is published


@pytest.mark.usefixtures("questions")
def test_identical_answers_across_seeds_print_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.evals.run.run_eval", FakeHarness("++-", "++-"))
    gpqa(tmp_path, seeds=2)
    assert "all seeds gave identical answers to `gpqa-diamond`" in capsys.readouterr().err


def test_greedy_suite_rejects_multiple_seeds() -> None:
    with pytest.raises(UsageError, match="`gsm8k` is greedy; all seeds give the same answers"):
        evaluate("http://127.0.0.1:1", suite="gsm8k", seeds=2)


def test_published_suites_are_evaluated_as_published(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = FakeHarness("++-", "+-+")
    monkeypatch.setattr("orchestrator.evals.run.run_eval", harness)
    simulations = Path(__file__).parents[1] / "evals" / "recorded" / "tau2"
    evaluate(
        "http://127.0.0.1:1", suite="published", dataset=questions, output=tmp_path / "out", simulations=simulations
    )
    assert harness.seeds == [None, 1234, 1235]
    stdout = capsys.readouterr().out
    assert [line.partition(":")[0] for line in stdout.splitlines() if " of " in line] == [
        "gsm8k",
        "gpqa-diamond",
        "tau2",
    ]
    assert "against GLM-5.2 MXFP4 0.834 published: not comparable: no sample size was published" in stdout
    assert load_eval_result(tmp_path / "out" / "eval-gsm8k.json").limit == 200


def test_missing_tau2_baseline_is_rejected_before_asking(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = FakeHarness("++-", "+-+")
    monkeypatch.setattr("orchestrator.evals.run.run_eval", harness)
    recorded, copy = Path(__file__).parents[1] / "evals" / "recorded" / "tau2", tmp_path / "runs" / "glm-airline"
    shutil.copytree(recorded, copy)
    with pytest.raises(UsageError, match="no tau2 results named `fp8-DOMAIN` found"):
        evaluate(
            "glm",
            suite="published",
            dataset=questions,
            output=tmp_path / "out",
            baseline="fp8",
            simulations=copy.parent,
        )
    assert harness.seeds == []
    assert not (tmp_path / "out").exists()


def test_baseline_directory_needs_a_result_per_suite(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.evals.run.run_eval", FakeHarness("++-", "+-+"))
    options = {"suite": "published", "dataset": questions}
    evaluate("http://127.0.0.1:1", **options, output=tmp_path / "a")  # type: ignore[arg-type]
    (tmp_path / "a" / "eval-gpqa-diamond.json").rename(tmp_path / "moved.json")
    with pytest.raises(UsageError, match="no baseline result of `gpqa-diamond` found"):
        evaluate("http://127.0.0.1:1", **options, output=tmp_path / "b", baseline=str(tmp_path / "a"))  # type: ignore[arg-type]
    (tmp_path / "moved.json").rename(tmp_path / "a" / "eval-gpqa-diamond.json")
    capsys.readouterr()
    evaluate("http://127.0.0.1:1", **options, output=tmp_path / "b", baseline=str(tmp_path / "a"))  # type: ignore[arg-type]
    assert capsys.readouterr().out.count("not significant at this sample size: +0.000") == 2


def test_existing_result_is_rejected_before_asking(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check covers every suite and the baseline; it once came only after hours of questions."""
    monkeypatch.setattr("orchestrator.evals.run.run_eval", lambda *_, **__: pytest.fail("the harness must not run"))
    for folder in (tmp_path, tmp_path / "baseline"):
        folder.mkdir(exist_ok=True)
        (folder / "eval-gpqa-diamond.json").touch()
        with pytest.raises(UsageError, match="already has a result") as caught:
            evaluate(
                "http://127.0.0.1:1",
                suite="published",
                dataset=questions,
                output=tmp_path,
                baseline="http://127.0.0.1:2",
            )
        assert caught.value.location == str(folder / "eval-gpqa-diamond.json")
        (folder / "eval-gpqa-diamond.json").unlink()


def test_baseline_of_another_suite_is_rejected_before_asking(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.evals.run.run_eval", lambda *_, **__: pytest.fail("the harness must not run"))
    save_eval_result(RESULT, tmp_path)
    with pytest.raises(UsageError, match="the baseline is for `gsm8k`, not `gpqa-diamond`"):
        gpqa(tmp_path, baseline=str(tmp_path / "eval-gsm8k.json"))
    assert questions.is_dir()


def test_dry_run_estimates_duration_and_cost_of_suites(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """200 × 512 / 1944 + 60 = 112.7 s; 396 × 32768 / 1944 + 120 = 6794.9 s; both at 8 × 1.48 USD an hour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orchestrator.evals.run.run_eval", lambda *_, **__: pytest.fail("the harness must not run"))
    evaluate("mi355x-tp4dp2", suite="published", dry_run=True)
    captured = capsys.readouterr()
    assert [line.split()[-3:] for line in captured.out.splitlines()[1:]] == [
        ["2", "min", "0.37"],
        ["113", "min", "22.35"],
        ["115", "min", "22.72"],
    ]
    assert "all 1,319 show 0.021, in about 7 min" in captured.err
    assert "198 questions of `gpqa-diamond` x 2 seeds show a difference of 0.056 to 0.080 or more" in captured.err
    assert (
        "1,944 tok/s + 60 s a seed: most answers are shorter; tok/s published for TP4×DP2 on 8×MI355X" in captured.err
    )
    assert "`gpqa-diamond` cannot run: requests are decoded greedily during speculative decoding" in captured.err
    assert "this tool does not run `tau2`" in captured.err
    evaluate("mi355x-tp4dp2", suite="published", dry_run=True, json=True, baseline="http://127.0.0.1:2")
    report = json.loads(capsys.readouterr().out)
    assert [round(suite["estimated_s"]) for suite in report["suites"]] == [225, 13590], "both servers are evaluated"
    assert report["suites"][1]["cost"] == pytest.approx(2 * 6794.9 / 3600 * 8 * 1.48, rel=1e-4)


def test_measured_rate_takes_precedence_over_published_one(tmp_path: Path) -> None:
    plan = load("mi355x-tp4dp2").plan
    measured = tp4dp2()
    measured = replace(measured, run=replace(measured.run, provenance=ServerProvenance(plan_digest=plan.digest)))
    (tmp_path / "result.json").write_text(measured.to_json())
    best = max(metrics.OUTPUT.value_of(point) or 0.0 for point in measured.points)
    assert find_pace(plan, tmp_path).tok_s == best
    assert find_pace(plan, tmp_path).source.startswith(f"measured: best of `{measured.run.workload_name}`")
    assert find_pace(load("mi355x-tp8").plan, tmp_path).tok_s == 1461


def test_sensitivity_without_known_score_assumes_worst_case() -> None:
    text = describe_sensitivity(find_suite("gpqa-diamond"), limit=None, expected=None)
    assert text == "198 questions of `gpqa-diamond` show a difference of 0.141 or more near 0.5 (80 % power)"
    assert describe_sensitivity(find_suite("gpqa-diamond"), limit=500, expected=None) == text


def test_unauthorized_endpoint_hints_at_key_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: EngineClient) -> None:
        raise UnauthorizedError("`/v1/models` requires an API key (401)")

    monkeypatch.setattr(EngineClient, "models", fail)
    with pytest.raises(BenchError) as error:
        served_model(TARGET)
    assert error.value.hint == "name the variable of the key with `--api-key-env`"
