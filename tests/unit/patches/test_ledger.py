"""Strict parsing of `patches/`: every problem has its line."""

import shutil
from pathlib import Path

import pytest

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import data_root
from orchestrator.patches.ledger import read_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    shutil.copytree(data_root() / "patches", tmp_path / "patches")
    return tmp_path


def problems_of(root: Path) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        read_ledger(Catalog((root,)))
    return [f"{problem.location}: {problem.message}" for problem in caught.value.problems]


def test_ledger_is_cached_per_process(ledger: Path) -> None:
    """A plan, its image and the checkpoint overlay each read the ledger."""
    assert read_ledger(Catalog((ledger,))) is read_ledger(Catalog((ledger,)))


def test_shipped_ledger_is_valid() -> None:
    assert [patch.id for patch in read_ledger(Catalog.shipped())] == sorted(
        path.parent.name for path in (data_root() / "patches").glob("*/patch.yaml")
    )


def test_problems_of_all_patches_are_reported_with_lines(ledger: Path) -> None:
    guard = ledger / "patches/rocm-cuda-runtime-guard/patch.yaml"
    guard.write_text(guard.read_text().replace("min_speculative_steps: 4", "min_speculative_stepz: 4"))
    topk = ledger / "patches/dsa-topk-v2-off/patch.yaml"
    topk.write_text(topk.read_text().replace('">=0.5.15,<0.5.16"', '"0.5.15 or so"'))

    problems = problems_of(ledger)

    assert any(
        "patches/rocm-cuda-runtime-guard/patch.yaml:" in line and "min_speculative_stepz" in line for line in problems
    )
    assert any(
        "patches/dsa-topk-v2-off/patch.yaml:" in line and "is not a range of versions" in line for line in problems
    )


def test_patch_id_must_match_directory_name(ledger: Path) -> None:
    (ledger / "patches/dsa-topk-v2-off").rename(ledger / "patches/topk")

    assert "patches/topk/patch.yaml:1: patch `dsa-topk-v2-off` is in a folder with another name" in problems_of(ledger)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "transform: mtp-exclude",
            "transform: mtp-include",
            "no transform `mtp-include` found; available: `mtp-exclude`",
        ),
        ("match: '^class ", "match: '^(class ", "invalid regular expression"),
        ("match: '^class ", "inactive_match: '^class ", "`inactive_match` needs `defines`"),
    ],
)
def test_invalid_reference_in_patch_is_rejected(ledger: Path, old: str, new: str, message: str) -> None:
    file = ledger / "patches/mtp-shared-expert-exclude/patch.yaml"
    file.write_text(file.read_text().replace(old, new))

    assert any(message in line for line in problems_of(ledger))


def test_diff_without_present_pattern_is_rejected(ledger: Path) -> None:
    file = ledger / "patches/rocm-cuda-runtime-guard/patch.yaml"
    text = file.read_text()
    file.write_text(f"{text[: text.index('  present:')]}  present: []\n{text[text.index('apply:') :]}")

    assert any("a diff needs a pattern under `detect.present`" in line for line in problems_of(ledger))
