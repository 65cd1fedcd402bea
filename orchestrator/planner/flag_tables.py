"""`deploy add engine --flags-only`: the options of an sglang version, read from its parser and saved in the home."""

import re
import tempfile
from pathlib import Path
from typing import Final

from orchestrator.core.catalog import EntryKind
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home, data_root
from orchestrator.core.subprocesses import run
from orchestrator.engine.flags import parse_flags
from orchestrator.hosts.venvs.venv import ensure_venv
from orchestrator.images.patch_check import fetch_wheel, unpack_wheel

GENERATOR = data_root() / "profiles" / "engines" / "flags" / "generate.py"
_REQUIREMENTS: Final = "sglang-cpu-0.5.14.txt"  # dependencies of all versions' parsers
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?")


def write_flag_table(version: str, home: Home, *, wheel: Path | None = None, python: Path | None = None) -> Path:
    """Write the table of one version atomically into the home's catalog, and return its path.

    `wheel` is the wheel of that version, downloaded by default. `python` is an interpreter with torch and sglang's pure
    dependencies; by default the engine's CPU environment, built if missing. Raises UsageError if the package index
    lacks the version or the file is not a wheel, and BuildError if the parser fails.
    """
    if not is_version(version):
        raise UsageError(f"`{version}` is not a version of sglang", hint="such as 0.5.17 or 0.5.15.post1")
    wheel = wheel or fetch_wheel(version, home.root / "wheels")
    with tempfile.TemporaryDirectory() as folder:
        unpack_package(wheel, Path(folder))
        text = flag_table(version, Path(folder), home, python=python)
    return atomic_write(table_path(version, home), text)


def is_version(text: str) -> bool:
    """Return whether `text` is a release of sglang."""
    return _VERSION.fullmatch(text) is not None


def table_path(version: str, home: Home) -> Path:
    """Return the path of a version's table in the home's catalog."""
    return home.root / EntryKind.FLAGS.file(version)


def flag_table(version: str, folder: Path, home: Home, *, python: Path | None) -> str:
    """Return the flag table of the `sglang` package in `folder` as text. Raises BuildError if its parser fails."""
    requirements = data_root() / "images" / _REQUIREMENTS
    python = python or ensure_venv(requirements, home=home, progress=Progress()).python
    done = run([str(python), str(GENERATOR), str(folder), version])
    last = "\n".join(done.stderr.splitlines()[-20:])
    if not done.ok:
        raise BuildError(f"cannot query the options of sglang {version}", details=last.rpartition("\n")[2])
    try:
        parse_flags(version, done.stdout)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(f"the parser of sglang {version} printed no table of options", details=last) from error
    return done.stdout


def unpack_package(wheel: Path, folder: Path) -> None:
    """Unpack the package of a wheel. Raises UsageError if the file is not a wheel."""
    unpack_wheel(wheel, lambda path: path.startswith("sglang/"), folder)
