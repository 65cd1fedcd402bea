"""`deploy eval`: what happens around the questions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.evals import evaluate
from orchestrator.commands.bench import url_target
from orchestrator.commands.evals import require_sampling
from orchestrator.core.errors import BenchError
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


GREEDY = Hazard(id="speculation-is-greedy", what="every request is decoded greedily", source="", hint="use 0.5.21")


@pytest.mark.parametrize(
    ("suite", "hazards", "taken"),
    [("gpqa-diamond", (GREEDY,), False), ("gpqa-diamond", (), True), ("gsm8k", (GREEDY,), True)],
)
def test_a_suite_that_samples_is_not_asked_of_a_server_that_cannot(
    suite: str, hazards: tuple[Hazard, ...], taken: bool
) -> None:
    target = replace(url_target("http://127.0.0.1:1", gpus=None, api_key_env=None), hazards=hazards)
    if taken:
        require_sampling(target, find_suite(suite))
        return
    with pytest.raises(BenchError, match="and this server cannot") as caught:
        require_sampling(target, find_suite(suite))
    assert "use 0.5.21" in caught.value.hint
