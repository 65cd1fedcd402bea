"""Computed capacity compared with server logs (`h200.log`), and warnings and errors of plans that do not fit."""

import re
from pathlib import Path

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.plan.capacity import Capacity, KvCache, Memory
from orchestrator.planner.planning import load

GIB = 1 << 30
LOGGED = Path(__file__).with_name("h200.log").read_text().split("\n\n")


def capacity(profile: str, *overrides: str) -> Capacity:
    return load(profile, overrides=overrides).capacity


def cache(profile: str, *overrides: str) -> KvCache:
    result = capacity(profile, *overrides).cache
    assert result is not None
    return result


def memory(profile: str, *overrides: str) -> Memory:
    result = capacity(profile, *overrides).memory
    assert result is not None
    return result


def warnings(profile: str, *overrides: str) -> dict[str, str]:
    plan = load(profile, overrides=overrides).plan
    return {warning.id: warning.summary for warning in plan.warnings if warning.id.startswith("capacity")}


@pytest.mark.parametrize("run", range(5))
def test_computed_capacity_matches_server_log(run: int) -> None:
    """sglang 0.5.16 on H200: weights and cache are in GiB per GPU, tokens are those of a DP rank."""
    words, *lines = LOGGED[run].splitlines()
    profile, *overrides = words.removeprefix("# ").split()
    text = "\n".join(lines)
    tokens = int(re.findall(r"max_total_num_tokens=([0-9]+)", text)[0])
    weights = [float(size) for size in re.findall(r"Load weight end.*mem usage=([0-9.]+) GB", text)]
    pools = [float(size) for pair in re.findall(r"K size: ([0-9.]+) GB, V size: ([0-9.]+) GB", text) for size in pair]
    free = float(re.findall(r"Load weight begin\. avail mem=([0-9.]+) GB", text)[0])

    result = cache(profile, *overrides)
    assert result.tokens == pytest.approx(tokens, rel=0.004)
    assert result.actual_token_bytes * tokens / GIB == pytest.approx(sum(pools), rel=0.05)
    assert memory(profile, *overrides).free_bytes / GIB == pytest.approx(free, rel=0.01)
    assert memory(profile, *overrides).weights_bytes / GIB == pytest.approx(sum(weights), rel=0.02, abs=0.03)


def test_default_mem_fraction_matches_server_log() -> None:
    """A server of the tiny model with chunks of 8192 logged `mem_fraction_static=0.903` in `server_args`."""
    assert memory("h200-tiny", "flags.chunked-prefill-size=8192").fraction == 0.903


@pytest.mark.parametrize(
    ("profile", "overrides", "layers", "tokens", "gib"),
    [
        # InferenceX glm5.2_fp4_mi355x_sglang_mtp.sh: bf16 KV on MI355X, "159.4 GB/rank", "1.7M tokens"
        ("mi355x-tp8", ("flags.kv-cache-dtype=bf16", "flags.chunked-prefill-size=32768"), 78, 1_700_000, 159.4),
        # InferenceX #2271: GLM-5.2 on H200, TP8, fp8 KV, 1,048,576 tokens: "60.03 GB per GPU"
        ("b200-tp8", ("hardware=h200",), 78, 1_048_576, 60.03),
        # sglang #11309: DeepSeek-V3.2, 61 layers, on B200 in October 2025: "#tokens: 975424, KV size: 43.67 GB"
        ("b200-tp8", ("hardware=h200", "model.layers=61"), 61, 975_424, 43.67),
    ],
)
def test_sparse_attention_cache_size_matches_published_measurements(
    profile: str, overrides: tuple[str, ...], layers: int, tokens: int, gib: float
) -> None:
    result = cache(profile, *overrides, "flags.mem-fraction-static=0.95")
    drafting = 1
    assert result.actual_token_bytes / (layers + drafting) * layers * tokens / GIB == pytest.approx(gib, rel=0.01)


NEWER = ("engine.version=0.5.23", "engine.image=lmsysorg/sglang:v0.5.23")


def test_amd_cache_size_matches_published_measurement() -> None:
    """InferenceX glm5.2_fp4_mi355x_sglang_mtp.sh: "182.7 GB/rank" with 0.85, apparently TP8; the only public figure."""
    result = cache("mi355x-tp8", "flags.kv-cache-dtype=bf16", "flags.mem-fraction-static=0.85",
                  "flags.chunked-prefill-size=32768")  # fmt: skip
    assert result.actual_token_bytes / 79 * 78 * (result.tokens or 0) / GIB == pytest.approx(182.7, rel=0.05)


