"""Two ranks with different drafts, through the wheels' own verify step: only with the patch do they stay together."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import unpacked

from orchestrator import environments
from orchestrator.images import SourceChecker
from orchestrator.images.sources import program_paths

pytestmark = [pytest.mark.wheels, pytest.mark.engine]

PATCH = "eagle-verify-broadcast"
DIFF = SourceChecker.of_ledger().diffs[PATCH]
RANKS = Path(__file__).with_name("eagle_ranks.py")
RANK_0 = {"length": 3, "accepted": [0, 1, 2], "tokens": [5, 7, 11]}
RANK_1 = {"length": 1, "accepted": [0], "tokens": [5]}


def verified(python: Path, package: Path, folder: Path) -> list[dict[str, object]]:
    """What each rank holds to be accepted."""
    path = os.pathsep.join([str(package), str(RANKS.parent)])
    argv = [python, RANKS, folder]
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": path, "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("version", ["0.5.14", "0.5.16"])
def test_ranks_that_part_are_brought_together(
    cpu_environment: environments.Environment, tmp_path: Path, version: str
) -> None:
    assert verified(cpu_environment.python, unpacked(version), tmp_path / "without") == [RANK_0, RANK_1]

    program = "import sys, pathlib, apply_patches as a; a.apply_diff(pathlib.Path(sys.argv[1]), sys.stdin.read())"
    package = Path(shutil.copytree(unpacked(version), tmp_path / "package"))
    argv = [sys.executable, "-B", "-c", program, package / "sglang"]
    subprocess.run(argv, cwd=program_paths()[0].parent, input=DIFF, text=True, check=True)

    assert verified(cpu_environment.python, package, tmp_path / "with") == [RANK_0, RANK_0]
