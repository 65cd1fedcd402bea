"""The artifacts of every shipped profile, so that a change of a profile is reviewed as a change of its command line.

A few profiles have a folder with their whole artifacts. Each other one has one file: `NAME.diff`, what differs from the
artifacts of the profile that it extends, or `NAME.sh`, its command. `UPDATE_GOLDEN=1 pytest tests/golden` writes all.
"""

import re
from pathlib import Path

import pytest
import yaml
from golden_files import check_file, check_folder, differences

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.planner.planning import load, profile_names, render_artifacts, rendered_files

GOLDEN = Path(__file__).parent
PROFILES = profile_names(Catalog.shipped())
# Copied as they are from images/; a golden copy would only have to be kept in step.
COPIED = ("image/patches/apply_patches.py", "image/patches/read_sources.py")
# Profiles that are kept whole. The others are compared with what they extend; one that extends nothing is its command.
WHOLE = ["mi355x-tp8", "mi355x-tp4dp2", "mi325x-tp8", "b200-tp8", "cpu-tiny"]
DERIVED = sorted({*PROFILES} - {*WHOLE})


def base_of(profile: str) -> str | None:
    """What a profile extends, if that leads to one that is kept whole."""
    path = Catalog.shipped().path(EntryKind.PROFILE, profile)
    base = yaml.safe_load(path.read_text()).get("extends")
    return base if base in WHOLE or (base and base_of(base)) else None


def artifacts(profile: str) -> dict[str, str]:
    files = rendered_files(render_artifacts(load(profile).plan))
    return {file.path: file.content.decode() for file in files if file.path not in COPIED}


def in_base(path: str) -> str:
    """A replica's file is compared with the file of the one server that the base has."""
    return re.sub(r"^replica-\d+/", "", path)


@pytest.mark.parametrize("profile", WHOLE)
def test_artifacts(profile: str) -> None:
    check_folder(GOLDEN / profile, artifacts(profile))


@pytest.mark.parametrize("profile", DERIVED)
def test_differences_from_base_profile(profile: str) -> None:
    base, found = base_of(profile), artifacts(profile)
    command = next(text for path, text in found.items() if path.endswith("server.sh"))
    text = command if base is None else differences(artifacts(base), found, counterpart=in_base)
    check_file(GOLDEN / f"{profile}.{'sh' if base is None else 'diff'}", text)


def test_rendering_is_reproducible() -> None:
    first, second = (render_artifacts(load("mi355x-tp4dp2").plan) for _ in range(2))
    assert first.build is not None
    assert second.build is not None
    assert first.build.digest == second.build.digest
    assert first == second


def test_every_golden_file_belongs_to_a_profile() -> None:
    others = {"__pycache__", "kubernetes"}  # test_kubernetes_manifests.py
    assert {path.name for path in GOLDEN.iterdir() if path.is_dir()} - others == set(WHOLE)
    assert {path.stem for pattern in ("*.diff", "*.sh") for path in GOLDEN.glob(pattern)} == set(DERIVED)