def test_sparse_attention_token_bytes_by_backend_and_version() -> None:
    """A layer takes 656 B of latent with scales, 132 B of indexer; without scales 576 B and 132 B; in bf16 1284 B."""
    layers = 79
    scaled = cache("b200-tp8", "hardware=h200", "flags.mem-fraction-static=0.95")
    assert (scaled.token_bytes, scaled.actual_token_bytes) == (708 * layers, 788 * layers)  # 0.5.16 omits scales
    newer = cache("b200-tp8", "hardware=h200", "flags.mem-fraction-static=0.95", *NEWER)
    expected = 656 * layers + 132 * 22  # since 0.5.18 only the draft layer and the 21 layers with their own indexer
    assert (newer.token_bytes, newer.actual_token_bytes) == (expected, expected)
    raw = cache("mi355x-tp8")
    assert (raw.token_bytes, raw.actual_token_bytes) == (708 * layers, 708 * layers)
    assert cache("mi355x-tp8", "flags.kv-cache-dtype=bf16").token_bytes == 1284 * layers
    assert cache("mi355x-tp8", "flags.kv-cache-dtype=null").kind == "bfloat16"
    assert cache("b200-tp8", "flags.kv-cache-dtype=null").kind == "fp8_e4m3"
    assert cache("b200-tp8").actual_token_bytes == 708 * layers  # the backend is trtllm
    assert raw.page == 64
    assert (raw.tokens or 0) % 64 == 0


def test_kv_heads_are_split_until_one_per_rank() -> None:
    sizes = [cache("h200-glm-mtp", f"layout.tp={tp}").token_bytes for tp in (1, 2, 4, 8)]
    assert sizes == [26624, 13312, 6656, 6656]
    halved = cache("h200-glm-mtp", "layout.tp=4", "layout.dp=2", "layout.dp_attention=true")
    assert halved.token_bytes == 13312
    assert cache("h200-glm-mtp", "flags.kv-cache-dtype=fp8_e4m3").token_bytes == 13312
    assert cache("h200-glm-mtp", "flags.kv-cache-dtype=fp8_e4m3").tokens == pytest.approx(2 * 4464488, rel=0.01)


