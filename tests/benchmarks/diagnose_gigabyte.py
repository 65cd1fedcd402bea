"""How long a log of 1 GB takes to diagnose, in how much memory, beside merely reading its lines in one run.

    python tests/benchmarks/diagnose_gigabyte.py [gigabytes]

Two logs: of ordinary decode lines, and one in which every tenth line is a known fault.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.core.log_lines import LogTail
from orchestrator.diagnose import diagnose

DECODE = (
    "[2026-07-02 10:14:31 DP0 TP0] Decode batch, #running-req: 16, #token: 91000, token usage: 0.10, cuda graph: True"
)
FAULT = "Warning: Multi-backend fused metadata copy kernel failed with error: RuntimeError, falling back to loop."


def write(path: Path, lines: list[str], size: float) -> None:
    block = ("\n".join(lines) + "\n").encode() * 1000
    with path.open("wb") as file:
        for _ in range(int(size * 1e9 / len(block))):
            file.write(block)


def seconds(read: Callable[[Iterable[str]], object], path: Path) -> float:
    began = time.perf_counter()
    read(LogTail(path).to_end())
    return time.perf_counter() - began


def count(lines: Iterable[str]) -> int:
    return sum(1 for _ in lines)


def main() -> None:
    size = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with TemporaryDirectory() as folder:
        for name, lines in {"decode lines": [DECODE] * 10, "one fault in ten": [*[DECODE] * 9, FAULT]}.items():
            path = Path(folder, "server.log")
            write(path, lines, size)
            plain, diagnosed = seconds(count, path), seconds(diagnose, path)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{name}: {size:g} GB read in {plain:.1f} s, diagnosed in {diagnosed:.1f} s "
                f"(ratio {diagnosed / plain:.2f}), peak memory of the process {memory:.0f} MiB"
            )


if __name__ == "__main__":
    main()
