"""What the path of a log costs: MB a second of CPU time on one core, and peak memory above that of the imports.

    python tests/benchmarks/log_path.py [megabytes]

Four parts, each in a process of its own: the supervisor's copy (secrets removed), the reading of a growing log, the
lines of a container's log (secrets removed), and the diagnosis of a log. Five logs, an API key known: ordinary decode
lines; one known fault in ten of them; lines of 1 MiB; no line end at all; prompts, as `--log-requests` writes them.
"""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from orchestrator.core.log_lines import LogTail, redacted, split_lines
from orchestrator.core.secret import Secret
from orchestrator.diagnose import diagnose

DECODE: Final = (
    b"[2026-07-02 10:14:31 DP0 TP0] Decode batch, #running-req: 16, #token: 91000, token usage: 0.10, cuda graph: True"
)
FAULT: Final = (
    b"Warning: Multi-backend fused metadata copy kernel failed with error: RuntimeError, falling back to loop."
)
LOGS: Final = {
    "decode lines": b"\n".join([DECODE] * 10) + b"\n",
    "one fault in ten": b"\n".join([*[DECODE] * 9, FAULT]) + b"\n",
    "lines of 1 MiB": DECODE * ((1 << 20) // len(DECODE)) + b"\n",
    "no line end": DECODE,
    "requests, their line ends escaped": b"[2026-07-02 10:14:31] Receive: obj=Req(text='"
    + rb"words of a prompt\n" * 20
    + b"')\n",
}


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        yield from iter(lambda: file.read(1 << 16), b"")


def copy(path: Path) -> None:
    with path.with_suffix(".copy").open("wb", buffering=0) as log:
        for block in redacted(pieces(path)):
            log.write(block.encode())


def read_all(lines: Iterable[str]) -> None:
    deque(lines, maxlen=0)


PARTS: Final[dict[str, Callable[[Path], object]]] = {
    "supervisor's copy": copy,
    "LogTail": lambda path: read_all(LogTail(path).to_end()),
    "container's log": lambda path: read_all(split_lines(redacted(pieces(path)))),
    "diagnosis": lambda path: diagnose(LogTail(path).to_end()),
}


def write(path: Path, text: bytes, size: int) -> None:
    block = text * max((1 << 20) // len(text), 1)
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)


def kib(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def measure(part: str, path: Path) -> None:
    Secret("sk-0123456789-abcdefghij")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    began, before = time.process_time(), kib("VmRSS")
    PARTS[part](path)
    seconds, more = time.process_time() - began, (kib("VmHWM") - before) / 1024
    print(f"{part}: {path.stat().st_size / 1e6 / seconds:.0f} MB/s, {more:.0f} MiB")


def main() -> None:
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
        return
    size = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 500_000_000
    with TemporaryDirectory() as folder:
        path = Path(folder, "server.log")
        for name, text in LOGS.items():
            write(path, text, size)
            print(f"{name}, {path.stat().st_size / 1e6:.0f} MB", flush=True)
            for part in PARTS:
                print("  ", end="", flush=True)
                subprocess.run([sys.executable, __file__, part, str(path)], check=True)


if __name__ == "__main__":
    main()
