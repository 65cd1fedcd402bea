"""Compare the benchmark client with real sglang's own counters and with sglang's own client."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from statistics import median
from subprocess import PIPE

import pytest
from cpu_server import CpuServer, processes_of
from scheduling_delay import SchedulingDelay, preferred
from scripted_runs import order_of

from orchestrator.bench.benchmark import measure
from orchestrator.bench.prompts import prompts
from orchestrator.bench.result import IssueKind, Latency, Point
from orchestrator.bench.result_files import load_result
from orchestrator.bench.workload import Workload, load_workload, read_text
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient
from orchestrator.engine.metrics import Metric, quantile, read_buckets, read_metrics
from orchestrator.engine.requests import tokenize_body
from orchestrator.hosts.venvs.venv import Venv

pytestmark = [pytest.mark.engine, pytest.mark.slow]

REQUESTS = 30
WORKLOAD = load_workload("smoke-tiny").model_copy(update={"request_rates": (4.0,), "requests": REQUESTS})
TURNS, TURN_REQUESTS = 3, 14
TOLERANCE = 0.25  # of the median
QUANTITIES = ("ttft", "e2e_latency", "tpot")  # as sglang.bench_serving names them

Medians = dict[str, float]  # seconds
Turn = Callable[[], dict[str, float]]

# Runs in the engine's Python with the client's options; measures once for each line of input.
SGLANG_CLIENT = """
import runpy, sys
import sglang.bench_serving
print("imported", flush=True)
for _ in sys.stdin:
    runpy.run_module("sglang.bench_serving", run_name="__main__", alter_sys=True)
    print("measured", flush=True)
"""


def bench(
    server: CpuServer,
    directory: Path,
    *,
    workload: Workload = WORKLOAD,
    api: str = "completions",
    text_prompts: bool = False,
) -> Point:
    request = order_of(
        server.url, directory, workload=workload, api=api, text=read_text(workload), text_prompts=text_prompts
    )
    result = measure(request, lambda _text, _transient: None)
    assert {issue.kind for issue in result.comparability_issues} <= {
        IssueKind.CLIENT_LAGGED
    }  # client and server share two cores
    assert load_result(directory) == result
    return result.points[0]


@pytest.fixture
def precedence(server: CpuServer) -> Iterator[None]:
    """Give client and server priority over the tests of other workers."""
    with preferred([os.getpid(), *(process.pid for process in processes_of(server.handle))]):
        yield


def test_text_prompts_have_exact_token_counts(server: CpuServer, tmp_path: Path) -> None:
    """The server counts the tokens; the detokenized prompt occurs in the source text."""
    changes = {"prompts": "text", "token_ids": None, "requests": 8, "output_tokens": 4, "input_tokens": 700}
    workload = WORKLOAD.model_copy(update=changes)
    point = bench(server, tmp_path, workload=workload)
    counted = point.server
    assert counted is not None
    assert counted.prompt_tokens == point.input_tokens == 8 * 700
    assert point.cache is not None
    assert point.cache.usage_share == pytest.approx(workload.cache_hit_rate, abs=0.02)
    run = load_result(tmp_path).run
    text = read_text(workload)
    assert run.text_sha256 == hashlib.sha256(text.encode()).hexdigest()
    with EngineClient(server.url, key=None) as client:
        tokens = client.post(endpoints.TOKENIZE, tokenize_body("tiny", text))["tokens"]
        sent = [int(word) for word in next(prompts(workload, "4", 1, tokens)).suffix.split(b",")]
        passage = client.post("/detokenize", {"model": "tiny", "tokens": sent})["text"]
    assert passage.strip() in text


@pytest.mark.parametrize(("kind", "api"), [("random", "completions"), ("text", "completions"), ("text", "generate")])
def test_prompts_sent_as_text_have_exact_token_counts(server: CpuServer, tmp_path: Path, kind: str, api: str) -> None:
    """The server counts the tokens; only the first half of each prompt comes from the cache."""
    changes = {"prompts": kind, "requests": 8, "output_tokens": 4, "input_tokens": 700}
    point = bench(server, tmp_path, workload=WORKLOAD.model_copy(update=changes), api=api, text_prompts=True)
    counted = point.server
    assert counted is not None
    assert counted.prompt_tokens == point.input_tokens == 8 * 700
    assert point.succeeded == 8
    assert point.cache is not None
    assert point.cache.usage_share == pytest.approx(WORKLOAD.cache_hit_rate, abs=0.01)
    assert load_result(tmp_path).run.endpoint.prompts_as == "text"


@pytest.mark.usefixtures("precedence")
@pytest.mark.parametrize("api", ["completions", "generate"])
def test_client_metrics_match_server_metrics(server: CpuServer, tmp_path: Path, api: str) -> None:
    delay = SchedulingDelay()
    with EngineClient(server.url, key=None) as client:
        before = client.exported()
        with delay.measured():
            point = bench(server, tmp_path, api=api)
        after = client.exported()
    first, last = (read_buckets(text, Metric.TTFT) for text in (before, after))
    assert last[inf] - first.get(inf, 0) >= REQUESTS  # plus the warm-up requests
    assert last[inf] == read_metrics(after)[f"{Metric.TTFT}_count"]
    assert quantile(first, last, 0.5) is not None
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
    assert counted.ttft_mean_s is not None
    assert counted.e2e_mean_s is not None
    assert latency.ttft_from_send_s.mean > counted.ttft_mean_s  # the client's time includes the network
    assert latency.e2e_from_send_s.mean > counted.e2e_mean_s
    assert latency.ttft_from_send_s.mean <= counted.ttft_mean_s * (1 + TOLERANCE) + delay.max_s
    assert latency.e2e_from_send_s.mean <= counted.e2e_mean_s * (1 + TOLERANCE) + delay.max_s


@pytest.mark.usefixtures("precedence")
def test_results_match_sglang_benchmark_client(server: CpuServer, sglang_turn: Turn, tmp_path: Path) -> None:
    """Both clients send prompts of the same lengths at the same rate with Poisson arrivals, without cache hits.

    The tolerance grows with the variation of each client. If a client's own medians differ by more than `TOLERANCE`,
    the machine is too busy, and the times are not judged.
    """
    changes = {"cache_hit_rate": 0.0, "num_prefixes": 1, "arrivals": "poisson", "requests": TURN_REQUESTS}
    workload = WORKLOAD.model_copy(update=changes)
    ours, theirs = list[Medians](), list[Medians]()
    for turn in range(TURNS):
        own = bench(server, tmp_path / f"ours-{turn}", workload=workload, api="generate")
        other = sglang_turn()
        assert other["completed"] == own.succeeded == TURN_REQUESTS
        assert other["total_input_tokens"] == own.input_tokens
        assert other["total_output_tokens"] == own.output_tokens
        ours.append(our_medians(own.latency))
        theirs.append({name: other[f"median_{name}_ms"] / 1e3 for name in QUANTITIES})
    by_name = {name: ([our[name] for our in ours], [their[name] for their in theirs]) for name in QUANTITIES}
    differing = [name for name, (own, other) in by_name.items() if not agree(own, other)]
    noisy = {name: max(map(relative_range, by_name[name])) for name in differing}
    if differing and min(noisy.values()) > TOLERANCE:
        pytest.skip(f"not judged: one client's own medians differ by {noisy}; the tokens agree")
    assert not differing, (ours, theirs)


def our_medians(latency: Latency | None) -> Medians:
    assert latency is not None
    assert latency.tpot_s is not None
    values = (latency.ttft_from_send_s.p50, latency.e2e_from_send_s.p50, latency.tpot_s.p50)
    return dict(zip(QUANTITIES, values, strict=True))


def agree(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether the median difference within a turn is small, allowing for each client's own variation."""
    difference = median(own - other for own, other in zip(ours, theirs, strict=True))
    return abs(difference) <= (TOLERANCE + max(relative_range(ours), relative_range(theirs))) * median(theirs)


