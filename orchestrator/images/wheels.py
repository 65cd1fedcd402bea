"""Wheels of sglang, from the configured package index, kept."""

import sys
import tempfile
from pathlib import Path
from typing import Final

from orchestrator.core.errors import UsageError
from orchestrator.core.shell import quote, run

# Whatever Python runs this tool: the sources are the same in every wheel of a version.
_PLATFORMS: Final = ("manylinux_2_34_x86_64", "manylinux2014_x86_64", "any")
_TARGET: Final = ("--python-version=3.11", "--implementation=cp", *(f"--platform={name}" for name in _PLATFORMS))


def fetch_wheel(version: str, folder: Path) -> Path:
    """The wheel of one sglang version in `folder`, downloaded where it is missing.

    Raises UsageError where the index has no such version, or cannot be reached.
    """
    if kept := sorted(folder.glob(f"sglang-{version}-*.whl")):
        return kept[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        command = [
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            *_TARGET,
            "--dest",
            partial,
            f"sglang=={version}",
        ]
        done = run([sys.executable, *command])
        found = sorted(Path(partial).glob("sglang-*.whl"))
        if not done.ok or not found:
            raise UsageError(
                f"the package index gave no wheel of sglang {version}",
                details=done.stderr.strip()[-2000:],
                hint=f"download it yourself and give the file: `{quote(['pip', 'download', f'sglang=={version}'])}`",
            )
        return found[0].rename(folder / found[0].name)
