"""The capacity of `deploy show --capacity` matches the log of sglang on real GPUs.

On one, two and four GPUs, with a cache of bfloat16 and of FP8. FP8 uses Triton attention, because an FA3 library may
have been reduced to bfloat16.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from gpu_deploy import SETTINGS, GpuCommandLine, assert_free, count

WITHIN = 0.05
GIB = 1 << 30
SMALL = "model=glm4-moe-random"
FP8 = ("flags.kv-cache-dtype=fp8_e4m3", "flags.attention-backend=triton")
CASES = {
    "tp1-bf16": ("h200-glm-mtp", 1, ()),
    "tp1-fp8": ("h200-glm-mtp", 1, FP8),
    "tp2-bf16": ("h200x4-tp2dp2", 2, ("layout.dp=1", SMALL)),
    "tp2-fp8": ("h200x4-tp2dp2", 2, ("layout.dp=1", SMALL, *FP8)),
    "tp4-bf16": ("h200x4-tp4", 4, ()),
    "tp4-fp8": ("h200x4-tp4", 4, FP8),
}


@dataclass(frozen=True)
class Compared:
    """The computed capacity, and the log of the server."""

    computed: dict[str, dict[str, float]]
    log: str

    def logged(self, pattern: str) -> list[float]:
        """Return all numbers that match in the log, of the first rank only."""
        lines = [line for line in self.log.splitlines() if not re.search(r" TP[1-9][0-9]*\]", line)]
        return [float(found) for line in lines for found in re.findall(pattern, line)]


@pytest.fixture(scope="module", params=CASES)
def compared(request: pytest.FixtureRequest, deploy: GpuCommandLine) -> Iterator[Compared]:
    """Compute the capacity of a case, and start its server; another test checks its responses."""
    profile, gpus, settings = CASES[request.param]
    if count() < gpus:
        pytest.skip(f"{request.param} needs {gpus} NVIDIA GPUs, this machine has {count()}")
    chosen = [*SETTINGS, *(word for setting in settings for word in ("--set", setting))]
    assert_free()
    shown = deploy.run("show", profile, "--capacity", "--json", *chosen)
    started = deploy.run("up", "--profile", profile, "--name", request.param, "--keep-failed", *chosen)
    log = deploy.run("logs", request.param).text
    yield Compared(computed=json.loads(shown.text[shown.text.index("{") :]), log=log)
    deploy.run("down", request.param)
    assert_free()
    assert started.code in {0, 8}  # ready, with any result of the smoke test


def test_computed_token_capacity_matches_log(compared: Compared) -> None:
    tokens = compared.logged(r"max_total_num_tokens=([0-9]+)")
    assert tokens
    print(f"tokens: computed {compared.computed['cache']['tokens']:,}, logged {tokens[0]:,.0f}", flush=True)
    assert compared.computed["cache"]["tokens"] == pytest.approx(tokens[0], rel=WITHIN)


def test_computed_kv_cache_size_matches_log(compared: Compared) -> None:
    """The pools of keys and values of the target and the draft model are logged in GiB."""
    pools = sum(compared.logged(r"[KV] size: ([0-9.]+) GB"))
    tokens = compared.logged(r"KV Cache is allocated.*#tokens: ([0-9]+)")[0]
    computed = compared.computed["cache"]["actual_token_bytes"] * tokens / GIB
    print(f"cache: computed {computed:.2f} GiB, logged {pools:.2f} GiB", flush=True)
    assert computed == pytest.approx(pools, rel=WITHIN)


def test_computed_weights_and_free_memory_match_log(compared: Compared) -> None:
    memory = compared.computed["memory"]
    weights = sum(compared.logged(r"Load weight end.*mem usage=([0-9.]+) GB"))
    free = compared.logged(r"Load weight begin\. avail mem=([0-9.]+) GB")[0]
    left = compared.logged(r"available_gpu_mem=([0-9.]+) GB")[0]
    print(
        f"weights: computed {memory['weights_bytes'] / GIB:.2f} GiB, logged {weights:.2f}; free before them: "
        f"{memory['free_bytes'] / GIB:.2f} and {free:.2f}; free at the end: {left:.2f}",
        flush=True,
    )
    assert memory["weights_bytes"] / GIB == pytest.approx(weights, rel=WITHIN)
    assert memory["free_bytes"] / GIB == pytest.approx(free, rel=WITHIN)
    # The safe fraction leaves enough memory for all allocations after the cache.
    available = memory["free_bytes"] / GIB * (1 - memory["fraction"])
    assert available - left < memory["activation_bytes"] / GIB
