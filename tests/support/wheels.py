"""Real sglang wheels: downloaded once, kept for later runs, skipped aloud where there is no package index."""

import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.images.patch_check import fetch_wheel

CACHE = Path.home() / ".cache/deploy-tests/wheels"
UNPACKED = CACHE.with_name("unpacked")


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


def unpacked(version: str) -> Path:
    """The whole package of a wheel, unpacked once for all tests and runs; the folder to put on a path.

    It takes 3 s, and Python as long to compile what is imported, which stays here too. Nobody changes a file of it.
    """
    saved = UNPACKED / version
    if not saved.exists():
        UNPACKED.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=UNPACKED) as folder:
            made = unpack(version, Path(folder, version))
            with suppress(OSError):  # another one was there first
                made.rename(saved)
    return saved
