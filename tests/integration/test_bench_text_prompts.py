"""Prompts sent as text have exact token counts at an endpoint that accepts no token ids."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from engine_api import Answer, EngineApi
from hostile_server import hostile
from scripted_runs import order_of

from orchestrator.bench.benchmark import measure
from orchestrator.bench.prompts import Words, prompts
from orchestrator.bench.published import PriceBook
from orchestrator.bench.result import BenchResult
from orchestrator.bench.workload import Workload, read_text
from orchestrator.core.errors import BenchError
from orchestrator.report.compare import compare
from orchestrator.report.configuration import differing

WORKLOAD = Workload(
    input_tokens=120, output_tokens=4, cache_hit_rate=0.5, num_prefixes=2, request_rates=(50.0,), requests=8
)
REJECTION = "prompt: data did not match any variant of untagged enum StringOrArray"  # sglang's gateway, disaggregated
BOS = 1
PASSAGES = (("one two", 2), ("three four five", 3))


def tokens_of(text: str) -> list[int]:
    """Return a first token, one token for each word of up to four letters, and one for each further letter."""
    words = re.findall(r" ?[^ ]+", text)
    return [BOS, *(sum(word.encode()) + at for word in words for at in range(max(1, len(word.strip()) - 3)))]


@dataclass
class TextOnly(EngineApi):
    """An engine that accepts only text and has none of sglang's own paths."""

    status: int = 400
    counts_tokens: bool = True

    def answer(self, path: str, content: bytes = b"", authorization: str | None = None) -> Answer:
        if path in {"/server_info", "/get_server_info", "/tokenize", "/metrics", "/generate", "/flush_cache"}:
            return Answer(404, [{"detail": "Not Found"}])
        body: dict[str, Any] = json.loads(content) if content else {}
        if "prompt" in body:
            if not isinstance(body["prompt"], str):
                return Answer(self.status, [{"error": REJECTION}])
            tokens = tokens_of(body["prompt"]) if self.counts_tokens else [BOS]
            content = json.dumps({**body, "prompt": tokens}).encode()
        return super().answer(path, content, authorization)


def measured(api: EngineApi, folder: Path, workload: Workload = WORKLOAD, *, text_prompts: bool = False) -> BenchResult:
    with hostile({}, api=api) as url:
        request = order_of(url, folder, workload=workload, text=read_text(workload), text_prompts=text_prompts)
        return measure(request, lambda _text, _transient: None)


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("kind", ["random", "text"])
def test_text_only_endpoint_gets_prompts_of_exact_length(
    tmp_path: Path, kind: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measured(TextOnly(status=status), tmp_path, WORKLOAD.model_copy(update={"prompts": kind}))
    point = result.points[0]
    assert point.succeeded == 8
    assert point.input_tokens == 8 * 120
    assert result.run.endpoint.prompts_as == "text"
    assert "prompts are sent as text" in capsys.readouterr().err


def test_endpoint_accepting_token_ids_gets_token_ids(tmp_path: Path) -> None:
    assert measured(EngineApi(), tmp_path).run.endpoint.prompts_as == "token ids"


def test_endpoint_without_token_counts_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="0 have one token"):
        measured(TextOnly(counts_tokens=False), tmp_path)


def test_endpoint_accepting_neither_is_rejected_with_its_status(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"takes no token ids, and cannot count .* returned HTTP 400"):
        measured(EngineApi(rejects_generation=True), tmp_path)


def test_only_prompts_with_same_prefix_share_beginnings() -> None:
    words = Words(
        first_tokens=2, single=tuple("abcdefghijklmnopqrstuvwxyz"), passages=(("one two", 2), ("three four five", 3))
    )
    for kind in ("random", "text"):
        drawn = [*prompts(WORKLOAD.model_copy(update={"prompts": kind}), "1", 60, words)]
        assert len({prompt.prefix for prompt in drawn}) == 2
        assert len({prompt.suffix for prompt in drawn}) == 60
        assert {len(prompt.prefix.split()) for prompt in drawn} == {59}  # its first word has two tokens
        assert {len(prompt.suffix.split()) for prompt in drawn} == {60}
        assert ("three four five" in drawn[0].suffix.decode()) == (kind == "text")


def test_comparison_shows_different_prompt_formats(tmp_path: Path) -> None:
    result = measured(EngineApi(), tmp_path)
    text = replace(result, run=replace(result.run, endpoint=replace(result.run.endpoint, prompts_as="text")))
    differences = differing(
        tuple(compare(one_result, None, PriceBook(user_prices={}, published=())) for one_result in (result, text))
    )
    assert [(item.key, item.values) for item in differences] == [("prompts_sent_as", ("token ids", "text"))]
