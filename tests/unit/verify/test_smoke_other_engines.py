"""The smoke test of an endpoint that is not sglang: OpenAI paths alone, and a reason for each check that needs more."""

import io
import json

import httpx
import pytest
from engine_api import EngineApi
from smoke_target import engine

from orchestrator.core.console import Progress
from orchestrator.engine.client import EngineClient
from orchestrator.verify.report import CheckResult, Verdict
from orchestrator.verify.smoke import smoke_test
from orchestrator.verify.target import describe

URL = "http://127.0.0.1:8000"
OWN = {"/generate", "/server_info", "/model_info", "/flush_cache"}  # of sglang
REPORTED = 'vllm:cache_config_info{block_size="64"} 1.0\nvllm:num_requests_running{engine="0"} 0.0\n'


class OtherEngine:
    """An `EngineApi` as another engine offers it; vLLM (0.32.0) adds `token_ids` to a completion if asked to."""

    def __init__(self, api: EngineApi, owner: str) -> None:
        """`owner`: what `/v1/models` names."""
        self.api, self.owner = api, owner
        self.ranks: set[str | None] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, content = request.url.path, request.content
        if path in OWN:
            return httpx.Response(404, json={"detail": "Not Found"})
        if path == "/v1/completions" and content != b"{broken":
            self.ranks.add(request.headers.get("X-data-parallel-rank"))
            if (body := json.loads(content)).get("return_token_ids"):
                return httpx.Response(200, json=self._with_ids(body))
        answer = self.api.answer(path, content)
        text = answer.body()
        if path == "/metrics":
            text = text.replace("sglang:", f"{self.owner}:") + REPORTED * (self.owner == "vllm")
            text += 'vllm:num_requests_running{engine="1"} 0.0\n' * (self.api.dp > 1)
        if path == "/v1/models":
            listed = json.loads(text)
            listed["data"][0]["owned_by"] = self.owner
            text = json.dumps(listed)
        return httpx.Response(answer.status, text=text)

    def _with_ids(self, body: dict[str, object]) -> dict[str, object]:
        sampling = {"max_new_tokens": body["max_tokens"], "temperature": body["temperature"]}
        prompt = body["prompt"]
        asked = {"text" if isinstance(prompt, str) else "input_ids": prompt, "sampling_params": sampling}
        made = json.loads(self.api.answer("/generate", json.dumps(asked).encode()).body())
        counts = made["meta_info"]
        usage = {key: counts[key] for key in ("prompt_tokens", "completion_tokens")}
        details = {"cached_tokens": counts["cached_tokens"]}
        choice = {"token_ids": made["output_ids"], "finish_reason": "length"}
        return {"choices": [choice], "usage": {**usage, "prompt_tokens_details": details}}


def run(server: OtherEngine) -> dict[str, CheckResult]:
    transport = httpx.MockTransport(server)
    with EngineClient(URL, key=None, transport=transport) as client:
        target = describe(client, url=URL, api_key=None)
    report = smoke_test(target, faults=None, seed=1, progress=Progress(io.StringIO()), transport=transport)
    return {check.name: check for check in report.checks}


def of(found: dict[str, CheckResult], verdict: Verdict) -> set[str]:
    return {name for name, check in found.items() if check.verdict is verdict}


LONG_PROMPTS = {"fact in a long text found", "long prefill"}


def test_vllm_passes_every_supported_check() -> None:
    server = OtherEngine(engine(), "vllm")
    found = run(server)
    skipped = {
        "API key required",
        "cache tiers",
        "DP ranks",
        "speculative decoding",
        "clean log",
        "prefix cache",
        "correct answers",
        "tool call parsed",
        "reasoning separated",
        "soak",
    } | LONG_PROMPTS
    assert of(found, Verdict.SKIPPED) == skipped
    assert of(found, Verdict.PASSED) == found.keys() - skipped
    assert found["served model"].evidence == "`glm-5.2` of vllm, context 4096"
    assert found["prefix cache"].evidence.endswith("start it with `--enable-prompt-tokens-details`")
    assert "vllm:generation_tokens_total" in found["metrics"].evidence


@pytest.mark.parametrize(
    ("server", "check"),
    [
        (engine(rolls_dice=True), "greedy deterministic"),
        (engine(samples=False), "sampling varies"),
        (engine(counts_one_prompt_token_more=True), "token counts"),
        (engine(overlong_status=500), "overlong prompt rejected"),
        (engine(metrics_stand_still=True), "metrics"),
        (engine(ignores_schema=True), "structured output"),
    ],
)
def test_each_vllm_defect_fails_only_its_check(server: EngineApi, check: str) -> None:
    assert of(run(OtherEngine(server, "vllm")), Verdict.FAILED) == {check}


def test_vllm_ranks_are_addressed_by_header() -> None:
    server = OtherEngine(engine(dp=2), "vllm")
    assert run(server)["DP ranks"].verdict is Verdict.WARNING
    assert {"0", "1"} <= server.ranks


@pytest.mark.parametrize(("owner", "subject"), [("someone", "the endpoint"), ("atom", "atom")])
def test_engine_without_token_ids_skips_token_checks(owner: str, subject: str) -> None:
    found = run(OtherEngine(engine(), owner))
    assert not of(found, Verdict.FAILED)
    assert found["token counts"].evidence == f"{subject} has no `/generate` and returns no token ids"
    needed = {"served model", "streaming matches", "structured output", "bad requests rejected"}
    assert needed <= of(found, Verdict.PASSED)
