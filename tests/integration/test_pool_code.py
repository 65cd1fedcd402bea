"""Tests that the predicted bytes per token and per request equal those of sglang's own pool code.

The pool code is of sglang 0.5.23, for DeepSeek-V4.1 of 0.5.21.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pool_configs import CODER, FLASH, GLM, KIMI, LINEAR, M3, NEMOTRON, NEXT, QWEN, V4, V4_PRO, V41, Config, described
from torch_forks import Program, run_forked
from wheels import unpacked

from orchestrator.engine.request_memory import LinearState
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.plan.capacity import KvCache
from orchestrator.planner.planning import load

pytestmark = [pytest.mark.engine, pytest.mark.wheels, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "support" / "pool_code.py"
NO_DRAFTS = tuple(
    f"flags.speculative-{name}=null" for name in ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens")
)
TILELANG = ("flags.dsa-prefill-backend=tilelang", "flags.dsa-decode-backend=tilelang")
FP8 = "flags.kv-cache-dtype=fp8_e4m3"
# config, tp, bytes per value, draft tokens, shipped profile of that model, overrides
CASES: Mapping[str, tuple[Config, int, int, int, str, tuple[str, ...]]] = {
    "glm": (GLM, 8, 1, 0, "mi355x-glm-5.3-tp8", (*NO_DRAFTS, *TILELANG)),
    "glm-drafts": (GLM, 8, 1, 6, "mi355x-glm-5.3-tp8", TILELANG),
    "glm-bf16": (GLM, 8, 2, 6, "mi355x-glm-5.3-tp8", ("flags.kv-cache-dtype=bfloat16", *TILELANG)),
    "qwen3.5": (QWEN, 4, 1, 0, "mi355x-qwen3.5-397b-tp4", (*NO_DRAFTS, "env.SGLANG_MAMBA_SSM_DTYPE=null")),
    "qwen3.5-drafts": (QWEN, 2, 1, 4, "mi355x-qwen3.5-397b-tp2x4", ("env.SGLANG_MAMBA_SSM_DTYPE=null",)),
    "flash": (FLASH, 4, 2, 0, "mi355x-glm-5.3-flash-tp4", NO_DRAFTS),
    "flash-drafts": (FLASH, 1, 1, 3, "mi355x-glm-5.3-flash-tp1x8", (FP8,)),
    "v4": (V4, 8, 1, 0, "mi355x-deepseek-v4-flash-tp8", (*NO_DRAFTS, "flags.max-running-requests=64")),
    "v4-drafts": (V4, 8, 1, 4, "mi355x-deepseek-v4-flash-tp8", ()),
    "v4-pro-drafts": (V4_PRO, 8, 1, 4, "mi355x-deepseek-v4-pro-tp8", ()),
    "kimi": (KIMI, 4, 1, 0, "mi355x-kimi-k2.7-tp4", ()),
    "coder": (CODER, 8, 2, 0, "mi355x-qwen3-coder-tp8", ()),
    "minimax": (M3, 8, 1, 0, "mi355x-minimax-m3-tp8", (FP8,)),
    "minimax-bf16": (M3, 8, 2, 0, "mi355x-minimax-m3-tp8", ()),
}  # fmt: skip
LINEAR_MODELS: Mapping[str, tuple[Config, int]] = {  # models without a shipped profile: config, tp
    "qwen3-next": (NEXT, 2),
    "kimi-linear": (LINEAR, 4),
    "nemotron-h": (NEMOTRON, 1),
    "nemotron-h-tp16": (NEMOTRON, 16),
}
ENGINE = ("engine.version=0.5.23", "engine.image=rocm/sgl-dev:mine")


@pytest.fixture(scope="module")
def sglang_sizes(cpu_environment: Venv) -> dict[str, dict[str, float]]:
    cases = {
        name: {"config": config, "tp": tp, "element": element, "drafts": drafts, "running": 64,
               "env": {"SGLANG_HACK_FLASHMLA_BACKEND": "unified_kv_triton"}}
        for name, (config, tp, element, drafts, _, _) in CASES.items()
    }  # fmt: skip
    cases |= {name: {"config": config, "tp": tp, "element": 2, "drafts": 0, "running": 64, "env": {}}
              for name, (config, tp) in LINEAR_MODELS.items()}  # fmt: skip
    return run_pool_code(cpu_environment, "0.5.23", cases)


def run_pool_code(environment: Venv, version: str, cases: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """Return the sizes of each case by the code of one version of sglang."""
    program = Program(program=str(SCRIPT), argv=(str(unpacked(version)),), stdin=json.dumps(cases))
    done = run_forked(environment.python, {"": program})[""]
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, dict[str, float]] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "share"])
def test_deepseek_v4_1_cache_size_matches_sglang(cpu_environment: Venv, bounded: bool) -> None:
    case = {"config": V41, "tp": 2, "element": 1, "running": 128, "env": {}} | ({"bounded": 1} if bounded else {})
    cases = {str(drafts): {**case, "drafts": drafts} for drafts in (0, 6)}
    sizes = run_pool_code(cpu_environment, "0.5.21", cases)
    share = () if bounded else ("flags.swa-full-tokens-ratio=0.1",)
    for drafts, off in ((6, ()), (0, ("flags.speculative-algorithm=null", "flags.speculative-dspark-block-size=null"))):
        overrides = ["flags.chunked-prefill-size=8192", *share, *off]
        cache = load("mi355x-deepseek-v4.1-flash-tp2", overrides=overrides).capacity.cache
        assert cache is not None
        assert cache.requests is not None
        print(f"{drafts} drafts: {cache.token_bytes:,.2f} B per token, {cache.requests.bytes:,} B for 128 requests")
        assert cache.token_bytes == pytest.approx(sizes[str(drafts)]["token"], abs=0.01)
        assert cache.requests.bytes == pytest.approx(sizes[str(drafts)]["fixed"], abs=1)


def predicted_cache(name: str) -> KvCache:
    *_, profile, overrides = CASES[name]
    cache = load(profile, overrides=[*ENGINE, *overrides]).capacity.cache
    assert cache is not None
    return cache


@pytest.mark.parametrize("name", CASES)
def test_cache_bytes_match_sglang_pool_code(sglang_sizes: dict[str, dict[str, float]], name: str) -> None:
    measured, cache = sglang_sizes[name], predicted_cache(name)
    print(f"{name}: predicted {cache.token_bytes:,.2f} B, sglang {measured['token']:,.2f} B per token")
    assert cache.token_bytes == pytest.approx(measured["token"], abs=0.01)
    if "state" in measured:
        assert cache.requests is not None
        assert cache.requests.per_request == measured["state"]
    if "fixed" in measured:
        assert cache.requests is not None
        assert cache.requests.bytes == measured["fixed"]


@pytest.mark.parametrize("name", LINEAR_MODELS)
def test_linear_state_size_from_config_matches_sglang(
    sglang_sizes: dict[str, dict[str, float]], name: str, tmp_path: Path
) -> None:
    config, tp = LINEAR_MODELS[name]
    state = described(tmp_path, config).facts["kv_cache.linear"].value
    assert isinstance(state, dict)
    size = LinearState(**state).bytes(ranks=tp, element=4)
    print(f"{name}: predicted {size:,} B, sglang {sglang_sizes[name]['state']:,.0f} B per state")
    assert size == sglang_sizes[name]["state"]
