"""Tests of `deploy quantize` with the real AMD Quark, also killed and resumed, and of loading the results in sglang.

`make quark` runs them: 1.5 GB of packages, installed once, and some minutes, mostly for Quark's imports. All other runs
of the tests use the fake Quark of `test_quantize.py`, whose output is compared with the real one here.
"""

import os
import signal
from pathlib import Path

import pytest
from draft_model_runs import run_lines
from quantizing import Quantizing
from quark_source import REAL_FILES, files_digest, write_source

from orchestrator.checkpoints.overlay import write_overlay
from orchestrator.core.paths import Home
from orchestrator.hosts.venvs.venv import Venv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.skipif("QUARK" not in os.environ, reason="real Quark, 1.5 GB and some minutes: `make quark` runs this"),
]
KILLED = "glm-5.2-amd"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Quantize with each recipe, in environments of the user's home; one run is killed and resumed."""
    directory = tmp_path_factory.mktemp("real-quark")
    write_source(directory / "tiny")
    (directory / "home").mkdir()
    users = Home.from_environment().environments
    users.mkdir(parents=True, exist_ok=True)
    (directory / "home" / "environments").symlink_to(users)
    for recipe in REAL_FILES:
        if recipe == KILLED:
            _kill_after_first_shard(Quantizing(directory, recipe, "--workers", "1", recipe=recipe, real=True))
        code, output = Quantizing(directory, recipe, "--workers", "1", recipe=recipe, real=True).end()
        print(output)
        assert code == 0, output
        assert recipe != KILLED or "shards are done" in output
        write_overlay(directory / recipe, directory / f"{recipe}-ours", ["mtp-exclude"])
    return directory


def _kill_after_first_shard(quantizing: Quantizing) -> None:
    quantizing.wait_for_shards(1, within=600, interval=0.002)
    quantizing.process.send_signal(signal.SIGKILL)
    code, output = quantizing.end()
    print(output, f"killed; finished shards: {[path.name for path in quantizing.shards()]}")
    assert code == -signal.SIGKILL
    assert 1 <= len(quantizing.shards()) < 5
    assert not quantizing.workers()


@pytest.mark.parametrize("recipe", REAL_FILES)
def test_quark_output_matches_recorded_digests(quantized: Path, recipe: str) -> None:
    assert files_digest(quantized / recipe) == REAL_FILES[recipe]


def test_sglang_loads_draft_and_target_of_each_recipe(quantized: Path, cpu_environment: Venv) -> None:
    """The draft loads only with our overlay. The target has 8 experts, which sglang does not fuse."""
    folders = [str(quantized / name) for recipe in REAL_FILES for name in (recipe, f"{recipe}-ours")]
    drafts = run_lines(cpu_environment, "load", *folders)
    targets = run_lines(cpu_environment, "target", "on", *(str(quantized / recipe) for recipe in REAL_FILES))
    for recipe in REAL_FILES:
        loaded = [drafts[recipe]["loaded"], drafts[f"{recipe}-ours"]["loaded"], targets[recipe]["loaded"]]
        print(recipe, loaded, drafts[recipe]["errors"])
        assert loaded == [None, "DeepseekV3ForCausalLMNextN", "GlmMoeDsaForCausalLM"]