def relative_range(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / median(values)


@pytest.fixture(scope="module")
def sglang_turn(
    server: CpuServer, cpu_environment: Venv, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Turn]:
    """Run sglang.bench_serving with token-id prompts in one process: its imports take longer than a turn."""
    directory = tmp_path_factory.mktemp("theirs")
    # a stub: sglang.bench_serving imports Hugging Face datasets, which this test does not use
    (directory / "datasets.py").write_text("def load_dataset(*_args, **_options):\n    raise RuntimeError\n")
    written = directory / "theirs.jsonl"
    options = [
        "--backend=sglang",
        f"--base-url={server.url}",
        f"--model={tiny_model}",
        f"--tokenizer={tiny_model}",
        "--dataset-name=random-ids",
        f"--random-input-len={WORKLOAD.input_tokens}",
        f"--random-output-len={WORKLOAD.output_tokens}",
        "--random-range-ratio=1.0",
        "--tokenize-prompt",
        f"--num-prompts={TURN_REQUESTS}",
        f"--request-rate={WORKLOAD.request_rates[0]}",
        "--disable-tqdm",
        "--flush-cache",
        f"--output-file={written}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(directory), "HF_HUB_OFFLINE": "1"}
    argv = [str(cpu_environment.python), "-c", SGLANG_CLIENT, *options]
    log = directory / "theirs.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(argv, env=environment, stdin=PIPE, stdout=PIPE, stderr=errors, text=True) as process,
    ):
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def turn() -> dict[str, float]:
            with preferred([process.pid]):
                print(file=stdin, flush=True)
                assert "measured\n" in stdout, log.read_text()[-2000:]
            measured: dict[str, float] = json.loads(written.read_text().splitlines()[-1])
            return measured

        try:
            assert "imported\n" in stdout, log.read_text()[-2000:]  # importing takes a core for seconds
            yield turn
        finally:
            process.kill()
