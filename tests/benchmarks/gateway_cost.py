"""Measure the CPU time of the gateway, smg, for a streamed request.

    python tests/benchmarks/gateway_cost.py PYTHON [--requests 60] [--tokens 1000]

PYTHON has smg. Two scripted servers (tests/support/scripted_server.py) stream each token as a separate event; four
clients send prompts of 78,000 characters (about 20,000 tokens), 60 % of them shared; the policy is `cache_aware`.
"""

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import httpx

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from ports import free_port
from scripted_server import Answer, Script, scripted


def serve(pipe: Connection) -> None:
    """Run a worker until the pipe says stop."""
    answer = Answer(itl_s=0.0005)
    with scripted(Script(answer=lambda _: answer)) as server:
        pipe.send(server.url)
        pipe.recv()


def measure(python: str, requests: int, tokens: int) -> float:
    """Return the CPU seconds that smg uses for a request."""
    pipes, urls = [], []
    for _ in range(2):
        ours, theirs = multiprocessing.Pipe()
        multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True).start()
        pipes.append(ours)
        urls.append(ours.recv())
    port, metrics_port = free_port(), free_port()
    argv = [python, "-m", "smg", "launch", "--host=127.0.0.1", f"--port={port}", "--prometheus-host=127.0.0.1"]
    argv += [f"--prometheus-port={metrics_port}", "--policy=cache_aware", "--worker-urls", *urls]
    gateway = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, numbers = f"http://127.0.0.1:{port}", random.Random(1)
    shared = [" ".join(str(numbers.randrange(10_000)) for _ in range(9_600)) for _ in range(8)]

    def complete(index: int) -> None:
        prompt = shared[index % 8] + " ".join(str(random.Random(index + n).randrange(10_000)) for n in range(6_400))
        body = {"model": "scripted", "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300, trust_env=False) as response:
            response.raise_for_status()
            response.read()

    def cpu_s() -> float:
        fields = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    try:
        for _ in range(600):
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/readiness", trust_env=False).is_success:
                    break
            time.sleep(0.1)
        complete(-1)
        before = cpu_s()
        with ThreadPoolExecutor(4) as clients:
            list(clients.map(complete, range(requests)))
        return (cpu_s() - before) / requests
    finally:
        gateway.terminate()
        gateway.wait()
        for pipe in pipes:
            pipe.send(True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=1000)
    chosen = parser.parse_args()
    seconds = measure(chosen.python, chosen.requests, chosen.tokens)
    print(f"{seconds * 1e3:.1f} ms for a request of {chosen.tokens} tokens")


if __name__ == "__main__":
    main()
