"""Measure how fast logs are processed: MB for each second of CPU time, and peak memory above that of the imports.

    python tests/benchmarks/log_path.py [--megabytes 50] [--rounds 3] [--against TREE] [--only WORD] [--parts copy,tail]

Five parts, each in its own process: the supervisor's copy (with redaction), reading a growing log, the lines of a
container's log (with redaction), waiting for readiness (parsing stages), and the diagnosis. `LOGS` has every kind of
log that was once slow; an API key is known. The output is the best of the rounds. `--against` alternates with another
checkout, and prints its value first.
"""

import argparse
import importlib
import os
import random
import string
import subprocess
import sys
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Final, cast

KEY: Final = "sk-0123456789-abcdefghij"
DECODE: Final = (
    b"[2026-07-02 10:14:31 DP0 TP0] Decode batch, #running-req: 16, #token: 91000, token usage: 0.10, cuda graph: True"
)
FAULT: Final = (
    b"Warning: Multi-backend fused metadata copy kernel failed with error: RuntimeError, falling back to loop."
)
BAR: Final = b"Loading safetensors checkpoint shards:  38% Completed | 18/47 [00:31<00:49,  1.71s/it]"
CAPTURE: Final = "Capturing batches (bs=16 avail_mem=40.11 GB):  25%|██▌       | 5/20 [00:10<00:30]".encode()
PROBE: Final = b'\x1b[32mINFO\x1b[0m:     127.0.0.1:51234 - "\x1b[1mGET /health HTTP/1.1\x1b[0m" \x1b[32m200 OK\x1b[0m'
SERVED: Final = b'[2026-07-02 10:14:31] INFO:     127.0.0.1:51234 - "POST /v1/completions HTTP/1.1" 200 OK'
PROMPT: Final = b"[2026-07-02 10:14:31] Receive: obj=Req(text='" + rb"words of a prompt\n" * 20 + b"')"
ERRORS: Final = (
    b'  File "/opt/sglang/srt/managers/scheduler.py", line 3021, in run_scheduler_process',
    b"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 287.98 GiB",
    b"RuntimeError: CUDA error: an illegal memory access was encountered",
    FAULT,
    b"[2026-07-02 10:14:31 TP0] Scheduler hit an exception: Traceback (most recent call last):",
)
_DICE: Final = random.Random(1)
_SECRETS: Final = ["".join(_DICE.choices(string.ascii_letters, k=24)).encode() for _ in range(20_000)]
FLOODS: Final = {
    "api_key": b"api_key=%b, and so on",
    "hf_": b"it is hf_%b, and so on",
    "URLs": b"at https://me:%b@pypi.example.org/simple",
    "Basic": b"Authorization: Basic %b, and so on",
}
LOGS: Final = {
    "decode lines": b"\n".join([DECODE] * 10),
    "one fault in ten": b"\n".join([*[DECODE] * 9, FAULT]),
    "error storm, one fault": FAULT,
    "error storm, tracebacks": b"\n".join(ERRORS),
    "lines of 1 MiB": DECODE * ((1 << 20) // len(DECODE)),
    "lines of 1 MiB, one fault each": DECODE * ((1 << 20) // len(DECODE)) + FAULT,
    "requests, their line ends escaped": PROMPT,
    "quotes and backslashes": rb"{\"text\": \"C:\\temp\\new\"}" * 4,
    "percent, some": DECODE + b' "GET /v1/files/a%20b%2Fc HTTP/1.1"',
    "percent, all": b"%41%62%2f" * 40,
    "JSON numbers, all": rb"\u0041\u4e2d\u0062" * 20,
    "bytes written out": rb"\x41\xe4\xff" * 20,
    "colors": b"\x1b[32mINFO\x1b[0m: " + DECODE,
    "colors, all": b"\x1b[1;31ma\x1b[0m" * 30,
    "loading": b"\n".join([b"Load weight begin.", *[BAR] * 200]),
    "capturing": b"\n".join([b"Capture cuda graph begin.", *[CAPTURE] * 200]),
    "loading, no bar": b"[2026-07-02 10:14:31] loading something else that is said again and again",
    "probes": PROBE,
    "served requests": SERVED,
    "words of secrets": b"the API key is needed, api_key=None, hf_token=None, a basic bearer of the token is at hand",
    "lookalikes": b"Authorization: Bearer abc.def-1 api_key='wJ4-zTq8-mMv2'",
    "passwords in URLs": b"Looking in indexes: https://me:pa55word@pypi.example.org/simple for me@example.org",
    "flood, bearer": b"\n".join(b"Authorization: Bearer %b, and so on" % secret for secret in _SECRETS),
    **{f"flood, {name}": b"\n".join(line % secret for secret in _SECRETS) for name, line in FLOODS.items()},
    "flood of all": b"\n".join(line % secret for secret in _SECRETS[:2000] for line in FLOODS.values()),
    "no secret, each another": b"\n".join(b"api_key=None %b hf_token=None" % secret for secret in _SECRETS),
    "words, each another": b"\n".join(b"the key of %b is basic, me@host.org" % secret for secret in _SECRETS),
    "a quote that never closes": b"\n".join(b"api_key='%b" % (secret * 40) for secret in _SECRETS[:2000]),
    "the key, in base64": b64encode(b"me:" + KEY.encode()) + b" is at hand",
    "the key, escaped": KEY.replace("-", "%2d").encode() + b" is at hand, and so on, and on",
    "the key, in many ways": b"%b %b %b"
    % (b64encode(b"me:" + KEY.encode()), KEY.replace("-", "\\u002d").encode(), KEY.encode()),
    "the key": b"it is " + KEY.encode() + b", and so on, and on, and on, and on",
    "other letters": "重みを読み込んでいます、しばらくお待ちください".encode(),
    "no text": bytes(range(256)),
    "short lines": b"a",
    "empty lines": b"\n" * 50 + b"a",
}


def pieces(path: Path, size: int = 1 << 16) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        yield from iter(lambda: file.read(size), b"")


def copy(path: Path) -> None:
    from orchestrator.core.logs.lines import redacted
    from orchestrator.runtimes.supervisor.main import _CHUNK_BYTES

    with path.with_suffix(".copy").open("wb", buffering=0) as log:
        for block in redacted(pieces(path, _CHUNK_BYTES)):
            log.write(block.encode())


def tail(path: Path) -> Iterator[str]:
    from orchestrator.core.logs.lines import LogTail

    return LogTail(path).to_end()


def of_container(path: Path) -> None:
    from orchestrator.core.logs.lines import Lines, coalesce, redacted

    read_all(Lines(redacted(coalesce(pieces(path, 1 << 14)))))  # the largest block of a Docker daemon


def awaited(path: Path) -> None:
    from orchestrator.verify import readiness

    log = LogTailOf(path)
    server = SimpleNamespace(log=log, url="http://127.0.0.1:1", state=lambda: SimpleNamespace(restarts=0))
    wait = readiness._Wait(cast("readiness.StartingServer", server), client=None, clock=time.monotonic, end=1e9)  # type: ignore[arg-type]
    wait._read_log()


def LogTailOf(path: Path) -> Callable[[], Iterable[str]]:  # noqa: N802
    from orchestrator.core.logs.lines import LogTail

    return LogTail(path)


def diagnosed(path: Path) -> None:
    from orchestrator.diagnose.match import diagnose

    diagnose(tail(path))


def read_all(lines: Iterable[str]) -> None:
    deque(lines, maxlen=0)


PARTS: Final[dict[str, Callable[[Path], object]]] = {
    "copy": copy,
    "tail": lambda path: read_all(tail(path)),
    "container": of_container,
    "wait": awaited,
    "diagnosis": diagnosed,
}


def write(path: Path, text: bytes, size: int) -> None:
    block = (text + b"\n") * max((1 << 20) // (len(text) + 1), 1)
    with path.open("wb") as file:
        for _ in range(max(size // len(block), 1)):
            file.write(block)


def kib(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def measure(part: str, path: Path) -> None:
    from orchestrator.core.secrets import Secret
    from orchestrator.diagnose.match import diagnose
    from orchestrator.verify import readiness

    Secret(KEY)
    importlib.import_module("orchestrator.runtimes.supervisor.main")
    diagnose([readiness.__name__])  # loads the catalog and compiles the search
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory
    began, before = time.process_time(), kib("VmRSS")
    PARTS[part](path)
    seconds, more = time.process_time() - began, (kib("VmHWM") - before) / 1024
    print(path.stat().st_size / 1e6 / seconds, more)


def measured(tree: Path | None, part: str, path: Path) -> tuple[float, float]:
    env = {**os.environ, "PYTHONPATH": str(tree)} if tree else None
    done = subprocess.run([sys.executable, __file__, part, str(path)], check=True, env=env, stdout=subprocess.PIPE)
    speed, more = map(float, done.stdout.split())
    return speed, more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--parts", default=",".join(PARTS))
    given = parser.parse_args()
    trees = [given.against, None] if given.against else [None]
    with TemporaryDirectory() as folder:
        path = Path(folder, "server.log")
        print(f"{'MB/s (MiB more)':34}", *(f"{part:>18}" for part in given.parts.split(",")), flush=True)
        for name, text in LOGS.items():
            if given.only not in name:
                continue
            write(path, text, int(given.megabytes * 1e6))
            print(f"{name:34}", end="", flush=True)
            for part in given.parts.split(","):
                best: list[tuple[float, float]] = [(0.0, 0.0)] * len(trees)
                for _ in range(given.rounds):
                    for at, tree in enumerate(trees):
                        speed, more = measured(tree, part, path)
                        best[at] = (max(best[at][0], speed), max(best[at][1], more))
                values = " > ".join(f"{speed:.0f}" for speed, _ in best) + f" ({best[-1][1]:.0f})"
                print(f" {values:>18}", end="", flush=True)
            print()


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in PARTS:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
