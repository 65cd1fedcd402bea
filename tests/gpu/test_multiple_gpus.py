"""On several GPUs: a dead rank in both layouts, two servers on one node, and a benchmark of both layouts on four."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gpu_deploy import IDLE_MIB, GpuCommandLine, assert_free, count, schedulers, used_mib, wait_until

pytestmark = pytest.mark.skipif(count() < 2, reason="this machine has fewer than two NVIDIA GPUs")

SMALL = "model=glm4-moe-random"
LAYOUTS = {"dp2": (SMALL, "layout.tp=1", "layout.dp=2"), "tp2": (SMALL, "layout.tp=2", "layout.dp=1")}
LADDER = "8,16,32,64,96,128"  # requests per second, beyond the knee of both layouts
REQUESTS = 600
SHARED = f"""
description: many shared prefixes, larger than the cache of one DP rank
input_tokens: 4000
output_tokens: 64
cache_hit_rate: 0.9
num_prefixes: 32
token_ids: [10, 500]
temperature: 0.0
load: closed
concurrency: 8
requests: {REQUESTS}
seed: 1
timeout_s: 60
slo: {{ttft_p95_s: 60.0, success_share: 0.99}}
"""
CACHE = "flags.max-total-tokens=90000"  # of each replica; the prefixes have 115,200 tokens
GATEWAY = "http://127.0.0.1:30050"  # a URL, because `bench NAME` reads the counters of all replicas, and one is down
TWO = {"ranks": ("layout.dp=2",), "servers": ("layout.dp=1", "replicas=2")}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dead_rank_is_diagnosed_in_each_layout(deploy: GpuCommandLine, results: Path, layout: str) -> None:
    assert deploy.up("h200x4-tp2dp2", *LAYOUTS[layout], name=layout).code == 0
    words = (
        "--workload",
        "random-4k-256",
        "--request-rate",
        "8,24",
        "--price",
        "3.50",
        "--output",
        str(results / layout),
    )
    assert deploy.run("bench", layout, *words).code == 0

    title, pid = max(schedulers().items())
    os.kill(pid, signal.SIGKILL)
    rank = title.removeprefix("sglang::scheduler_").replace("_", " ")
    result = deploy.run("status", layout)
    assert f"rank {rank} has exited" in result.text
    assert "unhealthy" in result.text
    assert result.seconds < 10
    smoke = deploy.run("smoke", layout)
    assert (smoke.code, smoke.seconds < 10) == (8, True)
    if layout == "tp2":  # the other rank waits for this one, and then ends the server
        wait_until(lambda: schedulers() == {}, within=120)
        assert "fatal: rank-lost" in deploy.run("diagnose", layout).text
    else:
        assert "fatal: rank-ended" in deploy.run("diagnose", layout).text
    assert deploy.run("down", layout).code == 0


@pytest.fixture
def neighbors(deploy: GpuCommandLine) -> Iterator[None]:
    """Start two servers, one on each GPU."""
    assert_free()
    assert deploy.up("h200-tiny", name="left").code == 0
    assert deploy.up("h200-tiny", "flags.base-gpu-id=1", "server.port=30021", name="right").code == 0
    yield
    for name in ("left", "right"):
        deploy.run("down", name)
    assert_free()


@pytest.mark.usefixtures("neighbors")
def test_two_servers_share_a_node(deploy: GpuCommandLine, results: Path) -> None:
    assert min(used_mib()[:2]) > IDLE_MIB
    assert (
        deploy.run(
            "bench", "right", "--workload", "smoke-tiny", "--request-rate", "4", "--output", str(results / "right")
        ).code
        == 0
    )
    result = json.loads((results / "right" / "result.json").read_text())
    assert result["run"]["provenance"]["gpus"] == 1
    assert deploy.run("down", "left").code == 0
    assert used_mib()[0] <= IDLE_MIB
    text = deploy.run("status", "right").text
    assert re.search(r"running for .* healthy", text)


@pytest.mark.usefixtures("free")
def test_replicas_behind_gateway_survive_replacement_under_load(
    deploy: GpuCommandLine, results: Path, tmp_path: Path
) -> None:
    """Compare the cache hits with one server of two ranks; then kill a replica, and replace both under load."""
    workload = tmp_path / "shared.yaml"
    workload.write_text(SHARED)
    measured = {}
    for name, settings in TWO.items():
        assert deploy.up("h200x4-tp2dp2", SMALL, "layout.tp=1", *settings, CACHE, name=name).code == 0
        assert min(used_mib()[:2]) > IDLE_MIB
        measured[name] = _bench(deploy, name, workload, results / f"shared-{name}")["server"]
        if name == "ranks":
            assert deploy.run("down", name).code == 0
            assert_free()
    shares = {name: counted["cached_tokens"] / counted["prompt_tokens"] for name, counted in measured.items()}
    print(f"from cache: {shares}", flush=True)
    assert shares["servers"] > shares["ranks"]

    os.kill(max(schedulers().values()), signal.SIGKILL)
    wait_until(lambda: deploy.run("status", "servers").code != 0, within=60)
    assert deploy.run("restart", "servers").code == 0
    with ThreadPoolExecutor() as pool:
        other = (SMALL, "layout.tp=1", *TWO["servers"], CACHE, "flags.max-running-requests=48")
        replaced = pool.submit(deploy.up, "h200x4-tp2dp2", *other, name="servers", options=("--replace",))
        answered = 0
        while not replaced.done():
            point = _bench(deploy, GATEWAY, workload, results / f"shared-replaced-{answered}")
            assert point["succeeded"] == REQUESTS
            answered += REQUESTS
    assert replaced.result().code == 0
    print(f"{answered} requests meanwhile, all answered", flush=True)
    assert deploy.run("down", "servers").code == 0


def _bench(deploy: GpuCommandLine, name: str, workload: Path, output: Path) -> dict[str, Any]:
    words = ("--workload", str(workload), "--api", "generate", "--output", str(output))
    assert deploy.run("bench", name, *words).code == 0
    point: dict[str, Any] = json.loads((output / "result.json").read_text())["points"][0]
    return point


@pytest.mark.skipif(count() < 4, reason="this machine has fewer than four NVIDIA GPUs")
@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("profile", ["h200x4-tp4", "h200x4-tp2dp2"])
def test_four_gpu_layout_benchmark_matches_sglang_client(deploy: GpuCommandLine, results: Path, profile: str) -> None:
    """Only the run without shared prefixes is compared with sglang's client."""
    assert deploy.up(profile).code == 0
    measured = {
        "ladder": ("--workload", "random-4k-256", "--request-rate", LADDER),
        "single": ("--workload", "single-stream-10k-1.5k"),
        "plain": ("--input-tokens", "4000", "--output-tokens", "256", "--request-rate", "8", "--requests", "96"),
    }
    for name, words in measured.items():
        output = str(results / f"four-{name}" / profile)
        assert deploy.run("bench", profile, *words, "--price", "3.50", "--output", output).code == 0
    sglang = deploy.bench_serving(profile, input_tokens=4000, output_tokens=256, rate=8, requests=96)
    point = json.loads((results / "four-plain" / profile / "result.json").read_text())["points"][0]
    assert sglang["completed"] == point["succeeded"] == 96
    assert deploy.run("down", profile).code == 0
    assert deploy.run("report", str(results / "four-ladder")).code == 0
