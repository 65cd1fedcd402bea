"""Profiles that only tests use, for the directory of a user's own profiles."""

import shutil
from pathlib import Path

OWN = Path(__file__).parents[1] / "home" / "profiles"


def add_profiles(home: Path) -> Path:
    """Add the profiles to a home; return the home."""
    shutil.copytree(OWN, home / "profiles", dirs_exist_ok=True)
    return home
