"""Two replicas behind the gateway against two within one server, on a load of many shared prefixes; its own cost.

    python tests/benchmarks/replicas.py [REQUESTS] [RESULTS]

Both are real sglang on this machine's CPU, one after the other in one run, measured by `deploy bench` in the same API
(`--api generate`) with the same workload: 16 prefixes, of which the caches of both replicas together hold all, and that
of one replica a part. `--dp-size 2` spreads requests round robin, so each replica needs every prefix; the gateway sends
a prefix where it was before. Then the gateway's own cost: one request after the other to it and, in turns, to a server
behind it, and its CPU time for each request. Needs the environment of `cpu-tiny` (`make demo` builds it). Where the
results are kept in a directory RESULTS, `deploy report RESULTS` sets both layouts side by side.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

PORT = 21977
ROUNDS = 300
DEPLOY = [sys.executable, "-m", "orchestrator"]
SETTINGS = ("hardware.gpus=2", f"server.port={PORT}", "flags.max-total-tokens=32768", "waiting.grace=5")
LAYOUTS = {"--dp-size 2": "layout.dp=2", "replicas: 2": "replicas=2"}
WORKLOAD = """
description: many shared prefixes, more than one replica's cache holds
input_tokens: 3000
output_tokens: 16
cached_share: 0.9
prefixes: 16
token_ids: [10, 500]
temperature: 0.0
load: closed
concurrency: 4
requests: {requests}
seed: 1
timeout_s: 60
limits: {{ttft_p95_s: 60.0, success_share: 0.99}}
"""


def deploy(*words: str) -> str:
    done = subprocess.run([*DEPLOY, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"`deploy {' '.join(words)}` ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def up(setting: str) -> dict[str, Any]:
    chosen = [word for each in (*SETTINGS, setting) for word in ("--set", each)]
    started: dict[str, Any] = json.loads(deploy("up", "cpu-tiny", "--name", "replicas-benchmark", "--json", *chosen))
    return started


def measure(output: Path, name: str, requests: int) -> tuple[float, float, float]:
    """Share of the prompt tokens that came from a cache, by the servers' counters; median TTFT; output tokens/s."""
    workload = output.parent / "shared.yaml"
    workload.write_text(WORKLOAD.format(requests=requests))
    words = ("--api", "generate", "--label", name, "--output", str(output))
    deploy("bench", "replicas-benchmark", "-w", str(workload), *words)
    point = json.loads((output / "result.json").read_text())["points"][0]
    served = point["server"]
    share = served["cached_tokens"] / served["prompt_tokens"]
    return share, point["latency"]["ttft_from_send_s"]["p50"], point["full_run"]["output_tok_per_s"]


def cost(gateway: str, server: str, pid: int) -> tuple[float, float, float]:
    """Median ms of one token through the gateway, and from a server itself; CPU ms of the gateway for a request."""
    body = {"input_ids": list(range(100, 164)), "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    took: dict[str, list[float]] = {gateway: [], server: []}
    with httpx.Client(trust_env=False, timeout=60) as client:
        for url in took:
            client.post(f"{url}/generate", json=body)
        used = -cpu_ms(pid)
        for _ in range(ROUNDS):
            for url, seen in took.items():
                began = time.perf_counter()
                client.post(f"{url}/generate", json=body).raise_for_status()
                seen.append((time.perf_counter() - began) * 1e3)
        used += cpu_ms(pid)
    through, direct = (statistics.median(seen) for seen in took.values())
    return through, direct, used / ROUNDS


def cpu_ms(pid: int) -> float:
    """CPU time of a process so far (proc(5), /proc/pid/stat: utime, stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


def notice(handle: dict[str, Any]) -> float:
    """Seconds from the death of a server until the gateway no longer counts it."""
    os.kill(pid_of(handle["replicas"][1]), 9)
    began = time.perf_counter()
    with httpx.Client(trust_env=False) as client:
        while client.get(f"{handle['url']}/readiness").json()["healthy_workers"] != 1:
            time.sleep(0.02)
    return time.perf_counter() - began


def pid_of(part: dict[str, Any]) -> int:
    record = json.loads(Path(part["run_dir"], "process.json").read_text())
    return int(record["server"].split("/")[1])


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    with tempfile.TemporaryDirectory() as folder:
        results = Path(sys.argv[2] if len(sys.argv) > 2 else folder)
        results.mkdir(parents=True, exist_ok=True)
        for name, setting in LAYOUTS.items():
            started = up(setting)
            try:
                share, ttft, rate = measure(results / setting, name, requests)
                print(
                    f"{name:<12}  from cache {share:5.1%}  TTFT p50 {ttft:.3f} s  {rate:6.1f} output tok/s", flush=True
                )
                if started["replicas"]:
                    through, direct, used = cost(started["url"], started["replicas"][0]["url"], pid_of(started))
                    print(
                        f"gateway: {through:.2f} ms a token, {direct:.2f} ms without it; {used:.2f} ms of CPU a request"
                    )
                    print(f"a dead server is noticed after {notice(started):.1f} s")
            finally:
                deploy("down", "replicas-benchmark")


if __name__ == "__main__":
    main()
