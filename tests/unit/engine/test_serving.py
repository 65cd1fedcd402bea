"""Test that each serving fact follows from its option, or from the engine's default without it."""

from functools import partial

import pytest

from orchestrator.engine.cache_tiers import CacheTiers
from orchestrator.engine.flags import FlagValue
from orchestrator.engine.serving import FixedPort, ServingFacts, recorded_facts, serving_facts
from orchestrator.planner.planning import load

TIERS = partial(CacheTiers, kv_bytes=None, ratio=2.0, write_policy="write_through", storage=None)


def facts(flags: dict[str, FlagValue], *, platform: str = "rocm", sparse: bool = False) -> ServingFacts:
    return serving_facts(flags, context_length=1000, platform=platform, sparse_attention=sparse)


@pytest.mark.parametrize(
    ("flags", "fact", "value", "default"),
    [
        ({"context-length": 500}, "context", 500, 1000),
        ({"max-running-requests": 7}, "running", 7, None),
        ({"speculative-algorithm": "EAGLE"}, "running", 48, None),
        ({"chunked-prefill-size": 2048}, "prefill_chunk", 2048, None),
        ({"chunked-prefill-size": 2048}, "prefill_batch", 2048, None),
        ({"chunked-prefill-size": -1}, "prefill_chunk", None, None),
        ({"chunked-prefill-size": -1}, "prefill_batch", 16384, None),
        ({"chunked-prefill-size": -1, "max-prefill-tokens": 9}, "prefill_batch", 9, None),
        ({"max-total-tokens": 9}, "cache_tokens", 9, None),
        ({"enable-hicache": True, "hicache-size": 100}, "tiers", TIERS(kv_bytes=10**11), None),
        ({"enable-hierarchical-cache": True, "hicache-ratio": 3}, "tiers", TIERS(ratio=3.0), None),
        ({"hicache-size": 100}, "tiers", None, None),
        ({"numa-node": "0"}, "binds_memory", True, False),
        ({"page-size": 16}, "page", 16, 1),
        ({"cuda-graph-max-bs": 16}, "graph_batch", 16, None),
        ({"cuda-graph-max-bs-decode": 16, "disable-cuda-graph": True}, "graph_batch", 0, None),
        ({"swa-full-tokens-ratio": 0.5}, "window_ratio", 0.5, 0.8),
        ({"swa-full-tokens-ratio": -1}, "window_ratio", 0.8, 0.8),
        ({"disable-hybrid-swa-memory": True}, "window_ratio", None, 0.8),
        ({"disable-radix-cache": True}, "prefix_cache", False, True),
        ({"enable-metrics": True}, "metrics", True, False),
        ({"enable-cache-report": True}, "cached_tokens_report", True, False),
        ({"grammar-backend": "none"}, "grammar", False, True),
        ({"disable-shared-experts-fusion": True}, "expert_fusion", False, None),
        ({"enforce-shared-experts-fusion": True}, "expert_fusion", True, None),
        ({"moe-a2a-backend": "deepep"}, "fusion_vetoes", ("--moe-a2a-backend deepep",), ()),
        ({"base-gpu-id": 4}, "first_gpu", 4, 0),
        ({"gpu-id-step": 2}, "gpu_step", 2, 1),
        ({"tokenizer-path": "a/b"}, "paths", ("a/b",), ()),
        ({"nccl-init-addr": "10.0.0.1:55"}, "ports", (FixedPort(option="nccl-init-addr", port=55),), ()),
    ],
    ids=str,
)
def test_serving_fact_follows_from_option_or_default(
    flags: dict[str, FlagValue], fact: str, value: object, default: object
) -> None:
    assert (getattr(facts(flags), fact), getattr(facts({}), fact)) == (value, default)


def test_invalid_option_value_falls_back_to_default() -> None:
    """Other checks reject such values, but only after the capacity is computed."""
    assert facts({"page-size": "x", "max-total-tokens": "nan", "pp-size": "1e400", "context-length": 0}) == facts({})


def test_cpu_needs_explicit_grammar_backend() -> None:
    assert not facts({}, platform="cpu").grammar
    assert facts({"grammar-backend": "xgrammar"}, platform="cpu").grammar


def test_sparse_attention_has_fixed_page_size() -> None:
    assert facts({"page-size": 1}, sparse=True).page == 64


def test_recorded_plan_yields_same_serving_facts() -> None:
    plan = load("mi355x-tp8").plan

    assert plan.serving.drafts is not None
    assert recorded_facts(plan.to_dict()) == plan.serving
    assert recorded_facts({"flags": "none"}) is None
    assert "serving" not in plan.to_dict()
