"""Virtual environments of engines, built from a pinned requirement file and reused by digest.

::

    environments/<digest>/                    bin/python, packages
    environments/<digest>/environment.json    written last; a folder without it is an interrupted build
    environments/<digest>.lock                held during a build; the kernel releases it if the builder dies
"""

import hashlib
import json
import platform
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import Progress
from orchestrator.core.disk_space import require_disk_space
from orchestrator.core.errors import BuildError
from orchestrator.core.files import atomic_write, copy_file, remove_tree
from orchestrator.core.locks import file_lock
from orchestrator.core.paths import Home, data_root
from orchestrator.core.safe_paths import FileName
from orchestrator.hosts.venvs.installer import environment_name, install
from orchestrator.plan.plan import Engine

_MARKER: Final = "environment.json"
_SHIM: Final = "cpu_shim"
# The local version of a platform-specific torch names the platform and its index.
_TORCH: Final = re.compile(r"^torch==\S+\+(?P<platform>\w+)$", re.MULTILINE)
_SIZE: Final = re.compile(r"^# Installed size: (?P<megabytes>[0-9,]+) MB", re.MULTILINE)
_TORCH_INDEX: Final = "https://download.pytorch.org/whl/{platform}"


@dataclass(frozen=True, kw_only=True)
class Venv:
    """A built environment; `digest` is the SHA-256 of its Python version, platform and input files, in hex."""

    python: Path
    digest: str
    built: bool  # whether this call built it


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """The inputs of an environment's build."""

    requirements: Path
    torch: re.Match[str] | None
    shim: tuple[Path, ...]

    @classmethod
    def read(cls, requirements: Path, shim: Path | None = None) -> "_Recipe":
        try:
            torch = _TORCH.search(requirements.read_text())
        except FileNotFoundError as error:
            raise BuildError(f"no requirement file `{requirements.name}` found", location=str(requirements)) from error
        on_cpu = torch is not None and torch["platform"] == "cpu"
        shim = shim or data_root() / "images" / _SHIM
        files = sorted(file for file in shim.iterdir() if file.is_file()) if on_cpu else []
        return cls(requirements=requirements, torch=torch, shim=tuple(files))

    @property
    def installed_bytes(self) -> int:
        """The size of the environment from its requirement file's comment; 0 if there is none."""
        match = _SIZE.search(self.requirements.read_text())
        return int(match["megabytes"].replace(",", "")) * 1_000_000 if match else 0

    @property
    def digest(self) -> str:
        total = hashlib.sha256(f"{_python_version()}\0{platform.machine()}\0".encode())
        for file in (self.requirements, *self.shim):
            content = file.read_bytes()
            total.update(f"{file.name}\0{len(content)}\0".encode() + content)
        return total.hexdigest()


def engine_python(engine: Engine, home: Home) -> str:
    """Return a Python with the engine; build its environment if necessary.

    An interpreter named in the engine's file takes precedence. Raises BuildError if the engine has no requirement file,
    or if the build fails.
    """
    if engine.python is not None:
        return engine.python
    if engine.requirements is None:
        hint = "choose an interpreter that has the engine: `--set engine.python=python3`"
        raise BuildError(f"engine `{engine.name}` has no requirement file, so no environment can be built", hint=hint)
    requirements = Catalog.of(home).find(EntryKind.IMAGE_FILE, engine.requirements)
    if requirements is None:  # accept only names, because an edited plan may contain any path
        message = f"no requirement file `{engine.requirements}` found"
        raise BuildError(message, location=f"engine `{engine.name}`", hint="correct `engine.requirements`")
    return str(ensure_venv(requirements, home=home, progress=Progress()).python)


def built_interpreter(engine: Engine, home: Home) -> str | None:
    """Return an existing Python with the engine; None if its environment has not been built.

    An interpreter named in the engine's file takes precedence.
    """
    if engine.python is not None:
        return engine.python
    if (recipe := _recipe(engine, home)) is None:
        return None
    folder = _folder(recipe, home)
    return str(folder / "bin" / "python") if _complete(folder) else None


def bytes_to_install(engine: Engine, home: Home) -> int | None:
    """Return the size of the engine's missing environment; 0 if its file does not state it, None if none is missing."""
    recipe = _recipe(engine, home)
    return None if recipe is None or built_interpreter(engine, home) is not None else recipe.installed_bytes


def _recipe(engine: Engine, home: Home) -> _Recipe | None:
    requirements = Catalog.of(home).find(EntryKind.IMAGE_FILE, engine.requirements) if engine.requirements else None
    return _Recipe.read(requirements) if requirements else None


def ensure_venv(requirements: Path, *, home: Home, progress: Progress, shim: Path | None = None) -> Venv:
    """Return the environment of a requirement file; build it if necessary.

    `shim` is the folder of the modules that a CPU build of torch additionally needs; by default the shipped one.
    Concurrent builds of one environment wait for each other. A failed or interrupted build leaves no files behind.
    Raises HostError if the disk is too full, and BuildError with uv's last lines if the build fails.
    """
    recipe = _Recipe.read(requirements, shim)
    digest, folder = recipe.digest, _folder(recipe, home)
    environment = Venv(python=folder / "bin" / "python", digest=digest, built=False)
    if _complete(folder):
        return environment
    with file_lock(folder.with_suffix(".lock"), progress):
        if _complete(folder):  # another process has built it in the meantime
            return environment
        remove_tree(folder, within=home.environments)
        require_disk_space(
            home.environments, recipe.installed_bytes, hint="`export DEPLOY_HOME=DIR`, a directory on another disk"
        )
        try:
            _build(folder, recipe, progress)
        finally:
            progress.done()
            if not _complete(folder):
                remove_tree(folder, within=home.environments)
    return Venv(python=environment.python, digest=digest, built=True)


def _folder(recipe: _Recipe, home: Home) -> Path:
    return home.environments / FileName(recipe.digest[:16])


def _build(folder: Path, recipe: _Recipe, progress: Progress) -> None:
    began = time.monotonic()
    torch, index = recipe.torch, _TORCH_INDEX.format(platform=recipe.torch["platform"] if recipe.torch else "")
    install(folder, recipe.requirements, progress, torch=torch[0] if torch else None, torch_index=index)
    for file in recipe.shim:
        copy_file(file, folder / "lib" / FileName(f"python{_python_version()}") / "site-packages" / file.name)
    facts = {"requirements": recipe.requirements.name, "python": platform.python_version()}
    seconds = round(time.monotonic() - began, 1)
    atomic_write(folder / _MARKER, json.dumps({**facts, "digest": recipe.digest, "seconds": seconds}, indent=2) + "\n")
    progress.update(f"{environment_name(recipe.requirements)}: built in {seconds:.0f} s")


def _complete(folder: Path) -> bool:
    """Return whether the build of an environment is complete and its base interpreter still exists."""
    return (folder / _MARKER).is_file() and (folder / "bin" / "python").exists()


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
