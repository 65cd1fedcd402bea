"""Measure the time that `deploy up` adds to the start of a server.

    python tests/benchmarks/up_overhead.py [ROUNDS [IMAGE]]

By hand: run the rendered command, and poll `/health` every 0.1 s until it returns 200. `deploy up`: the time from its
start to the ready line, and the time with the smoke test. The two alternate, so that other load on the machine affects
both. Needs the environment of `cpu-tiny` (`make demo` builds it). With IMAGE (built by tests/support/rocm_image.py with
sglang), both are containers, by hand with the rendered `docker run` script.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time

import httpx

PORT = 21877
IMAGE = sys.argv[2] if len(sys.argv) > 2 else None
SETTINGS = {"server.port": str(PORT)}
if IMAGE:
    SETTINGS |= {
        "runtime": "docker",
        "engine.image": IMAGE,
        "engine.dockerfile": "sglang-rocm",
        "engine.source_dir": "/sgl-workspace/sglang/python/sglang",
        "engine.aiter_dir": "/sgl-workspace/aiter",
    }
SET = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
DEPLOY = [sys.executable, "-m", "orchestrator"]


def by_hand(run_dir: str) -> float:
    """Return the seconds from the start of the command in the run directory to a 200 from /health."""
    start = time.perf_counter()
    devnull = subprocess.DEVNULL
    script = f"{run_dir}/{'docker-run.sh' if IMAGE else 'server.sh'}"
    process = subprocess.Popen(["sh", script], stdout=devnull, stderr=devnull, start_new_session=True)
    try:
        while not is_healthy():
            time.sleep(0.1)
        return time.perf_counter() - start
    finally:
        if IMAGE:
            subprocess.run(["docker", "rm", "--force", "deploy-cpu-tiny"], check=True, capture_output=True)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_healthy() -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{PORT}/health", timeout=30, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def by_deploy() -> tuple[float, float, str]:
    """Return the seconds to ready and to verified, and the run directory."""
    start, ready = time.perf_counter(), 0.0
    with subprocess.Popen([*DEPLOY, "up", "--profile", "cpu-tiny", *SET], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("ready after"):
                ready = time.perf_counter() - start
    done = time.perf_counter() - start
    [server] = json.loads(
        subprocess.run([*DEPLOY, "status", "cpu-tiny", "--json"], capture_output=True, check=True).stdout
    )
    subprocess.run([*DEPLOY, "down", "cpu-tiny"], check=True, capture_output=True)
    return ready, done, server["run_dir"]


def main(rounds: int) -> None:
    _, _, run_dir = by_deploy()  # builds what is missing, and fills the file cache
    hand, ready, verified = [], [], []
    for _ in range(rounds):
        hand.append(by_hand(run_dir))
        seconds, done, _ = by_deploy()
        ready.append(seconds)
        verified.append(done)
    median = statistics.median
    print(f"by hand, polled        {median(hand):6.2f} s   {[round(item, 1) for item in hand]}")
    print(f"deploy up, to ready    {median(ready):6.2f} s   {[round(item, 1) for item in ready]}")
    print(f"deploy up, to verified {median(verified):6.2f} s")
    print(f"ratio to ready         {median(ready) / median(hand):6.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
