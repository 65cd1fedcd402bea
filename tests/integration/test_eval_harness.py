"""Run the real lm-evaluation-harness against a model that adds two numbers and errs on purpose."""

import csv
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cpu_server import CpuServer
from parallel import in_parallel

from orchestrator.bench.benchmark import BenchTarget
from orchestrator.core import subprocesses
from orchestrator.core.errors import BenchError
from orchestrator.core.paths import Home
from orchestrator.evals.eval_result import EvalResult, eval_result_to_json, load_eval_result
from orchestrator.evals.harness import EvalRequest, argv, harness_python
from orchestrator.evals.report import compare_with_baseline
from orchestrator.evals.run import EvalOptions, run_eval, score_suite
from orchestrator.evals.significance import compare_results
from orchestrator.evals.suites import find_suite
from orchestrator.servers.targets import url_target

SUMS = [(number, 2 * number + 1) for number in range(12)]


@contextmanager
def adding_model(*wrong: int, remark: str = "It is so.") -> Iterator[BenchTarget]:
    """Serve an endpoint that answers a remark and `a + b`, or one more if `a` is in `wrong`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"data": [{"id": "adder"}]})

        def do_POST(self) -> None:
            prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
            a, b = map(int, re.findall(r"\d+", prompt.rpartition("Question:")[2]))
            text = f" {remark}\n#### {a + b + (a in wrong)}"
            self._answer({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}], "usage": {}})

        def _answer(self, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the standard library's
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield url_target(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    lines = [json.dumps({"question": f"What is {a} + {b}?", "answer": f"#### {a + b}"}) for a, b in SUMS]
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:6]) + "\n")
    (tmp_path / "test.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "test.jsonl"


@pytest.fixture
def ask(engine_home: Home, questions: Path) -> Callable[..., EvalResult]:
    """Return a function that evaluates a target; the first call builds the environment of the harness."""

    def evaluate(
        target: BenchTarget, *, limit: int | None = None, notify: Callable[[str], None] = lambda _: None
    ) -> EvalResult:
        options = EvalOptions(
            target=target.url,
            suite="gsm8k",
            limit=limit,
            dataset=questions,
            command="deploy eval",
            output=questions.parent,
        )
        return run_eval(target, options, home=engine_home, notify=notify)

    return evaluate


@pytest.mark.slow
def test_score_counts_correct_answers_and_comparison_is_paired(
    ask: Callable[..., EvalResult], request: pytest.FixtureRequest
) -> None:
    with adding_model(3) as good, adding_model(3, 5, 8) as worse:
        before = ask(good)  # with the unmodified harness
        request.getfixturevalue("quick_harness")
        after = ask(worse)
    assert before.score == pytest.approx(11 / 12)
    assert after.score == pytest.approx(9 / 12)
    assert before.model == "adder"
    judgment = compare_results(before, after)
    assert (judgment.lost, judgment.gained, judgment.p_value) == (2, 0, 0.5)
    assert not judgment.significant


@pytest.fixture
def quick_harness(engine_home: Home, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the task index of the harness, which reads 14,000 files at each start (12 s of CPU time).

    The task files of this tool include the harness's tasks by their paths.
    """
    python = harness_python(engine_home)
    harness = next(python.parent.parent.glob("lib/python*/site-packages/lm_eval"))
    package = tmp_path_factory.mktemp("harness") / "lm_eval"
    (package / "tasks").mkdir(parents=True)
    for path in (*harness.iterdir(), *harness.glob("tasks/*.py")):
        if path.name != "tasks":
            (package / path.relative_to(harness)).symlink_to(path)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


