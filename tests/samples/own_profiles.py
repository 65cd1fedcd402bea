"""The profiles that only tests use, put where a user's own are: below the tool's home."""

import shutil
from pathlib import Path

OWN = Path(__file__).parents[1] / "home" / "profiles"


def add_profiles(home: Path) -> Path:
    """Add them to a home, and return it."""
    shutil.copytree(OWN, home / "profiles", dirs_exist_ok=True)
    return home