NO_DRAFTS = tuple(f"flags.speculative-{name}=null" for name in
                  ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens"))  # fmt: skip


def test_mtp_layer_uses_no_memory_without_speculation() -> None:
    with_it, without = memory("h200-glm-mtp"), memory("h200-glm-mtp", *NO_DRAFTS)
    assert with_it.weights_bytes - without.weights_bytes == 1711427712
    assert cache("h200-glm-mtp", *NO_DRAFTS).token_bytes == 26624 * 12 // 13


def test_concurrent_requests_are_computed_from_workload() -> None:
    """20,000 input tokens, 12,000 of them in one of 8 prefixes, 1,000 output tokens, 6 drafts, pages of 64 tokens."""
    fit = capacity("mi355x-tp4dp2").load_fit
    assert fit is not None
    assert (fit.tokens, fit.shared_tokens, fit.running, fit.fits) == (9088, 8 * 11968, 80, True)
    assert fit.concurrent == (cache("mi355x-tp4dp2").tokens - 8 * 11968) // 9088  # type: ignore[operator]
    unshared = capacity("mi355x-tp4dp2", "flags.disable-radix-cache=true").load_fit
    assert unshared is not None
    assert (unshared.tokens, unshared.shared_tokens) == (21056, 0)
    assert capacity("mi355x-tp4dp2", "flags.max-running-requests=null").load_fit.running == 48  # type: ignore[union-attr]


def test_requests_fit_even_if_not_all_prefixes_do() -> None:
    few = ("flags.max-total-tokens=100000", "flags.context-length=90000", "flags.max-running-requests=4")
    fit = capacity("mi355x-tp4dp2", *few).load_fit
    assert fit is not None
    assert 8 * 11968 + 9088 > 100_000  # all prefixes and one request do not fit
    assert (fit.concurrent, fit.needed(4), fit.fits) == (4, 4 * (9088 + 11968), True)


def test_excess_concurrent_requests_produce_a_warning() -> None:
    assert warnings("mi355x-tp4dp2") == {}
    assert warnings("mi355x-tp4dp2", "flags.max-running-requests=512") == {
        "capacity-requests": "512 concurrent requests of `wafer-20k-1k` need 4,748,800 tokens of cache; a DP rank has "
        "2,713,536: 288 fit, the others wait"
    }
    many = ("flags.max-total-tokens=4096", "flags.context-length=4096", "flags.max-running-requests=50")
    assert "capacity-requests" in warnings("cpu-tiny", *many)


def test_capacity_warnings_are_those_of_each_role() -> None:
    both = ("flags.max-running-requests=512", "flags.mem-fraction-static=0.97")
    plan = load("mi355x-1p1d", overrides=both).plan
    assert [(item.id, item.summary.partition(":")[0]) for item in plan.warnings if item.id.startswith("capacity-")] == [
        ("capacity-fraction", "prefill"),
        ("capacity-requests", "decode"),
        ("capacity-fraction", "decode"),
    ]
    for role, flag in (("decode", "max-running-requests=512"), ("prefill", "mem-fraction-static=0.97")):
        (summary,) = warnings("mi355x-1p1d", f"layout.{role}.flags.{flag}").values()
        assert summary.startswith(f"{role}: ")
    assert warnings("mi355x-1p1d", "layout.prefill.flags.max-running-requests=512") == {}


@pytest.mark.parametrize(("cached", "warned"), [("true", []), ("false", ["capacity-requests"])])
def test_decode_server_without_prefix_cache_keeps_each_prefix(cached: str, warned: list[str]) -> None:
    cache = f"layout.decode.flags.disaggregation-decode-enable-radix-cache={cached}"
    assert [*warnings("mi355x-1p1d", cache, "flags.max-running-requests=200")] == warned


def test_warning_names_linear_attention_states_as_limit() -> None:
    """The cache has three million free tokens; a larger `tp` or a smaller cache type would not help."""
    plan = load("mi355x-glm-5.3-flash-tp1x8", overrides=("flags.max-running-requests=64",)).plan
    (warning,) = (item for item in plan.warnings if item.id == "capacity-requests")
    assert "need a state of linear attention each; a DP rank has room for 30: 30 fit" in warning.summary
    assert "raise `mamba-full-memory-ratio`" in warning.hint
    assert "kv-cache-dtype" not in warning.hint


def test_cache_smaller_than_workload_request_produces_a_warning() -> None:
    short = ("flags.max-total-tokens=500", "flags.context-length=500")
    assert warnings("cpu-tiny", *short) == {
        "capacity-requests": "a request of `smoke-tiny` needs 524 tokens of cache; a DP rank has 500: none fits",
    }
    plan = load("cpu-tiny", overrides=short).plan
    assert "raise `layout.tp` or `flags.max-total-tokens`" in plan.warnings[0].hint
    assert warnings("cpu-tiny", "flags.max-total-tokens=4096", "flags.context-length=4096") == {}


@pytest.mark.parametrize(
    ("profile", "overrides", "tokens", "context", "hint"),
    [
        ("cpu-tiny", ["flags.max-total-tokens=1000"], "1,000", "32,768", "raise `flags.max-total-tokens`"),
        ("cpu-tiny", ["flags.max-total-tokens=9", "model.kv_cache=null"], "9", "32,768", "raise `flags.max-total"),
        (
            "h200-tiny",
            ["flags.mem-fraction-static=0.0001"],
            "27,216",
            "32,768",
            "raise `mem-fraction-static` or `layout.tp`",
        ),
        (
            "mi300x-tp8",
            ["flags.context-length=1048576"],
            "842,944",
            "1,048,576",
            "raise `mem-fraction-static` or `layout.tp`, or set `flags.",
        ),
    ],
)
def test_cache_smaller_than_context_is_rejected(
    profile: str, overrides: list[str], tokens: str, context: str, hint: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        load(profile, overrides=overrides)
    [problem] = caught.value.problems or [caught.value]
    assert f"holds {tokens} tokens, less than one request of the context of {context}" in problem.message
    assert problem.hint.startswith(hint)


@pytest.mark.parametrize("written", ["0.93", ".93", "9.3e-1"])
def test_too_high_mem_fraction_produces_a_warning(written: str) -> None:
    result = warnings("mi355x-tp8", f"flags.mem-fraction-static={written}", "flags.chunked-prefill-size=65536")
    assert result["capacity-fraction"].startswith("`mem-fraction-static` 0.93 leaves 21.5 GB of a GPU free")


def test_max_total_tokens_frees_remaining_memory() -> None:
    """InferenceX glm5.2_fp8_mi325x_mtp.sh serves a million tokens with chunks of 131072 and 0.85."""
    assert "capacity-fraction" not in warnings("mi325x-tp8")
    capped = capacity("mi325x-tp8")
    assert capped.spare_bytes == memory("mi325x-tp8").cache_bytes - 1048576 * (1152 * 79 + 132 * 22)
    assert (capped.reserved_bytes // 10**8, memory("mi325x-tp8").safe_fraction) == (800, 0.99)
    result = warnings("mi325x-tp8", "flags.max-total-tokens=1400000")
    assert result["capacity-fraction"].startswith("`mem-fraction-static` 0.85 leaves 47.1 GB of a GPU free")
    assert memory("mi325x-tp8", "flags.max-total-tokens=null").safe_fraction == 0.77
    assert capacity("mi325x-tp8", "flags.max-total-tokens=null").spare_bytes == 0


def test_safe_fraction_agrees_with_published_chunk_sizes() -> None:
    """InferenceX glm5.2_fp4_mi355x_sglang_mtp.sh: chunks of 131072 work with 0.80 and run out of memory with 0.85."""
    assert 0.80 <= memory("mi355x-tp8").safe_fraction < 0.85
    assert memory("mi355x-tp4dp2").safe_fraction >= 0.85


@pytest.mark.parametrize("written", ["0.055", ".055", "5.5e-2"])
def test_weights_leaving_no_cache_memory_are_rejected(written: str) -> None:
    """sglang raises after loading the weights: 0.055 of all 150 GB would be enough, 0.055 of the free memory is not."""
    with pytest.raises(ProfileError) as caught:
        load("h200-glm-mtp", overrides=[f"flags.mem-fraction-static={written}", "model.weights_size=8.22GB"])
    (problem,) = caught.value.problems
    assert problem.message == (
        "the weights leave no room for a cache: they need 8.2 GB per GPU at tp 1; sglang may use 8.2 GB, 0.055 of the "
        "149 GB free of 150"
    )


@pytest.mark.parametrize("written", ["0", "1.5", "1", "-0.5"])
def test_invalid_mem_fraction_is_reported_once(written: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load("h200-glm-mtp", overrides=[f"flags.mem-fraction-static={written}"])
    assert [problem.message for problem in caught.value.problems] == [
        f"`--mem-fraction-static` takes a number above 0 and below 1, found `{written}`"
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("flags.mem-fraction-static=abc", "`--mem-fraction-static` of sglang 0.5.16 takes a number, found `abc`"),
        ("flags.context-length=99999999", "a context of 99999999 tokens is longer than the model's 1048576"),
        ("flags.mem-fraction-static=[0.8, 0.9]", "`--mem-fraction-static` of sglang 0.5.16 takes one value"),
    ],
)
def test_invalid_value_produces_no_capacity_error(override: str, message: str) -> None:
    """The fraction that sglang chooses without the flag gives a cache of 823,616 tokens, fewer than the context."""
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8", overrides=[override])
    [problem] = caught.value.problems
    assert problem.message.startswith(message)


def test_unknown_capacity_has_a_reason() -> None:
    result = capacity("h200-glm-mtp", "model.kv_cache=null")
    assert (result.cache, result.load_fit) == (None, None)
    [reason] = result.unknown
    assert reason.startswith("the model's file in profiles/models has no `kv_cache`")
    words = "the size of the MTP layer is unknown: the weights include it, although it is not loaded"
    assert capacity("mi355x-tp8", *NO_DRAFTS).unknown == (words,)
    assert capacity("h200-glm-mtp", "flags.kv-cache-dtype=mxfp8").unknown == (
        "the size of a cache of type `mxfp8` is unknown",
    )
    on_cpu = capacity("cpu-tiny", "flags.max-total-tokens=null")
    assert on_cpu.memory is None
    assert on_cpu.cache is not None
    assert on_cpu.cache.tokens is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.kv_cache.head_dim=null", "expected `head_dim`, or `kv_lora_rank` and `qk_rope_head_dim`"),
        ("model.kv_cache.kv_lora_rank=512", "expected `head_dim`, or `kv_lora_rank` and `qk_rope_head_dim`"),
        (
            "model.kv_cache.index_head_dim=128",
            "`index_head_dim` with `head_dim` needs `index_layers` or `compressed`",
        ),
        ("model.sparse_attention=true", "`kv_cache.index_head_dim` is for `sparse_attention: true`"),
        ("workload=random-4k", "no workload `random-4k`"),
    ],
)
def test_contradictory_model_facts_are_rejected(override: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load("h200-glm-mtp", overrides=[override])
    assert any(message in problem.message for problem in caught.value.problems_or_self())


# gpt-oss-120b: 18 of its 36 layers have a window. A layer takes 2048 B per token at TP1 in bfloat16.
WINDOWED = ("model.layers=36", "model.mtp_layer=null", "model.kv_heads=8", "model.kv_cache.head_dim=64", *NO_DRAFTS,
            "model.kv_cache.sliding_window=128", "model.kv_cache.sliding_layers=18")  # fmt: skip


def test_sliding_window_layers_have_a_separate_pool() -> None:
    """tests/integration/test_capacity_pools.py compares the same values with real sglang."""
    result = cache("h200-glm-mtp", *WINDOWED)
    assert result.token_bytes == pytest.approx(2048 * (18 + 0.8 * 18))
    assert result.window_tokens == int((result.tokens or 0) * 0.8) // result.page * result.page
    small = cache("h200-glm-mtp", *WINDOWED, "flags.swa-full-tokens-ratio=0.1")
    assert small.token_bytes == pytest.approx(2048 * (18 + 0.1 * 18))
    assert (small.tokens or 0) > 1.5 * (result.tokens or 0)
    whole = cache("h200-glm-mtp", *WINDOWED, "flags.disable-hybrid-swa-memory=true")
    assert (whole.token_bytes, whole.windows, whole.window_tokens) == (2048 * 36, None, None)
    assert cache("h200-glm-mtp", *WINDOWED, "layout.tp=4").token_bytes == pytest.approx(result.token_bytes / 4)


def test_draft_layer_counts_as_full_attention() -> None:
    drafting = [profile for profile in WINDOWED if profile not in NO_DRAFTS]
    result = cache("h200-glm-mtp", *drafting, "model.mtp_layer=36")
    assert result.token_bytes == pytest.approx(2048 * (18 + 1 + 0.8 * 18))
    assert result.actual_token_bytes == result.token_bytes


def test_fractional_byte_is_not_spare_memory() -> None:
    """The fraction of a byte once counted as memory that `max-total-tokens` frees, so 0.99 was a safe fraction."""
    result = capacity("h200-glm-mtp", *WINDOWED)
    assert result.spare_bytes == 0
    assert result.memory is not None
    assert result.memory.safe_fraction < 0.95


def test_window_pool_limits_short_requests() -> None:
    """A request keeps its last 128 tokens, up to 128 more until eviction, and two pages."""
    few = (*WINDOWED, "flags.swa-full-tokens-ratio=0.01", "workload=random-4k-256")
    fit, kv_cache = capacity("h200-glm-mtp", *few).load_fit, cache("h200-glm-mtp", *few)
    assert fit is not None
    assert fit.concurrent == (kv_cache.window_tokens or 0) // (128 + 128 + 2 * kv_cache.page)


def test_unsupported_window_options_make_capacity_unknown() -> None:
    for flags, option in (
        (("flags.disable-radix-cache=true", "flags.max-running-requests=8"), "`disable-radix-cache`"),
        (("flags.enable-unified-memory=true",), "`enable-unified-memory`"),
    ):
        result = capacity("h200-glm-mtp", *WINDOWED, *flags)
        assert result.cache is None
        assert any(option in reason for reason in result.unknown)


@pytest.mark.parametrize(
    ("layers", "message"),
    [("36", "`sliding_layers` and `linear.layers` are fewer than"), ("null", "require each other")],
)
def test_invalid_sliding_layer_count_is_rejected(layers: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        capacity("h200-glm-mtp", *WINDOWED, f"model.kv_cache.sliding_layers={layers}")
    assert message in caught.value.problems[0].message


def test_workload_path_hints_at_workload_directory() -> None:
    with pytest.raises(ProfileError) as caught:
        load("h200-glm-mtp", overrides=["workload=./load.yaml"])
    [problem] = caught.value.problems_or_self()
    assert problem.hint.endswith("/profiles/workloads/`; name it `load`")
