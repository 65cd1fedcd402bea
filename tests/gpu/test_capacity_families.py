"""The capacity that `deploy` computes for each family of attention matches the log of sglang on a real GPU.

With small configs and dummy weights on one GPU, 20 to 60 s each. `GPU_SET="engine.python=…"` names sglang's Python.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from gpu_deploy import SETTINGS, assert_free, count, wait_until
from ports import free_port
from reduced_configs import FAMILIES, Logged, read_log

WITHIN = 0.02
READY = "max_total_num_tokens="
PYTHON = next((word.partition("=")[2] for word in SETTINGS if word.startswith("engine.python=")), "")


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    if not count():
        pytest.skip("this machine has no NVIDIA GPU")
    if not PYTHON:
        pytest.skip("`GPU_SET` names no `engine.python`")
    if reason := FAMILIES[request.param].skip_reason:
        pytest.skip(reason)
    return str(request.param)


def started(name: str, folder: Path) -> Logged:
    """Start a server, stop it after the pools are allocated, and return its logged values."""
    FAMILIES[name].write(folder)
    log = folder / "server.log"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "SGLANG_DISABLE_CUDNN_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    env.pop("PYTHONPATH", None)
    argv = FAMILIES[name].argv(PYTHON, folder, free_port())
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        try:
            wait_until(lambda: READY in log.read_text() or process.poll() is not None, within=240)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert_free()
    text = log.read_text(errors="replace")
    assert READY in text, "\n".join(text.splitlines()[-40:])
    return read_log(text)


def test_computed_tokens_and_state_slots_match_log(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    logged = started(family, tmp_path_factory.mktemp("checkpoint"))
    cache = FAMILIES[family].computed(tmp_path_factory.mktemp("home"), logged)
    slots = cache.requests.slots if cache.requests else 0
    print(f"{family}: computed {cache.tokens:,} tokens, {slots} states; logged {logged.tokens:,}, {logged.slots}")
    assert cache.tokens == pytest.approx(logged.tokens, rel=WITHIN)
    assert slots == pytest.approx(logged.slots or 0, rel=WITHIN)
