"""The measuring instrument against real sglang: the server's own counters, and sglang's own client, agree with it."""

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest
from cpu_server import CpuServer

from orchestrator.bench.counters import histogram_bucket
from orchestrator.bench.measurement import Order, measure
from orchestrator.bench.workload import Workload, load_workload
from orchestrator.environments import Environment
from orchestrator.results import Latency, MarkKind, Point, Provenance
from orchestrator.state import load_result

pytestmark = pytest.mark.engine

REQUESTS = 40
WORKLOAD = load_workload("smoke-tiny").model_copy(update={"rates_rps": (4.0,), "requests": REQUESTS})
TTFT_HISTOGRAM = "sglang:time_to_first_token_seconds"


def bench(server: CpuServer, directory: Path, *, workload: Workload = WORKLOAD, api: str = "completions") -> Point:
    order = Order(
        url=server.url,
        api=api,
        key=None,
        workload_name="smoke-tiny",
        workload=workload,
        overridden=(),
        command="deploy bench",
        provenance=Provenance(),
        kernel_gate=lambda: None,
        price=None,
        read_energy=None,
        directory=directory,
        earlier=None,
    )
    result = measure(order, lambda _text, _far: None)
    assert {mark.kind for mark in result.marks} <= {MarkKind.CLIENT_LAGGED}  # two cores, and the server is on them
    assert load_result(directory) == result
    return result.points[0]


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_our_figures_are_the_servers_own(server: CpuServer, tmp_path: Path, api: str) -> None:
    point = bench(server, tmp_path, api=api)
    counted, cache, latency = point.server, point.cache, point.latency
    assert counted is not None
    assert cache is not None
    assert latency is not None
    assert counted.requests == point.succeeded == REQUESTS
    assert counted.prompt_tokens == point.input_tokens == REQUESTS * WORKLOAD.input_tokens
    assert counted.output_tokens == point.output_tokens == REQUESTS * WORKLOAD.output_tokens
    assert cache.usage_share is not None
    assert counted.cached_tokens == round(cache.usage_share * point.input_tokens)
    assert cache.usage_share == cache.metrics_share
    assert cache.usage_share_per_request is not None
    assert cache.usage_share_per_request.p50 == WORKLOAD.cached_share
    # of 491 ids two own parts begin with the same one now and then: a token more from cache
    assert cache.usage_share_per_request.max == pytest.approx(WORKLOAD.cached_share, abs=0.005)
    assert counted.ttft_mean_s is not None
    assert counted.e2e_mean_s is not None
    assert latency.ttft_from_send_s.mean > counted.ttft_mean_s  # the client sees the server's time and the way there
    assert latency.e2e_from_send_s.mean > counted.e2e_mean_s
    metrics = httpx.get(f"{server.url}/metrics", trust_env=False).text
    ours = histogram_bucket(metrics, TTFT_HISTOGRAM, latency.ttft_from_send_s.mean)
    assert ours == histogram_bucket(metrics, TTFT_HISTOGRAM, counted.ttft_mean_s)


def test_sglangs_own_client_finds_the_same(
    server: CpuServer, cpu_environment: Environment, tiny_model: Path, tmp_path: Path
) -> None:
    """Same lengths, nothing from cache, same number and rate; theirs sends Poisson arrivals, so ours does."""
    changes = {"cached_share": 0.0, "prefixes": 1, "arrivals": "poisson"}
    workload = WORKLOAD.model_copy(update=changes)
    agreed = []
    for attempt in range(3):  # a machine that is busy with other things for a second spoils one pair
        ours = bench(server, tmp_path / f"ours-{attempt}", workload=workload, api="generate")
        theirs = bench_serving(server, cpu_environment, tiny_model, tmp_path)
        assert theirs["completed"] == ours.succeeded
        assert theirs["total_input_tokens"] == ours.input_tokens
        assert theirs["total_output_tokens"] == ours.output_tokens
        agreed.append(medians_agree(ours.latency, theirs))
        if agreed[-1]:
            break
    assert agreed[-1]


def medians_agree(ours: Latency | None, theirs: dict[str, float]) -> bool:
    assert ours is not None
    assert ours.tpot_s is not None
    pairs = (
        (ours.ttft_from_send_s.p50, theirs["median_ttft_ms"]),
        (ours.e2e_from_send_s.p50, theirs["median_e2e_latency_ms"]),
        (ours.tpot_s.p50, theirs["median_tpot_ms"]),
    )
    return all(own == pytest.approx(other / 1e3, rel=0.25, abs=0.003) for own, other in pairs)


def bench_serving(server: CpuServer, engine: Environment, model: Path, directory: Path) -> dict[str, float]:
    """Run sglang.bench_serving with token-id prompts, and read its result."""
    # it imports Hugging Face datasets for data sets that are not used here
    (directory / "datasets.py").write_text("def load_dataset(*_args, **_options):\n    raise RuntimeError\n")
    written = directory / "theirs.jsonl"
    lengths = [f"--random-input-len={WORKLOAD.input_tokens}", f"--random-output-len={WORKLOAD.output_tokens}"]
    argv = [
        str(engine.python),
        "-m",
        "sglang.bench_serving",
        "--backend=sglang",
        f"--base-url={server.url}",
        f"--model={model}",
        f"--tokenizer={model}",
        "--dataset-name=random-ids",
        *lengths,
        "--random-range-ratio=1.0",
        "--tokenize-prompt",
        f"--num-prompts={REQUESTS}",
        f"--request-rate={WORKLOAD.rates_rps[0]}",
        "--disable-tqdm",
        "--flush-cache",
        f"--output-file={written}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(directory), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    measured: dict[str, float] = json.loads(written.read_text().splitlines()[-1])
    return measured
