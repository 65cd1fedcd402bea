"""`deploy eval`: what happens around the questions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cli.evals import evaluate
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


def test_the_way_to_a_far_server_is_open_until_the_last_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    @contextmanager
    def fleet(_home: object, host: str) -> Iterator[str]:
        steps.append(f"connected to {host}")
        yield "servers"
        steps.append("closed")

    def asked(_target: object, **_: object) -> Outcome:
        steps.append("asked")
        return OUTCOME

    monkeypatch.setattr("orchestrator.commands.servers.fleet", fleet)
    monkeypatch.setattr("orchestrator.commands.bench.server_target", lambda _servers, name: name)
    monkeypatch.setattr("orchestrator.commands.evals.run_eval", asked)
    evaluate("tiny", suite="gsm8k", host="ssh://node", output=tmp_path)

    assert steps == ["connected to ssh://node", "asked", "closed"]
    assert (tmp_path / "eval-gsm8k.json").is_file()
