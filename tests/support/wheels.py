"""Real sglang wheels, downloaded once for all runs; tests are skipped without a package index."""

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
    try:
        return fetch_wheel(version, CACHE)
    except UsageError as error:
        pytest.skip(f"no wheel of sglang {version}: {error.message}")


def read(version: str, path: str) -> str:
    """Return one file of a wheel's package."""
    with zipfile.ZipFile(wheel(version)) as archive:
        return archive.read(f"sglang/{path}").decode()


def unpack(version: str, folder: Path, *, below: str = "") -> Path:
    """Unpack the package of a wheel, or its files below `below`; return the folder for PYTHONPATH."""
    with zipfile.ZipFile(wheel(version)) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"sglang/{below}")])
    return folder


def unpacked(version: str) -> Path:
    """Unpack the package of a wheel, once for all runs; return the folder for PYTHONPATH.

    Unpacking takes 3 s, and compiling the imports as long; the .pyc files stay here too. Do not change these files.
    """
    saved = UNPACKED / version
    if not saved.exists():
        UNPACKED.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=UNPACKED) as folder:
            made = unpack(version, Path(folder, version))
            with suppress(OSError):  # another process was first
                made.rename(saved)
    return saved
