"""Compare the forecast hit rate of a trace with real sglang whose pool is too small for the trace."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from cpu_server import CpuEngine, CpuServer
from scripted_runs import order_of

from orchestrator.bench.benchmark import measure
from orchestrator.bench.sessions import open_sessions
from orchestrator.bench.workload import Workload

POOL_TOKENS = 8192
TOLERANCE = 0.03  # sglang evicts whole tree nodes, and makes room for a prompt before it is cached


@pytest.fixture(scope="module")
def capped(cpu_engine: CpuEngine) -> Iterator[CpuServer]:
    """Start a server with a pool of `POOL_TOKENS` tokens."""
    flags = ("flags.context-length=4096", f"flags.max-total-tokens={POOL_TOKENS}", "flags.enable-cache-report=true")
    server = cpu_engine.start("capped", *flags)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def trace(file: Path) -> Path:
    """Write 12 interleaved sessions of 5 turns: each prompt extends the previous one; all share the first block."""
    draw, requests, block = Random(5), list[tuple[float, dict[str, object]]](), 10
    for _ in range(12):
        at, ids = draw.uniform(0, 12), [0]
        for _turn in range(5):
            block += 1
            ids = [*ids, block]
            tokens = 512 * len(ids) - draw.randint(0, 400)
            line = {"timestamp": round(at * 1000), "input_length": tokens, "output_length": 8, "hash_ids": ids}
            requests.append((at, line))
            at += draw.uniform(2, 14)
    file.write_text("".join(json.dumps(line) + "\n" for _, line in sorted(requests, key=lambda request: request[0])))
    return file


@pytest.mark.slow
def test_measured_cache_hit_rate_matches_forecast(capped: CpuServer, tmp_path: Path) -> None:
    workload = Workload(
        trace=str(trace(tmp_path / "trace.jsonl")), load="closed", concurrency=1, token_ids=(10, 500), timeout_s=120
    )
    request = order_of(capped.url, tmp_path / "out", workload=workload, source=open_sessions(workload))
    result = measure(request, lambda _text, _transient: None)
    forecast, (point,) = result.run.cache_forecast, result.points
    assert forecast is not None
    assert forecast.cache_tokens == POOL_TOKENS
    assert point.cache is not None
    assert point.cache.metrics_share == pytest.approx(forecast.share, abs=TOLERANCE)
    assert point.cache.achievable_share == forecast.share
    assert forecast.share is not None
    assert forecast.share < forecast.unlimited_share - 0.2  # the pool is too small
