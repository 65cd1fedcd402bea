"""KV cache tiers: their memory, and whether a workload gains from them."""

import dataclasses

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.engine.responses import read_server_info
from orchestrator.plan.capacity import Capacity
from orchestrator.plan.host_needs import host_needs
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.plan.tier_outlook import PUBLISHED, TierCosts, TierOutlook, prefix_reuse, tier_outlook
from orchestrator.planner.planning import load

ON = "flags.enable-hierarchical-cache=true"
TP4 = ("mi355x-tp8-current", "layout.tp=4")
FREE = TierCosts(retrieve=1, store=0, recompute=100, source="")


def plan(profile: str, *overrides: str) -> Plan:
    return load(profile, overrides=overrides).plan


def capacity(profile: str, *overrides: str) -> Capacity:
    return load(profile, overrides=overrides).capacity


def test_host_tier_size_matches_published_measurement() -> None:
    """SemiAnalysisAI/InferenceX#3329: 885 GB for four ranks of `hicache-size` 180, about 3.95 M tokens."""
    tier = capacity("mi355x-tp4dp2-tiers").host
    assert tier is not None
    assert tier.tokens == pytest.approx(3.95e6, rel=0.005)
    assert tier.bytes * 4 == pytest.approx(885e9, rel=0.001)


def test_hicache_ratio_scales_device_tokens_and_bytes() -> None:
    result = capacity(*TP4, ON, "flags.hicache-ratio=1.5")
    assert result.host is not None
    assert result.cache is not None
    assert result.cache.tokens is not None
    assert result.host.tokens == int(result.cache.tokens * 1.5)
    assert result.host.bytes == pytest.approx(result.cache.tokens * 1.5 * result.cache.actual_token_bytes, rel=1e-6)
    assert capacity(*TP4, ON).host == dataclasses.replace(
        result.host,
        tokens=result.cache.tokens * 2,
        bytes=int(result.cache.tokens * 2 * result.cache.actual_token_bytes),
    )
    assert capacity(*TP4).host is None


def test_host_tier_includes_linear_attention_states() -> None:
    result = capacity("mi355x-qwen3.5-397b-tp4", ON)
    assert result.host is not None
    assert result.cache is not None
    assert result.cache.requests is not None
    assert result.host.bytes > 2 * result.cache.requests.bytes > 0


def test_host_memory_includes_tier_of_each_rank() -> None:
    without, with_tier = plan(*TP4), plan(*TP4, ON, "flags.hicache-size=180")
    more = host_needs(with_tier).memory - host_needs(without).memory
    assert more == 4 * with_tier.host_cache_bytes == pytest.approx(885e9, rel=0.001)
    assert host_needs(with_tier).max_memory - host_needs(without).max_memory == more


def test_tier_of_one_role_applies_only_to_that_role() -> None:
    flags = (f"layout.prefill.{ON}", "layout.prefill.flags.hicache-size=180")
    prefill, decode = replica_plans(plan("mi355x-1p1d", *flags, "engine=sglang-0.5.20-rocm"))
    assert prefill.host_cache_bytes > 180 * 10**9
    assert decode.host_cache_bytes == 0


def test_host_tier_smaller_than_device_is_rejected_for_0_5_14() -> None:
    """sglang 0.5.14 asserts that the host tier is larger than the device cache; later versions only warn."""
    old = (TP4[1], ON, "flags.hicache-size=20", "engine=sglang-0.5.14-rocm")
    with pytest.raises(ProfileError, match="cannot plan") as error:
        load(*TP4[:1], overrides=old).plan  # noqa: B018 - a property
    problem = next(item for item in error.value.problems if "cache tier" in item.message)
    assert "tokens, fewer than the" in problem.message
    assert "raise `flags.hicache-size`" in str(problem.hint)
    assert plan(*TP4, ON, "flags.hicache-size=20", "flags.hicache-write-policy=write_back").host_cache_bytes


def outlook(
    device: int, host: int | None, *, prefixes: int, costs: TierCosts = FREE, share: float = 0.9
) -> TierOutlook:
    """Return the outlook for prompts of 1,000 tokens on a CPU with caches of these sizes."""
    tier = () if host is None else (ON, f"flags.hicache-ratio={host / device}", "flags.hicache-io-backend=direct")
    cpu_capacity = capacity("cpu-tiny", f"flags.max-total-tokens={device}", "flags.context-length=2000", *tier)
    reuse = prefix_reuse(
        "w", num_prefixes=prefixes, prefix_tokens=int(1000 * share), input_tokens=1000, output_tokens=10, page=1
    )
    result = tier_outlook(cpu_capacity, reuse, costs)
    assert result is not None
    return result


def test_tier_helps_when_reuse_distance_exceeds_device_cache() -> None:
    inside = outlook(4000, 40_000, prefixes=16)
    assert inside.helps
    assert 4000 < inside.reuse_distance < 40_000
    assert inside.host_hits > 0.5
    assert inside.saved_us == pytest.approx(inside.host_hits * 99, rel=0.01)
    below = outlook(40_000, 80_000, prefixes=4)
    assert (below.helps, below.reason) == (False, "the GPU's 40,000 tokens hold all reused tokens")
    beyond = outlook(4000, 4200, prefixes=5000)
    assert not beyond.helps
    assert "tokens, but GPU and host hold 4,200" in beyond.reason
    assert beyond.other_hits > 0.8
    new = outlook(4000, 40_000, prefixes=1, share=0.0)
    assert (new.helps, new.reason) == (False, "no token is reused")


def test_reuse_distance_scales_beyond_simulated_prefixes() -> None:
    few, many = outlook(4000, None, prefixes=1000), outlook(4000, None, prefixes=10_000)
    assert many.reuse_distance == pytest.approx(10 * few.reuse_distance, rel=0.01)


def test_tier_with_negative_savings_does_not_help() -> None:
    assert PUBLISHED.break_even == pytest.approx(13.6, abs=0.1)
    expensive = outlook(4000, 40_000, prefixes=16, costs=PUBLISHED)
    assert not expensive.helps
    assert expensive.saved_us < 0
    assert expensive.reason.startswith("the tier pays off from 13.6 uses per stored token; the load has ")
    never = TierCosts(retrieve=80, store=1, recompute=71, source="")
    assert outlook(4000, 40_000, prefixes=16, costs=never).reason.startswith("the tier never pays off")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 1000),
        ({"enable_hierarchical_cache": True, "hicache_ratio": 4.0, "hicache_write_policy": "write_through"}, 4000),
        ({"enable_hierarchical_cache": True, "hicache_ratio": 4.0, "hicache_write_policy": "write_back"}, 5000),
        ({"enable_hierarchical_cache": True, "hicache_size": 20}, None),
        ({"enable_hierarchical_cache": True, "hicache_ratio": 4.0, "hicache_storage_backend": "file"}, None),
    ],
)
def test_server_info_counts_tokens_of_all_tiers(given: dict[str, object], expected: int | None) -> None:
    info = read_server_info({"version": "0.5.16", "page_size": 1, "max_total_num_tokens": 1000, **given})
    assert info is not None
    assert (info.cache_tokens, info.tier_tokens) == (1000, expected)
