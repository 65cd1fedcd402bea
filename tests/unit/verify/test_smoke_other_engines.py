"""The smoke test of endpoints of other engines: OpenAI paths only, and a reason for each skipped check."""

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
SGLANG_PATHS = {"/generate", "/server_info", "/model_info", "/flush_cache"}
REPORTED = 'vllm:cache_config_info{block_size="64"} 1.0\nvllm:num_requests_running{engine="0"} 0.0\n'


class OtherEngine:
    """An `EngineApi` as another engine provides it; vLLM 0.32.0 adds `token_ids` to completions on request."""

    def __init__(self, api: EngineApi, owner: str) -> None:
        """Serve `api` under the name `owner` in `/v1/models`."""
        self.api, self.owner = api, owner
        self.ranks: set[str | None] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, content = request.url.path, request.content
        if path in SGLANG_PATHS:
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
            models = json.loads(text)
            models["data"][0]["owned_by"] = self.owner
            text = json.dumps(models)
        return httpx.Response(answer.status, text=text)

    def _with_ids(self, body: dict[str, object]) -> dict[str, object]:
        sampling = {"max_new_tokens": body["max_tokens"], "temperature": body["temperature"]}
        prompt = body["prompt"]
        generate_request = {"text" if isinstance(prompt, str) else "input_ids": prompt, "sampling_params": sampling}
        generated = json.loads(self.api.answer("/generate", json.dumps(generate_request).encode()).body())
        counts = generated["meta_info"]
        usage = {key: counts[key] for key in ("prompt_tokens", "completion_tokens")}
        details = {"cached_tokens": counts["cached_tokens"]}
        choice = {"token_ids": generated["output_ids"], "finish_reason": "length"}
        return {"choices": [choice], "usage": {**usage, "prompt_tokens_details": details}}


def run(server: OtherEngine) -> dict[str, CheckResult]:
    transport = httpx.MockTransport(server)
    with EngineClient(URL, key=None, transport=transport) as client:
        target = describe(client, url=URL, api_key=None)
    report = smoke_test(target, faults=None, seed=1, progress=Progress(io.StringIO()), transport=transport)
    return {check.name: check for check in report.checks}


def with_verdict(results: dict[str, CheckResult], verdict: Verdict) -> set[str]:
    return {name for name, check in results.items() if check.verdict is verdict}


LONG_PROMPTS = {"fact in a long text found", "long prefill"}


def test_vllm_passes_every_supported_check() -> None:
    server = OtherEngine(engine(), "vllm")
    results = run(server)
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
    assert with_verdict(results, Verdict.SKIPPED) == skipped
    assert with_verdict(results, Verdict.PASSED) == results.keys() - skipped
    assert results["served model"].evidence == "`glm-5.2` of vllm, context 4096"
    assert results["prefix cache"].evidence.endswith("start it with `--enable-prompt-tokens-details`")
    assert "vllm:generation_tokens_total" in results["metrics"].evidence


@pytest.mark.parametrize(
    ("server", "check"),
    [
        (engine(samples_at_temperature_0=True), "greedy deterministic"),
        (engine(samples=False), "sampling varies"),
        (engine(overcounts_prompt_tokens=True), "token counts"),
        (engine(overlong_status=500), "overlong prompt rejected"),
        (engine(metrics_frozen=True), "metrics"),
        (engine(ignores_schema=True), "structured output"),
    ],
)
def test_each_vllm_defect_fails_only_its_check(server: EngineApi, check: str) -> None:
    assert with_verdict(run(OtherEngine(server, "vllm")), Verdict.FAILED) == {check}


def test_vllm_ranks_are_addressed_by_header() -> None:
    server = OtherEngine(engine(dp=2), "vllm")
    assert run(server)["DP ranks"].verdict is Verdict.WARNING
    assert {"0", "1"} <= server.ranks


@pytest.mark.parametrize(("owner", "subject"), [("someone", "the endpoint"), ("atom", "atom")])
def test_engine_without_token_ids_skips_token_checks(owner: str, subject: str) -> None:
    results = run(OtherEngine(engine(), owner))
    assert not with_verdict(results, Verdict.FAILED)
    assert results["token counts"].evidence == f"{subject} has no `/generate` and returns no token ids"
    needed = {"served model", "streaming matches", "structured output", "bad requests rejected"}
    assert needed <= with_verdict(results, Verdict.PASSED)
