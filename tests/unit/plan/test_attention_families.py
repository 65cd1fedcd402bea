"""Cache bytes of a token and of a request for each attention family of the shipped models.

The expected values are those of sglang's own pool code (tests/integration/test_pool_code.py).
"""

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.plan.capacity import Capacity, KvCache
from orchestrator.planner.planning import load

NO_DRAFTS = tuple(f"flags.speculative-{name}=null" for name in
                  ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens"))  # fmt: skip
FP8 = "flags.kv-cache-dtype=fp8_e4m3"


def capacity(profile: str, *overrides: str) -> Capacity:
    return load(profile, overrides=overrides).capacity


def cache(profile: str, *overrides: str) -> KvCache:
    result = capacity(profile, *overrides).cache
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("profile", "overrides", "token"),
    [
        ("mi355x-glm-5.3-tp8", (), 48_408),
        ("mi355x-glm-5.3-tp8", NO_DRAFTS, 47_700),
        ("mi355x-glm-5.3-tp8", ("flags.kv-cache-dtype=bfloat16",), 93_912),
        ("mi355x-glm-5.3-flash-tp4", (*NO_DRAFTS, FP8), 5_632 + 363),
        ("mi355x-glm-5.3-flash-tp4", NO_DRAFTS, 11_264 + 363),
        ("mi355x-deepseek-v4-flash-tp8", NO_DRAFTS, 6_229),
        ("mi355x-deepseek-v4-flash-tp8", (), 6_374),
        ("mi355x-deepseek-v4-flash-tp8", (*NO_DRAFTS, "env.SGLANG_DSV4_UNIFIED_KV_FP8=1"), 4_153),
        ("mi355x-deepseek-v4-pro-tp8", NO_DRAFTS, 8_918),
        ("mi355x-deepseek-v4-pro-tp8", (), 9_064),
        ("mi355x-deepseek-v4.1-flash-tp2", ("flags.speculative-algorithm=null",), 1_630),
        ("mi355x-deepseek-v4.1-flash-tp2", (), 1_671),
        ("mi355x-deepseek-v4.1-flash-tp2", ("flags.swa-full-tokens-ratio=0.1",), 4_069),
        ("mi355x-qwen3.5-397b-tp4", NO_DRAFTS, 7_680),
        ("mi355x-qwen3.5-397b-tp4", (), 7_680),
        ("mi355x-kimi-k2.7-tp4", (), 35_136),
        ("mi355x-minimax-m3-tp8", (FP8,), 15_360 + 14_592),
        ("mi355x-minimax-m3-tp8", (FP8, "engine=sglang-0.5.21-rocm"), 15_360 + 7_296),
        ("mi355x-qwen3-coder-tp8", (FP8,), 15_872),
        ("mi355x-gpt-oss-120b-tp8", (FP8, "layout.tp=1"), 18_432 * 1.8),
    ],
)
def test_token_bytes_of_each_attention_family(profile: str, overrides: tuple[str, ...], token: int) -> None:
    assert cache(profile, *overrides).token_bytes == pytest.approx(token, abs=1)


@pytest.mark.parametrize(
    ("version", "flags", "owners"),
    [
        ("0.5.16", (), 78),
        ("0.5.20", (), 21),
        ("0.5.20", ("flags.enable-hierarchical-cache=true",), 78),
        ("0.5.22", ("flags.enable-hierarchical-cache=true",), 21),
    ],
)
def test_shared_indexer_layers_store_no_keys_since_0_5_18(version: str, flags: tuple[str, ...], owners: int) -> None:
    engine = (f"engine.version={version}", "engine.image=rocm/sgl-dev:mine", "flags.dsa-prefill-backend=tilelang")
    result = cache("mi355x-glm-5.3-tp8", *engine, "flags.dsa-decode-backend=tilelang", *flags)
    assert result.token_bytes == 79 * 576 + (owners + 1) * 132


@pytest.mark.parametrize(
    ("profile", "overrides", "megabytes"),
    [
        ("mi355x-qwen3.5-397b-tp4", (), 24.4),
        ("mi355x-qwen3.5-397b-tp4", ("env.SGLANG_MAMBA_SSM_DTYPE=null",), 48.0),
        ("mi300x-qwen3.5-397b-tp8", (), 12.2),
        ("mi355x-glm-5.3-flash-tp1x8", (), 147.6),
        ("mi355x-glm-5.3-flash-tp1x8", ("flags.mamba-ssm-dtype=bfloat16",), 76.3),
    ],
)
def test_state_bytes_of_linear_attention(profile: str, overrides: tuple[str, ...], megabytes: float) -> None:
    requests = cache(profile, *overrides).requests
    assert requests is not None
    assert requests.per_request / 1e6 == pytest.approx(megabytes, abs=0.06)