@pytest.fixture
def choices(tmp_path: Path) -> Path:
    """Write a file in the format of `gpqa_diamond.csv`."""
    wrong = [f"Incorrect Answer {number}" for number in (1, 2, 3)]
    with (tmp_path / "gpqa_diamond.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["Question", "Correct Answer", *wrong])
        writer.writeheader()
        for a, b in SUMS:
            wrong_answers = {name: f"{a + b + off} apples" for off, name in enumerate(wrong, start=1)}
            writer.writerow({"Question": f"What is {a} + {b}?", "Correct Answer": f"{a + b} apples", **wrong_answers})
    return tmp_path / "gpqa_diamond.csv"


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.usefixtures("quick_harness")
def test_real_server_is_compared_with_baseline_per_question(
    server: CpuServer, engine_home: Home, questions: Path, choices: Path, tmp_path: Path
) -> None:
    """The real server has random weights and knows no answer; the adder knows all. Each seed samples other answers."""
    output = tmp_path / "out"
    options = EvalOptions(
        target="tiny", suite="gsm8k", limit=6, dataset=questions, command="deploy eval", output=output
    )
    sampled = replace(options, suite="gpqa-diamond", dataset=choices, max_tokens=32)
    real = url_target(server.url)

    def run_both_seeds() -> EvalResult:
        score_suite(real, sampled, sampled.output, home=engine_home, notify=print)
        both = replace(sampled, seeds=2, resume=True)
        return score_suite(real, both, both.output, home=engine_home, notify=print)[0]

    with (
        adding_model() as adder,
        in_parallel(
            {
                "real": partial(score_suite, real, options, options.output, home=engine_home, notify=print),
                "adder": partial(score_suite, adder, options, tmp_path / "before", home=engine_home, notify=print),
                "seeds": run_both_seeds,
            }
        ) as result_of,
    ):
        (outcome, file), (before, _), drawn = result_of("real"), result_of("adder"), result_of("seeds")
    assert (list(drawn.by_seed), len(drawn.answers), len(drawn.answered)) == ([1234, 1235], 6, 12)
    assert not drawn.is_deterministic
    assert load_eval_result(tmp_path / "out" / "eval-gpqa-diamond.json") == drawn
    assert (outcome.model, outcome.score, len(outcome.answered)) == ("tiny", 0.0, 6)
    assert load_eval_result(file) == outcome
    comparison = compare_with_baseline(outcome, before, location="adder")
    assert (comparison.lost, comparison.gained, comparison.significant) == (6, 0, True)
    print(comparison.sentence)


@pytest.mark.usefixtures("quick_harness")
def test_hostile_answers_are_discarded_and_damaged_dataset_fails(
    ask: Callable[..., EvalResult], questions: Path, engine_home: Home
) -> None:
    """Only the correctness of each answer is stored, and the harness prints no answers."""
    lines: list[str] = []
    damaged = questions.parent / "damaged"
    damaged.mkdir()
    for name in ("test.jsonl", "train.jsonl"):
        (damaged / name).write_text("no JSON\n")
    options = EvalOptions(target="adder", suite="gsm8k", dataset=damaged, command="deploy eval", output=damaged)
    with (
        adding_model(remark="\x1b]0;OWNED\x07 <script>OWNED</script> Authorization: Bearer OWNED") as target,
        in_parallel(
            {
                "hostile": partial(ask, target, limit=5, notify=lines.append),
                "damaged": partial(run_eval, target, options, home=engine_home, notify=lambda _: None),
            }
        ) as result_of,
    ):
        outcome = result_of("hostile")
        with pytest.raises(BenchError) as caught:
            result_of("damaged")
    assert [item.correct for item in outcome.answered] == [True] * 5
    assert lines
    assert "OWNED" not in eval_result_to_json(outcome) + "\n".join(lines)
    assert "exit code 1" in caught.value.message
    assert "Error" in caught.value.details


def test_harness_memory_is_limited(tmp_path: Path) -> None:
    """The harness stores answers of any length: without the limit, 6 GB within a minute."""
    suite, python = find_suite("gsm8k"), Path(sys.executable)
    request = EvalRequest(python=python, suite=suite, url="", model="", key=None, limit=None, data=None, command="")
    command = argv(request, task="gsm8k", work=tmp_path)
    limited = command[: command.index(sys.executable) + 1]
    done = subprocesses.run([*limited, "-c", "bytes(1 << 30); bytes(9 << 30)"])
    assert (done.code, done.stderr.splitlines()[-1]) == (1, "MemoryError")
