"""Run `deploy` on this machine's GPUs, and check them with nvidia-smi and the process table."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

DEPLOY = shlex.split(os.environ.get("DEPLOY", f"{sys.executable} -m orchestrator"))
SETTINGS = [word for setting in os.environ.get("GPU_SET", "").split() for word in ("--set", setting)]
HOLDER = Path(__file__).with_name("memory_holder.py")
IDLE_MIB = 1024  # the driver itself may use this much


def count() -> int:
    """Return the number of NVIDIA GPUs."""
    return len(used_mib()) if shutil.which("nvidia-smi") else 0


def used_mib() -> list[int]:
    """Return the memory in use on each GPU."""
    return [int(line) for line in _query("memory.used")]


def gpu_name() -> str:
    """Return the driver's name of the first GPU, such as `NVIDIA H100 80GB HBM3`."""
    return _query("name")[0]


def _query(field: str) -> list[str]:
    argv = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def schedulers() -> dict[str, int]:
    """Return the titles and pids of the running sglang schedulers."""
    pids = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_text(errors="replace").replace("\0", " ").strip()
        except OSError:
            continue
        if title.startswith("sglang::scheduler"):
            pids[title] = int(path.parent.name)
    return pids


def wait_until(condition: Callable[[], bool], *, within: float) -> float:
    """Return the seconds until the condition is true; fail after `within` seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within, f"not within {within:g} s"
        time.sleep(0.1)
    return time.monotonic() - started


def assert_free() -> None:
    """Assert that no scheduler runs and no GPU memory is in use."""
    assert schedulers() == {}
    wait_until(lambda: max(used_mib()) <= IDLE_MIB, within=60)
    print(f"VRAM in use afterwards: {used_mib()} MiB", flush=True)


@dataclass(frozen=True)
class CommandResult:
    code: int
    text: str  # both streams
    seconds: float


@dataclass(frozen=True)
class GpuCommandLine:
    """Runs `deploy` with one home and prints its output."""

    home: Path

    def run(self, *words: str, within: float = 560) -> CommandResult:
        started = time.monotonic()
        done = subprocess.run(
            [*DEPLOY, *words], env=self._env(), capture_output=True, text=True, timeout=within, check=False
        )
        seconds = time.monotonic() - started
        text = done.stderr + done.stdout
        print(f"\n$ deploy {shlex.join(words)}\n{text}[{done.returncode} after {seconds:.1f} s]", flush=True)
        return CommandResult(done.returncode, text, seconds)

    def up(self, profile: str, *settings: str, name: str | None = None, options: tuple[str, ...] = ()) -> CommandResult:
        return self.run(*self._up(profile, *settings, name=name), *options)

    def bench_serving(
        self, name: str, *, input_tokens: int, output_tokens: int, rate: int, requests: int
    ) -> dict[str, Any]:
        """Measure a server with sglang's own client and random token ids, with the engine's Python."""
        script = max((self.home / "runs" / name).glob("*/server.sh")).read_text()
        launch = shlex.split(script[script.index("\nexec ") :])
        option = dict(pairwise(launch))
        stub = self.home / "bench-serving"  # for Hugging Face's `datasets`, which the client imports but does not use
        stub.mkdir(exist_ok=True)
        (stub / "datasets.py").write_text("def load_dataset(*_args, **_options):\n    raise RuntimeError\n")
        written = stub / f"{name}.jsonl"
        argv = [option["exec"], "-m", "sglang.bench_serving", "--backend=sglang", "--dataset-name=random-ids"]
        argv += [f"--base-url=http://{option['--host']}:{option['--port']}", f"--model={option['--model-path']}"]
        argv += [f"--random-input-len={input_tokens}", f"--random-output-len={output_tokens}"]
        argv += ["--random-range-ratio=1.0", f"--request-rate={rate}", f"--num-prompts={requests}"]
        argv += ["--tokenize-prompt", "--flush-cache", "--seed=1", "--disable-tqdm", f"--output-file={written}"]
        env = {**self._env(), "PYTHONPATH": str(stub), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(argv, env=env, cwd=self.home, capture_output=True, text=True, timeout=300, check=False)
        print(f"\n$ {shlex.join(argv)}\n{done.stdout}{done.stderr[-2000:]}", flush=True)
        assert done.returncode == 0
        measured: dict[str, Any] = json.loads(written.read_text().splitlines()[-1])
        return measured

    def running_up(self, profile: str, *settings: str) -> "AbstractContextManager[Background]":
        return self.background(*self._up(profile, *settings, name=None))

    @contextmanager
    def background(self, *words: str) -> "Iterator[Background]":
        """Run a command in the background; interrupt it at the end of the block."""
        print(f"\n$ deploy {shlex.join(words)} &", flush=True)
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen([*DEPLOY, *words], env=self._env(), **streams) as process:
            try:
                yield Background(process)
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    process.wait(timeout=120)

    def _up(self, profile: str, *settings: str, name: str | None) -> list[str]:
        chosen = [word for setting in settings for word in ("--set", setting)]
        return ["up", "--profile", profile, *(["--name", name] if name else []), *SETTINGS, *chosen]

    def _env(self) -> dict[str, str]:
        return {**os.environ, "DEPLOY_HOME": str(self.home), "NO_COLOR": "1", "COLUMNS": "180"}


class Background:
    """A `deploy` command that runs in the background."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Read the output in a thread."""
        self._process = process
        self._lines: Queue[str] = Queue()
        Thread(target=self._read, daemon=True).start()

    def wait_for(self, pattern: str, *, within: float) -> str:
        """Wait for a line that matches and return it."""
        end, lines = time.monotonic() + within, list[str]()
        while not (lines and re.search(pattern, lines[-1])):
            try:
                lines.append(self._lines.get(timeout=max(end - time.monotonic(), 0)))
            except Empty:
                lines.append("")
            assert lines[-1], f"no {pattern!r} within {within:g} s, or before its end:\n{''.join(lines[-20:])}"
        print("".join(lines), end="", flush=True)
        return lines[-1]

    def interrupt(self) -> tuple[int, float]:
        """Send Ctrl-C; return the exit code and the seconds until the exit."""
        started = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(timeout=180)
        print(f"[Ctrl-C: {code} after {time.monotonic() - started:.1f} s]", flush=True)
        return code, time.monotonic() - started

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def memory_holder(gib: int) -> Iterator["subprocess.Popen[str]"]:
    """Run another program that uses memory of the first GPU."""
    with subprocess.Popen([sys.executable, str(HOLDER), str(gib)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
