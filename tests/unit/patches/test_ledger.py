"""patches/: read strictly, every fault at its line."""

import shutil
from pathlib import Path

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import data_root
from orchestrator.patches.ledger import read_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    shutil.copytree(data_root() / "patches", tmp_path / "patches")
    return tmp_path


def faults(root: Path) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        read_ledger(root)
    return [f"{problem.where}: {problem.message}" for problem in caught.value.problems]


def test_the_ledger_that_ships_is_valid() -> None:
    assert [patch.id for patch in read_ledger()] == sorted(path.name for path in (data_root() / "patches").iterdir())


def test_faults_of_all_patches_are_shown_at_once_with_their_lines(ledger: Path) -> None:
    guard = ledger / "patches/rocm-cuda-runtime-guard/patch.yaml"
    guard.write_text(guard.read_text().replace("min_speculative_steps: 4", "min_speculative_stepz: 4"))
    topk = ledger / "patches/dsa-topk-v2-off/patch.yaml"
    topk.write_text(topk.read_text().replace('">=0.5.15,<0.5.16"', '"0.5.15 or so"'))

    found = faults(ledger)

    assert any(
        "patches/rocm-cuda-runtime-guard/patch.yaml:" in line and "min_speculative_stepz" in line for line in found
    )
    assert any("patches/dsa-topk-v2-off/patch.yaml:" in line and "is not a range of versions" in line for line in found)


def test_a_diff_that_is_named_has_to_be_there(ledger: Path) -> None:
    (ledger / "patches/rocm-cuda-runtime-guard/rocm-cuda-runtime-guard.patch").unlink()

    assert any("names a diff that does not exist" in line for line in faults(ledger))
