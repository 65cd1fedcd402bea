"""The answers that `cpu-tiny` has to give, by transformers on the same weights, and by real sglang token by token.

`UPDATE_GOLDEN=1 pytest tests/integration/test_expected_answers.py` writes transformers' answers to the model's file.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cpu_server import CpuServer
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
CLEAR = 0.015  # logits: of float32 and bf16, in transformers, no answer with a margin above 0.003 differed


@pytest.fixture(scope="module")
def questions() -> tuple[SmokeQuestion, ...]:
    return load("cpu-tiny").plan.model.questions


@pytest.fixture(scope="module")
def answers(questions: tuple[SmokeQuestion, ...], cpu_environment: Venv, tiny_model: Path) -> list[dict[str, Any]]:
    """What transformers answers to each question."""
    asked = json.dumps([{"prompt": prompt_of(question), "tokens": question.max_tokens} for question in questions])
    program = Program(program=str(PROGRAM), argv=(str(tiny_model),), stdin=asked)
    done = run_forked(cpu_environment.python, {"": program})[""]
    assert done.returncode == 0, done.stderr
    answered: list[dict[str, Any]] = json.loads(done.stdout)
    return answered


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
    assert min(answer["margin"] for answer in answers) > CLEAR


def test_sglang_tokens_match_transformers(
    server: CpuServer, questions: tuple[SmokeQuestion, ...], answers: list[dict[str, Any]]
) -> None:
    """Also behind more than one chunk of prefill, where nothing comes from cache."""
    with EngineClient(server.url, key=None) as client:
        assert client.post_status(endpoints.FLUSH_CACHE, b"") == 200
        given = [
            read_generated(
                client.post(endpoints.GENERATE, generate_body(answer["prompt_ids"], tokens=question.max_tokens))
            )
            for question, answer in zip(questions, answers, strict=True)
        ]
    assert [list(answer_.ids) for answer_ in given] == [answer["ids"] for answer in answers]
    assert given[-1].prompt_tokens > int(server.plan.flag("chunked-prefill-size") or 0)
    assert given[-1].cached_tokens < 64
