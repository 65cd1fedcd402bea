"""Compare the CPU cost and accuracy of load clients on one machine.

    python tests/benchmarks/client_cost.py [--sglang PYTHON] [--aiperf] [--requests 500]
                                           [--rates 50,100,200] [--rounds 5] [--trace]

Each client sends the same streamed requests to the same scripted server (tests/support/scripted_server.py, in its own
process): 32 input ids, 50 output tokens, one in each chunk, a TTFT of 50 ms, then a token every 5 ms. The clients
alternate. The table has medians over the rounds: the CPU seconds for 1,000 requests (without the startup, measured with
two requests), the reported minus the true median TTFT, and the p99 delay of arrivals at the server, relative to evenly
spaced requests that start with the earliest one. sglang.bench_serving has only Poisson arrivals, so that its delay is
unknown. With --trace, deploy and aiperf replay a Mooncake trace of 1,536 input tokens, 1,024 of them shared. The last
table is the cost of the other clients relative to deploy, by round.
"""

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from scripted_server import Answer, Script, scripted  # noqa: E402

from orchestrator.bench.aggregate import percentile  # noqa: E402

INPUT, OUTPUT, TTFT_S, ITL_S = 32, 50, 0.05, 0.005
WORKLOAD = f"""
description: cost of the client
source: tests/benchmarks/client_cost.py
input_tokens: {INPUT}
output_tokens: {OUTPUT}
cache_hit_rate: 0.0
num_prefixes: 1
token_ids: [10, 500]
temperature: 0.0
load: open
arrivals: constant
request_rates: [1.0]
requests: 2
seed: 1
timeout_s: 60
slo: {{ttft_p95_s: 5.0, success_share: 0.99}}
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    cpu_s: float
    ttft_over_ms: float
    sent_rps: float
    late_p99_ms: float


Client = Callable[[str, int, float, Path], float]  # URL, requests, rate, folder -> median TTFT in ms


def serve(pipe: Connection) -> None:
    """Run the server until the pipe says stop."""
    answer = Answer(ttft_s=TTFT_S, itl_s=ITL_S)
    script = Script(answer=lambda _: answer)
    with scripted(script) as server:
        pipe.send(server.url)
        while pipe.recv():
            pipe.send([(exchange.arrived_s, exchange.chunk_s[0] - exchange.arrived_s) for exchange in script.exchanges])
            script.forget()


def trace(folder: Path, requests: int, rate: float) -> Path:
    path = folder / "trace.jsonl"
    line = {"input_length": 3 * 512, "output_length": OUTPUT}
    lines = [
        {"timestamp": round(index / rate * 1e3), **line, "hash_ids": [index % 8, 10 + index % 8, 100 + index]}
        for index in range(requests)
    ]
    path.write_text("".join(json.dumps(item) + "\n" for item in lines))
    return path


def deploy(*program: str, tool: str = "deploy", replay: bool = False) -> Client:
    def client(url: str, requests: int, rate: float, folder: Path) -> float:
        workload = folder / "w.yaml"
        workload.write_text(WORKLOAD)
        load = ["-w", str(workload), f"--request-rate={rate}", f"--requests={requests}"]
        if replay:
            load = ["-w", str(trace(folder, requests, rate))]
        argv = [sys.executable, *program, "bench", url, *load]
        run([*argv, f"--tool={tool}", "--output", str(folder / "out")])
        point = json.loads((folder / "out/result.json").read_text())["points"][0]
        return point["latency"]["ttft_from_send_s"]["p50"] * 1e3

    return client


def bench_serving(python: str, tokenizer: str) -> Client:
    def client(url: str, requests: int, rate: float, folder: Path) -> float:
        (folder / "datasets.py").write_text("def load_dataset(*_args, **_options):\n    raise RuntimeError\n")
        argv = [python, "-m", "sglang.bench_serving", "--backend=sglang-oai", f"--base-url={url}", "--model=scripted"]
        argv += [f"--tokenizer={tokenizer}", "--dataset-name=random-ids", "--random-range-ratio=1.0"]
        argv += [f"--random-input-len={INPUT}", f"--random-output-len={OUTPUT}", "--disable-tqdm"]
        argv += [f"--num-prompts={requests}", f"--request-rate={rate}", f"--output-file={folder / 'o.jsonl'}"]
        run(argv, PYTHONPATH=str(folder), HF_HUB_OFFLINE="1")
        return json.loads((folder / "o.jsonl").read_text())["median_ttft_ms"]

    return client


def run(argv: list[str], **environment: str) -> None:
    done = subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{argv[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def measured(client: Client, url: str, pipe: Connection, requests: int, rate: float) -> Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        ttft = client(url, requests, rate, Path(folder))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    pipe.send(True)
    exchanges = pipe.recv()[-requests:]  # without the warm-up
    arrived, ttfts = [at for at, _ in exchanges], [ttft for _, ttft in exchanges]
    delays = [at - index / rate for index, at in enumerate(arrived)]
    late = sorted(delay - min(delays) for delay in delays)
    return Cost(
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        ttft_over_ms=ttft - median(ttfts) * 1e3,
        sent_rps=(len(arrived) - 1) / (arrived[-1] - arrived[0]),
        late_p99_ms=percentile(late, 0.99) * 1e3,
    )


def table(
    clients: dict[str, Client], measure: Callable[[Client, int, float], Cost], chosen: argparse.Namespace
) -> None:
    idle = {name: min(measure(client, 2, 2.0).cpu_s for _ in range(3)) for name, client in clients.items()}
    ratios: dict[str, list[str]] = {name: [] for name in clients}
    print(f"{'client':<15}{'rps':>6}{'CPU s / 1,000':>15}{'TTFT over ms':>14}{'sent rps':>10}{'late p99 ms':>13}")
    for rate in [float(rate) for rate in chosen.rates.split(",")]:
        costs: dict[str, list[Cost]] = {name: [] for name in clients}
        for number in range(chosen.rounds):
            turns = list(clients.items())
            for name, client in turns if number % 2 else reversed(turns):
                costs[name].append(measure(client, chosen.requests, rate))
        cpu_ms = {name: [(cost.cpu_s - idle[name]) / chosen.requests * 1e3 for cost in costs[name]] for name in clients}
        for name in clients:
            late = "-" if name == "bench_serving" else f"{median(cost.late_p99_ms for cost in costs[name]):.1f}"
            over, sent = (median(getattr(cost, key) for cost in costs[name]) for key in ("ttft_over_ms", "sent_rps"))
            print(f"{name:<15}{rate:>6g}{median(cpu_ms[name]):>15.3f}{over:>14.2f}{sent:>10.1f}{late:>13}", flush=True)
            paired = [other / own for other, own in zip(cpu_ms[name], cpu_ms["deploy"], strict=True)]
            ratios[name].append(f"{median(paired):.2f}")
    print("\ncost relative to deploy, by rate")
    for name, row in ratios.items():
        print(f"{name:<15}" + "".join(f"{ratio:>8}" for ratio in row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", help="a python that has sglang")
    parser.add_argument("--aiperf", action="store_true", help="`deploy bench --tool aiperf`: the same requests")
    parser.add_argument("--tokenizer", help="a model directory with a tokenizer, for sglang")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rates", default="50,100,200")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trace", action="store_true", help="replay a trace")
    chosen = parser.parse_args()
    clients: dict[str, Client] = {"deploy": deploy("-m", "orchestrator", replay=chosen.trace)}
    if chosen.sglang:
        clients["bench_serving"] = bench_serving(chosen.sglang, chosen.tokenizer)
    if chosen.aiperf:
        clients["aiperf"] = deploy("-m", "orchestrator", tool="aiperf", replay=chosen.trace)
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        url = ours.recv()
        table(clients, lambda client, requests, rate: measured(client, url, ours, requests, rate), chosen)
    finally:
        ours.send(False)
        server.join()


if __name__ == "__main__":
    main()
