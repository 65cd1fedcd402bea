"""Computed capacity of each attention family compared with logs of an H200; tests/gpu repeats it on a GPU."""

from pathlib import Path

import pytest
from reduced_configs import FAMILIES, Logged, read_log

LOG = """Load weight begin. avail mem=139.09 GB
Load weight end. elapsed=0.15 s, type=Qwen3NextForCausalLM, avail mem=137.10 GB
Load weight begin. avail mem=137.10 GB
Load weight end. elapsed=0.01 s, type=Qwen3NextForCausalLMMTP, avail mem=136.87 GB
max_mamba_cache_size: 780
Mamba Cache is allocated.
KV Cache is allocated.
Load weight end. avail mem=1.00 GB
max_total_num_tokens=6268187, max_running_requests=48
"""


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.logged])
def test_computed_capacity_matches_gpu_log(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    assert family.logged is not None
    cache = family.computed(tmp_path, family.logged)
    print(f"{name}: computed {cache.tokens:,} tokens, logged {family.logged.tokens:,}")
    assert cache.tokens == pytest.approx(family.logged.tokens, rel=0.02)
    assert (cache.requests.slots if cache.requests else 0) == pytest.approx(family.logged.slots or 0, rel=0.02)


def test_log_is_parsed_up_to_cache_allocation() -> None:
    assert read_log(LOG) == Logged(139.09, 136.87, 6268187, 780) == FAMILIES["gdn-drafts"].logged
