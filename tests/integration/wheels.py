"""Real sglang wheels: downloaded once, kept for later runs, skipped aloud where there is no package index."""

import zipfile
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.images import fetch_wheel

CACHE = Path.home() / ".cache/deploy-tests/wheels"


def wheel(version: str) -> Path:
    """The wheel of one version."""
    try:
        return fetch_wheel(version, CACHE)
    except UsageError as error:
        pytest.skip(f"no wheel of sglang {version}: {error.message}")


def read(version: str, path: str) -> str:
    """One file of the package in a wheel."""
    with zipfile.ZipFile(wheel(version)) as archive:
        return archive.read(f"sglang/{path}").decode()


def unpack(version: str, folder: Path, *, below: str = "") -> Path:
    """The package of a wheel (only what lies below `below`), unpacked; the folder to put on a path."""
    with zipfile.ZipFile(wheel(version)) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"sglang/{below}")])
    return folder
