"""What the load client itself costs, side by side with the established ones, in one run on one machine.

    python tests/benchmarks/client_cost.py [--sglang PYTHON] [--aiperf PROGRAM] [--requests 500] [--rates 50,100,200]

Each client sends the same streamed requests to the same scripted server (tests/integration/scripted_server.py, in a
process of its own): 32 ids in, 50 tokens out, one a chunk, TTFT 50 ms, then a token every 5 ms. Printed are CPU seconds
per 1,000 requests (what the client's processes used, less what they use for two requests: start-up is not load), the
median TTFT it reports (the truth is 50 ms), and how late requests came, seen by the server: p99 behind an even spacing
that starts with the most punctual one. sglang.bench_serving has Poisson arrivals only, so its lateness is not known;
what it sent a second is. The last table is the ratio of every other client's cost to ours.
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

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/integration")]

from scripted_server import Answer, Script, scripted  # noqa: E402

from orchestrator.bench.measure import percentile  # noqa: E402

INPUT, OUTPUT, TTFT_S, ITL_S = 32, 50, 0.05, 0.005
WORKLOAD = f"""
description: the client's own cost
source: tests/benchmarks/client_cost.py
input_tokens: {INPUT}
output_tokens: {OUTPUT}
cached_share: 0.0
prefixes: 1
token_ids: [10, 500]
temperature: 0.0
load: open
arrivals: constant
rates_rps: [1.0]
requests: 2
seed: 1
timeout_s: 60
limits: {{ttft_p95_s: 5.0, success_share: 0.99}}
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one client used and saw."""

    cpu_s: float
    ttft_p50_ms: float
    sent_rps: float
    late_p99_ms: float


Client = Callable[
    [str, int, float, Path], tuple[float, float | None]
]  # URL, requests, rate, folder -> TTFT p50, lag p99


def serve(pipe: Connection) -> None:
    """Be the server until told to stop."""
    answer = Answer(ttft_s=TTFT_S, itl_s=ITL_S)
    script = Script(answer=lambda _: answer)
    with scripted(script) as server:
        pipe.send(server.url)
        while pipe.recv():
            pipe.send([each.arrived_s for each in script.exchanges])
            script.forget()


def ours(url: str, requests: int, rate: float, folder: Path) -> float:
    workload = folder / "w.yaml"
    workload.write_text(WORKLOAD)
    argv = [sys.executable, "-m", "orchestrator", "bench", url, "-w", str(workload), f"--rates={rate}"]
    run([*argv, f"--requests={requests}", "--output", str(folder / "out")])
    point = json.loads((folder / "out/result.json").read_text())["points"][0]
    return point["latency"]["ttft_from_send_s"]["p50"] * 1e3


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


def aiperf(program: str, tokenizer: str) -> Client:
    def client(url: str, requests: int, rate: float, folder: Path) -> float:
        argv = [program, "profile", "--model=scripted", f"--url={url}", "--endpoint-type=completions", "--streaming"]
        argv += [f"--tokenizer={tokenizer}", f"--request-count={requests}", f"--request-rate={rate}"]
        argv += [f"--isl={INPUT}", f"--osl={OUTPUT}", "--arrival-pattern=constant", "--ui=none"]
        argv += ["--extra-inputs=ignore_eos:true", f"--output-artifact-dir={folder / 'out'}"]
        run(argv)
        (summary,) = (folder / "out").rglob("profile_export_aiperf.json")
        return json.loads(summary.read_text())["time_to_first_token"]["p50"]

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
    arrived = pipe.recv()[-requests:]  # what came before is a warm-up
    behind = [at - index / rate for index, at in enumerate(arrived)]
    late = sorted(each - min(behind) for each in behind)
    return Cost(
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        ttft_p50_ms=ttft,
        sent_rps=(len(arrived) - 1) / (arrived[-1] - arrived[0]),
        late_p99_ms=percentile(late, 0.99) * 1e3,
    )


def table(clients: dict[str, Client], url: str, pipe: Connection, rates: list[float], requests: int) -> None:
    idle = {name: min(measured(client, url, pipe, 2, 2.0).cpu_s for _ in range(3)) for name, client in clients.items()}
    per_thousand: dict[str, list[float]] = {name: [] for name in clients}
    print(f"{'client':<15}{'rps':>6}{'CPU s / 1,000':>15}{'TTFT p50 ms (50)':>18}{'sent rps':>10}{'late p99 ms':>13}")
    for rate in rates:
        for name, client in clients.items():
            cost = measured(client, url, pipe, requests, rate)
            each = (cost.cpu_s - idle[name]) / requests * 1000
            per_thousand[name].append(each)
            late = "-" if name == "bench_serving" else f"{cost.late_p99_ms:.1f}"
            seen = f"{cost.ttft_p50_ms:>18.1f}{cost.sent_rps:>10.1f}{late:>13}"
            print(f"{name:<15}{rate:>6g}{each:>15.2f}{seen}", flush=True)
    print("\ncost in times ours, by rate")
    for name, costs in per_thousand.items():
        ratios = [theirs / own for theirs, own in zip(costs, per_thousand["deploy"], strict=True)]
        print(f"{name:<15}" + "".join(f"{ratio:>8.1f}" for ratio in ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", help="a python that has sglang")
    parser.add_argument("--aiperf", help="the program aiperf")
    parser.add_argument("--tokenizer", help="a model directory with a tokenizer, for the others")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rates", default="50,100,200")
    chosen = parser.parse_args()
    clients: dict[str, Client] = {"deploy": ours}
    if chosen.sglang:
        clients["bench_serving"] = bench_serving(chosen.sglang, chosen.tokenizer)
    if chosen.aiperf:
        clients["aiperf"] = aiperf(chosen.aiperf, chosen.tokenizer)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    try:
        table(clients, here.recv(), here, [float(rate) for rate in chosen.rates.split(",")], chosen.requests)
    finally:
        here.send(False)
        server.join()


if __name__ == "__main__":
    main()
