"""The artifacts of every shipped profile match golden files, so that reviews show changes of command lines.

A few profiles have a folder with all artifacts. Each other profile has one file: `NAME.diff`, the differences from the
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
# Unchanged copies from images/.
COPIED = ("image/patches/apply_patches.py", "image/patches/read_sources.py")
# Profiles with a folder.
WHOLE = ["mi355x-tp8", "mi355x-tp4dp2", "mi325x-tp8", "b200-tp8", "cpu-tiny"]
DERIVED = sorted({*PROFILES} - {*WHOLE})


def base_of(profile: str) -> str | None:
    """Return the profile that a profile extends, if the chain leads to one in `WHOLE`."""
    path = Catalog.shipped().path(EntryKind.PROFILE, profile)
    base = yaml.safe_load(path.read_text()).get("extends")
    return base if base in WHOLE or (base and base_of(base)) else None


def artifacts(profile: str) -> dict[str, str]:
    files = rendered_files(render_artifacts(load(profile).plan))
    return {file.path: file.content.decode() for file in files if file.path not in COPIED}


def in_base(path: str) -> str:
    return re.sub(r"^(replica|prefill|decode)-\d+/", "", path)


@pytest.mark.parametrize("profile", WHOLE)
def test_artifacts(profile: str) -> None:
    check_folder(GOLDEN / profile, artifacts(profile))


@pytest.mark.parametrize("profile", DERIVED)
def test_differences_from_base_profile(profile: str) -> None:
    base, files = base_of(profile), artifacts(profile)
    command = next(text for path, text in files.items() if path.endswith("server.sh"))
    text = command if base is None else differences(artifacts(base), files, counterpart=in_base)
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
