"""The gate beside `grep` on one synthetic server log: seconds, ratio, and the reader's peak memory.

    PYTHONPATH=tests/samples python tests/benchmarks/kernels_log.py [--gib 1.0] [--folder /tmp]

Both read the same file, warm, in the same run, alternating; the best of the rounds counts. grep counts the lines that
hold one of the two marks, in the C locale; the gate finds the same lines and understands them.
"""

import argparse
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from kernel_samples import FALLBACK, GEMM, HIT, MTP

from orchestrator.kernels.gate import MARK, OTHER_MARK, GateReader

NOISE = (
    "[2026-07-04 12:{:02}:{:02} DP0 TP{}] Decode batch, #running-req: {}, #token: {}, token usage: 0.31, "
    "cuda graph: True, gen throughput (token/s): {}.42, #queue-req: 0"
)
LINES_BETWEEN = 2000  # ordinary lines for each one of aiter's


def block() -> bytes:
    """About 20 MB of log: ordinary lines, and now and then the ones looked for."""
    found = [text.replace(" 16,", f" {1 << size},") for size in range(16) for text in (HIT, FALLBACK, MTP)]
    lines = []
    for number, text in enumerate([*found, GEMM, HIT[:90]]):
        lines += [
            NOISE.format(number % 60, count % 60, count % 8, count % 80, count * 37, count)
            for count in range(LINES_BETWEEN)
        ]
        lines.append(text)
    return "\n".join(lines).encode() + b"\n"


def write(path: Path, size: int) -> None:
    text = block()
    with path.open("wb") as log:
        while log.tell() < size:
            log.write(text)


def by_grep(path: Path) -> tuple[float, int]:
    argv = ["grep", "--count", "--fixed-strings", "-e", MARK.decode(), "-e", OTHER_MARK.decode(), str(path)]
    started = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
    return time.perf_counter() - started, int(done.stdout)


def by_gate(path: Path) -> tuple[float, GateReader]:
    reader = GateReader()
    started = time.perf_counter()
    with path.open("rb") as log:
        reader.feed_chunks(iter(lambda: log.read(1 << 20), b""))
    return time.perf_counter() - started, reader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "server.log"
        write(path, int(given.gib * (1 << 30)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grep, gate = [], []
        for _ in range(given.rounds):
            seconds, lines = by_grep(path)
            grep.append(seconds)
            seconds, reader = by_gate(path)
            gate.append(seconds)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = path.stat().st_size
    report = reader.report()
    print(f"log: {size / 1e9:.2f} GB, {lines} lines with a mark")
    print(f"grep -c -F: {min(grep):.2f} s   gate: {min(gate):.2f} s   ratio {min(gate) / min(grep):.2f}")
    others = len(report.other_quantisations)
    print(f"gate: {len(report.hits)} hits, {len(report.misses)} misses, {others} not per_1x32, {report.torn} torn")
    print(f"peak memory: {before / 1024:.0f} MiB before reading, {after / 1024:.0f} MiB after")


if __name__ == "__main__":
    main()
