"""What `deploy up` takes where the server writes a gigabyte of log before it serves, beside one that writes none.

    python tests/benchmarks/log_up.py [--megabytes 1000] [--rounds 3]

The scripted engine of the attacks, after as much of sglang's lines as a shell can write: seconds of wall clock, and of
CPU time in `up` and in the supervisor, which copies the log without its secrets. The best round counts.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ENGINE = Path(__file__).parents[1] / "attack/scripted_engine.py"
LINE = (
    "[2026-07-02 10:14:31 DP0 TP0] Decode batch, #running-req: 16, #token: 91000, token usage: 0.10, cuda graph: True"
)
WRAPPER = """#!/bin/sh
case "$*" in *launch_server*) yes '{line}' | head -c {size} ;; esac
exec {engine} "$@"
"""


def deploy(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DEPLOY_HOME": str(home), "DOCKER_HOST": "unix:///nonexistent", "KEY": "sk-0123456789-abcde"}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words], check=False, env=env, text=True, capture_output=True
    )


def supervisor_seconds(home: Path) -> float:
    """CPU time of the supervisor, which is told by its environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"supervised.supervisor" in (folder / "cmdline").read_bytes()
                and str(home).encode() in (folder / "environ").read_bytes()
            ):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            continue
    return 0.0


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def once(folder: Path, size: int, port: int) -> tuple[float, float, float]:
    wrapper = folder / "python"
    wrapper.write_text(WRAPPER.format(line=LINE, size=size, engine=ENGINE))
    wrapper.chmod(0o755)
    home = folder / "home"
    settings = [f"server.port={port}", f"engine.python={wrapper}", "waiting.grace=2", "model.questions=null"]
    chosen = [word for each in (*settings, "server.api_key_env=KEY") for word in ("--set", each)]
    begun, before = time.perf_counter(), cpu_of_children()
    done = deploy(home, "up", "cpu-tiny", "--name", "target", *chosen)
    seconds, own, copying = time.perf_counter() - begun, cpu_of_children() - before, supervisor_seconds(home)
    deploy(home, "down", "target")
    if done.returncode:
        raise SystemExit(done.stderr)
    return seconds, own, copying


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=9917)
    given = parser.parse_args()
    for size in (0, given.megabytes * 1_000_000):
        rounds = []
        for _ in range(given.rounds):
            with TemporaryDirectory() as folder:
                rounds.append(once(Path(folder), size, given.port))
        wall, own, copying = min(rounds)
        print(
            f"{size / 1e6:5.0f} MB of log: `up` {wall:.1f} s; CPU: {own:.1f} s, supervisor {copying:.1f} s", flush=True
        )


if __name__ == "__main__":
    main()
