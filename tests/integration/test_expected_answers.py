"""Compare the expected answers of `cpu-tiny` with transformers, and real sglang's tokens with those of transformers.

`UPDATE_GOLDEN=1 pytest tests/integration/test_expected_answers.py` writes transformers' answers to the model's file.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cpu_server import CpuServer
from plan_flags import flag_of
from torch_forks import Program, run_forked

from orchestrator.core.paths import data_root
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient
from orchestrator.engine.requests import generate_body
from orchestrator.engine.responses import read_generated
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.plan.plan import SmokeQuestion
from orchestrator.planner.planning import load
from orchestrator.verify.client import prompt_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PROGRAM = data_root() / "images" / "greedy_answers.py"
MODEL = data_root() / "profiles" / "models" / "tiny.yaml"
MIN_MARGIN = 0.015  # logits; in transformers, float32 and bf16 agreed above a margin of 0.003


@pytest.fixture(scope="module")
def questions() -> tuple[SmokeQuestion, ...]:
    return load("cpu-tiny").plan.model.questions


@pytest.fixture(scope="module")
def answers(questions: tuple[SmokeQuestion, ...], cpu_environment: Venv, tiny_model: Path) -> list[dict[str, Any]]:
    """Return the answer of transformers to each question."""
    prompts = json.dumps([{"prompt": prompt_of(question), "tokens": question.max_tokens} for question in questions])
    program = Program(program=str(PROGRAM), argv=(str(tiny_model),), stdin=prompts)
    done = run_forked(cpu_environment.python, {"": program})[""]
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def test_expected_answers_match_transformers(
    questions: tuple[SmokeQuestion, ...], answers: list[dict[str, Any]]
) -> None:
    texts = [" ".join(answer["text"].split()) for answer in answers]
    if os.environ.get("UPDATE_GOLDEN"):
        text = MODEL.read_text()
        for question, right in zip(questions, texts, strict=True):
            text = text.replace(f"expected: {question.expected}\n", f"expected: {right}\n")
        MODEL.write_text(text)
    else:
        assert [question.expected for question in questions] == texts
    assert [answer["bf16"] for answer in answers] == [True] * 3
    assert min(answer["margin"] for answer in answers) > MIN_MARGIN


def test_sglang_tokens_match_transformers(
    server: CpuServer, questions: tuple[SmokeQuestion, ...], answers: list[dict[str, Any]]
) -> None:
    """The last prompt has more than one prefill chunk, and nothing comes from the cache."""
    with EngineClient(server.url, key=None) as client:
        assert client.post_status(endpoints.FLUSH_CACHE, b"") == 200
        generated = [
            read_generated(
                client.post(endpoints.GENERATE, generate_body(answer["prompt_ids"], tokens=question.max_tokens))
            )
            for question, answer in zip(questions, answers, strict=True)
        ]
    assert [list(item.ids) for item in generated] == [answer["ids"] for answer in answers]
    assert generated[-1].prompt_tokens > int(flag_of(server.plan, "chunked-prefill-size") or 0)
    assert generated[-1].cached_tokens < 64