def test_linear_attention_states_limit_concurrent_requests() -> None:
    """A state takes 147.6 MB; 0.9 / 1.9 of 77 GB hold 5 states for each request and 3 more for its drafts."""
    result = capacity("mi355x-glm-5.3-flash-tp1x8", "flags.max-running-requests=64")
    assert result.cache is not None
    assert result.cache.requests is not None
    assert result.cache.requests.requests == 30
    assert result.load_fit is not None
    assert (result.load_fit.concurrent, result.load_fit.fits) == (30, False)
    uncached = cache("mi355x-glm-5.3-flash-tp1x8", "flags.disable-radix-cache=true").requests
    assert uncached is not None
    assert uncached.slots == 30  # one state per request
    replayed = cache("mi355x-glm-5.3-flash-tp1x8", "flags.enable-linear-replayssm-spec=true").requests
    assert replayed is not None
    assert replayed.slots > result.cache.requests.slots


def test_deepseek_v4_requests_need_one_ring_each() -> None:
    for drafts, megabytes in ((NO_DRAFTS, 17.8), ((), 30.2)):
        requests = cache("mi355x-deepseek-v4-flash-tp8", *drafts, "flags.max-running-requests=256").requests
        assert requests is not None
        assert requests.bytes / 257 / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_deepseek_v4_1_windows_scale_with_max_running_requests() -> None:
    requests = cache("mi355x-deepseek-v4.1-flash-tp2", "flags.chunked-prefill-size=8192").requests
    assert requests is not None
    assert requests.bytes == 8_701_130_496
    unset = cache("mi355x-deepseek-v4.1-flash-tp2", "flags.max-running-requests=null")
    assert unset == cache("mi355x-deepseek-v4.1-flash-tp2", "flags.max-running-requests=256")
    assert unset.tokens == 53_201_408
    assert capacity("mi355x-deepseek-v4.1-flash-tp2", "flags.max-running-requests=null").load_fit.running == 256  # type: ignore[union-attr]
    result = capacity("mi355x-deepseek-v4.1-flash-tp2", "engine.version=0.5.23", "engine.image=rocm/sgl-dev:mine")
    assert result.cache is None
    assert "the cache of DeepSeek-V4.1 is sized only on ROCm, for sglang" in result.unknown[0]


@pytest.mark.parametrize(
    ("flag", "token_bytes"),
    [
        ("swa-full-tokens-ratio=0.8", 20_859),  # 0.8 is the default of other models only
        ("chunked-prefill-size=-1", 4_069),
        ("disable-radix-cache=true", None),
        ("disable-overlap-schedule=true", None),
        ("env.SGLANG_SWA_EVICTION_INTERVAL=4096", None),
    ],
)
def test_options_that_change_deepseek_v4_1_window_size(flag: str, token_bytes: int | None) -> None:
    setting = flag if flag.startswith("env.") else f"flags.{flag}"
    result = capacity("mi355x-deepseek-v4.1-flash-tp2", setting)
    if token_bytes is None:
        assert result.cache is None
        assert f"`{flag.removeprefix('env.').partition('=')[0]}` is set" in result.unknown[0]
    else:
        assert result.cache is not None
        assert result.cache.token_bytes == pytest.approx(token_bytes, abs=1)


def test_deepseek_v4_1_with_roles_has_unknown_capacity() -> None:
    roles = ("prefill.tp=2", "decode.tp=2", "decode.flags.disaggregation-decode-enable-radix-cache=true")
    transfer = ("transfer.backend=mori", "transfer.network=ainic")
    result = capacity("mi355x-deepseek-v4.1-flash-tp2", *(f"layout.{role}" for role in (*roles, *transfer)))
    assert result.cache is None
    assert "`layout.prefill` is set" in result.unknown[0]


@pytest.mark.parametrize(
    "override", ["env.SGLANG_HACK_FLASHMLA_BACKEND=null", "env.SGLANG_HACK_FLASHMLA_BACKEND=tilelang"]
)
def test_deepseek_v4_with_other_backend_has_unknown_capacity(override: str) -> None:
    result = capacity("mi355x-deepseek-v4-flash-tp8", override)
    assert result.cache is None
    assert "sized only on ROCm with `unified_kv_triton`" in result.unknown[0]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.kv_cache.linear.layers=60", "`sliding_layers` and `linear.layers` are fewer than `layers`"),
        ("model.kv_cache.linear.key_heads=0", "key_heads"),
        ("model.kv_cache.index_head_dim=128", "needs `index_layers` or `compressed`"),
    ],
)
def test_impossible_cache_shapes_are_rejected(override: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-qwen3.5-397b-tp4", overrides=[override])
    assert message in str([problem.message + problem.location for problem in caught.value.problems_or_self()])
