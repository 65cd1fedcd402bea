"""Measure the peak memory of `deploy bench` for traces of different lengths; it should be constant.

    python tests/benchmarks/replay_memory.py [--requests 300,3000,30000] [--output-tokens 50] [--turns 1]

The scripted server (tests/support/scripted_server.py) runs in its own process. A line has one block of 512 tokens. With
--turns N, N lines form a session, and each prompt has one block more than the previous one.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from scripted_server import Script, scripted  # noqa: E402


class EmptyList(list[object]):
    """Ignores `append`, so that the server's memory does not grow."""

    def append(self, _: object) -> None:
        pass


def serve(pipe: Connection) -> None:
    """Run the server until the pipe says stop."""
    nothing = EmptyList()
    script = Script(pinned=nothing, bodies=nothing, heads=nothing, exchanges=nothing)  # type: ignore[arg-type]
    with scripted(script) as server:
        pipe.send(server.url)
        pipe.recv()


def write_trace(path: Path, requests: int, output: int, turns: int) -> None:
    with path.open("w") as file:
        for number in range(requests):
            first, turn = number // turns, number % turns
            line = {"input_length": 512 * (turn + 1), "output_length": output, "timestamp": 10 * number}
            ids = [100 * first + item for item in range(turn + 1)]
            session = {"session_id": f"s{first}"} if turns > 1 else {}
            file.write(json.dumps({**line, **session, "hash_ids": ids}) + "\n")


def peak_mib(url: str, folder: Path, trace: Path) -> tuple[float, float]:
    """Return the peak memory in MiB and the seconds of one replay."""
    argv = [sys.executable, "-m", "orchestrator", "bench", url, "-w", str(trace), "--concurrency", "16"]
    begin = time.monotonic()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*argv, "--output", str(folder / "out")],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit((folder / "log").read_text()[-2000:])
    return usage.ru_maxrss / 1024, time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", default="300,3000,30000")
    parser.add_argument("--output-tokens", type=int, default=50)
    parser.add_argument("--turns", type=int, default=1)
    chosen = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url = ours.recv()
    print(f"{'requests':>9}{'peak MiB':>10}{'seconds':>9}")
    for requests in map(int, chosen.requests.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace.jsonl")
            write_trace(trace, requests, chosen.output_tokens, chosen.turns)
            peak, seconds = peak_mib(url, Path(folder), trace)
        print(f"{requests:>9}{peak:>10.1f}{seconds:>9.1f}", flush=True)
    ours.send(None)
    server.join()


if __name__ == "__main__":
    main()
