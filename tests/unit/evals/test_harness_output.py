"""Test the command line, task files and output of lm-evaluation-harness (recorded from 0.4.13)."""

import json
from pathlib import Path

import pytest

from orchestrator.bench.result_files import load_result
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.secrets import Secret
from orchestrator.evals.eval_result import eval_result_file, eval_result_to_json, load_eval_result
from orchestrator.evals.harness import EvalRequest, argv, local_task, read_answers, read_eval_result
from orchestrator.evals.suites import find_suite

RECORDED = Path(__file__).parent / "recorded"
MODEL_ARGS = (
    "model=glm-5.2,base_url=http://127.0.0.1:30000/v1/completions,num_concurrent=32,max_retries=3,timeout=3600,"
    "tokenizer_backend=None,tokenized_requests=False"
)


def request(
    suite: str = "gsm8k", *, limit: int | None = None, data: Path | None = None, environment: Path = Path("/e")
) -> EvalRequest:
    return EvalRequest(
        python=environment / "bin/python",
        suite=find_suite(suite),
        url="http://127.0.0.1:30000/",
        model="glm-5.2",
        key=Secret("sk-not-to-be-shown"),
        limit=limit,
        data=data,
        command="deploy eval glm --suite gsm8k",
    )


def test_gsm8k_command_line_is_complete() -> None:
    line = argv(request(limit=200), task="gsm8k", work=Path("/w"))
    assert line == [
        *("prlimit", "--data=8589934592:"),
        *("/e/bin/python", "-P", "-m", "lm_eval", "run", "--model", "local-completions", "--model_args"),
        MODEL_ARGS,
        *("--tasks", "gsm8k", "--num_fewshot", "5"),
        *("--gen_kwargs", "temperature=0.0,do_sample=False,max_gen_toks=512"),
        *("--limit", "200", "--log_samples", "--output_path", "/w/out"),
    ]


def test_gpqa_uses_chat_template_and_published_sampling() -> None:
    line = argv(request("gpqa-diamond"), task="gpqa_diamond_cot_zeroshot", work=Path("/w"))
    assert "--apply_chat_template" in line
    assert "local-chat-completions" in line
    assert any("temperature=1.0,do_sample=True" in part for part in line)


def test_api_key_is_not_on_command_line() -> None:
    assert "sk-not-to-be-shown" not in " ".join(argv(request(), task="gsm8k", work=Path("/w")))


@pytest.mark.parametrize("file", ["samples_gsm8k.jsonl", "samples_gpqa_diamond.jsonl"])
def test_each_recorded_answer_is_read_once(file: str) -> None:
    """The harness writes each question once per filter; only one filter is the score."""
    text = (RECORDED / file).read_text()
    items = read_answers(text)
    assert len(text.splitlines()) == 2 * len(items) == 6
    assert sorted(item.correct for item in items) == [False, True, True]
    assert len({item.id for item in items}) == 3


def test_an_unknown_filter_is_an_error() -> None:
    with pytest.raises(BenchError, match="scored no answer"):
        read_answers((RECORDED / "samples_gsm8k.jsonl").read_text().replace("flexible-extract", "none"))


def test_eval_result_is_read_from_harness_output(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "glm-5.2"
    folder.mkdir(parents=True)
    (folder / "samples_gsm8k_2026-11-20T15-50-00.434455.jsonl").write_text(
        (RECORDED / "samples_gsm8k.jsonl").read_text()
    )
    (folder / "results_2026-11-20T15-50-00.434455.json").write_text('{"lm_eval_version": "0.4.13"}')
    result = read_eval_result(tmp_path, request(), task="gsm8k")
    assert result.harness == "lm-eval 0.4.13"
    assert result.score == pytest.approx(2 / 3)
    file = tmp_path / eval_result_file(result.suite)
    file.write_text(eval_result_to_json(result))
    assert load_eval_result(file) == result


def test_missing_harness_output_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="wrote no answers"):
        read_eval_result(tmp_path, request(), task="gsm8k")


def test_local_dataset_requires_few_shot_examples(tmp_path: Path) -> None:
    harness = tmp_path / "lib/python3.11/site-packages/lm_eval"
    harness.mkdir(parents=True)
    eval_request = request(environment=tmp_path)
    (tmp_path / "test.jsonl").touch()
    with pytest.raises(UsageError) as caught:
        local_task(eval_request, tmp_path / "test.jsonl")
    assert caught.value.location == str(tmp_path / "train.jsonl")
    (tmp_path / "train.jsonl").touch()
    task = json.loads(local_task(eval_request, tmp_path / "test.jsonl"))
    assert task["include"] == f"{harness}/tasks/gsm8k/gsm8k.yaml"
    assert task["dataset_kwargs"]["data_files"] == {
        "test": str(tmp_path / "test.jsonl"),
        "train": str(tmp_path / "train.jsonl"),
    }


def test_unknown_suite_lists_known_suites() -> None:
    with pytest.raises(UsageError) as caught:
        find_suite("mmlu")
    assert "gpqa-diamond" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 1}'])
def test_corrupt_eval_result_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "eval.json").write_text(text)
    with pytest.raises(BenchError):
        load_eval_result(tmp_path / "eval.json")


def test_result_with_invalid_utf8_is_rejected(tmp_path: Path) -> None:
    """Invalid UTF-8 once caused an internal error."""
    file = tmp_path / "eval.json"
    file.write_bytes(b'{"suite": "\xe9"}')
    for load in (load_eval_result, load_result):
        with pytest.raises(BenchError, match="cannot read the"):
            load(file)
