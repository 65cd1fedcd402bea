"""Whole artifacts of every shipped profile: a change of a profile is reviewed as a change of its command line.

`UPDATE_GOLDEN=1 pytest tests/golden` writes them anew.
"""

import os
from pathlib import Path

import pytest

from orchestrator.commands.planning import load, profile_names, render_artifacts, rendered_files
from orchestrator.core.catalogue import Catalogue

GOLDEN = Path(__file__).parent
CASES = profile_names(Catalogue.shipped())
# Copied as they are from images/; a golden copy would only have to be kept in step.
COPIED = ("image/patches/apply_patches.py", "image/patches/read_sources.py")


def rendered(profile: str) -> dict[str, str]:
    files = rendered_files(render_artifacts(load(profile).plan))
    return {file.path: file.content.decode() for file in files if file.path not in COPIED}


@pytest.mark.parametrize("case", CASES)
def test_artifacts(case: str) -> None:
    folder = GOLDEN / case
    found = rendered(case)
    if os.environ.get("UPDATE_GOLDEN"):
        for path, text in found.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    expected = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert found == expected, "UPDATE_GOLDEN=1 pytest tests/golden writes them anew: review the change"


def test_the_same_plan_gives_the_same_bytes() -> None:
    first, second = (render_artifacts(load("mi355x-tp4dp2").plan) for _ in range(2))
    assert first.build is not None
    assert second.build is not None
    assert first.build.digest == second.build.digest
    assert first == second


def test_no_golden_is_left_of_a_profile_that_is_gone() -> None:
    ours = {"__pycache__", "kubernetes"}  # test_kubernetes_manifests.py
    assert {path.name for path in GOLDEN.iterdir() if path.is_dir()} - ours == set(CASES)
