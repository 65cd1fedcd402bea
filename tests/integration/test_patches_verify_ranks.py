"""Tests that two ranks with different drafts accept the same tokens in sglang's verify step only with the patch."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_forks import Program, run_forked
from wheels import unpacked

from orchestrator.hosts.venvs import venv
from orchestrator.images.patch_check import SourceChecker
from orchestrator.images.sources import program_paths

pytestmark = [pytest.mark.wheels, pytest.mark.engine, pytest.mark.slow]

PATCH = "eagle-verify-broadcast"
DIFF = SourceChecker.of_ledger().diffs[PATCH]
RANKS = Path(__file__).parents[1] / "support" / "eagle_ranks.py"
RANK_0 = {"length": 3, "accepted": [0, 1, 2], "tokens": [5, 7, 11]}
RANK_1 = {"length": 1, "accepted": [0], "tokens": [5]}
VERSIONS = ("0.5.14", "0.5.16")
Result = dict[str, object]  # the part of the draft that a rank accepted


@pytest.fixture(scope="module")
def results(cpu_environment: venv.Venv, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Result]]:
    """Return both ranks' results by the name of a package; one process runs all packages, to import torch once."""
    directory = tmp_path_factory.mktemp("ranks")
    packages = {f"{version} without": unpacked(version) for version in VERSIONS}
    packages |= {f"{version} with": patched(version, directory / f"{version} patched") for version in VERSIONS}
    for name in packages:
        (directory / name).mkdir()
    pairs = [str(word) for name, package in packages.items() for word in (package, directory / name)]
    done = run_forked(cpu_environment.python, {"": Program(program=str(RANKS), argv=tuple(pairs))})[""]
    assert done.returncode == 0, done.stderr[-3000:]
    return lambda name: [json.loads((directory / name / f"{rank}.json").read_text()) for rank in (0, 1)]


def patched(version: str, folder: Path) -> Path:
    """Copy the package of a version and apply the patch."""
    program = "import sys, pathlib, apply_patches as a; a.apply_diff(pathlib.Path(sys.argv[1]), sys.stdin.read())"
    package = Path(shutil.copytree(unpacked(version), folder))
    argv = [sys.executable, "-B", "-c", program, package / "sglang"]
    subprocess.run(argv, cwd=program_paths()[0].parent, input=DIFF, text=True, check=True)
    return package


@pytest.mark.parametrize("version", VERSIONS)
def test_patch_keeps_diverging_ranks_in_sync(results: Callable[[str], list[Result]], version: str) -> None:
    assert results(f"{version} without") == [RANK_0, RANK_1]
    assert results(f"{version} with") == [RANK_0, RANK_0]
