"""Python environments of engines, for the process runtime: built from a pinned requirement file, reused by digest.

::

    environments/<digest>/                    bin/python, packages
    environments/<digest>/environment.json    written last: without it the folder is what a killed build left
    environments/<digest>.lock                held while building, freed by the kernel when the builder dies
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core import shell
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError
from orchestrator.core.files import open_lock, write_whole
from orchestrator.core.paths import Home
from orchestrator.plan import Model
from orchestrator.runtimes.process.installer import PinnedList, install

_MARKER: Final = "environment.json"
_SHIM: Final = "cpu_shim"
# A torch of one platform carries its name as a local version, and the index of that platform has the same name.
_TORCH: Final = re.compile(r"^torch==\S+\+(?P<platform>\w+)$", re.MULTILINE)
_TORCH_INDEX: Final = "https://download.pytorch.org/whl/{platform}"
_SHOWN_LINES: Final = 15


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A built environment; `digest` is the sha256 of everything it was made from."""

    python: Path
    digest: str
    built: bool  # by this call; False where it was there


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """What an environment is made from."""

    requirements: Path
    torch: re.Match[str] | None
    shim: tuple[Path, ...]

    @classmethod
    def read(cls, requirements: str, images_root: Path) -> "_Recipe":
        path = images_root / requirements
        try:
            torch = _TORCH.search(path.read_text())
        except FileNotFoundError as error:
            raise BuildError(f"there is no requirement file `{requirements}`", where=str(path)) from error
        on_cpu = torch is not None and torch["platform"] == "cpu"
        shim = sorted(file for file in (images_root / _SHIM).iterdir() if file.is_file()) if on_cpu else []
        return cls(requirements=path, torch=torch, shim=tuple(shim))

    @property
    def digest(self) -> str:
        total = hashlib.sha256(f"{_python_version()}\0{platform.machine()}\0".encode())
        for file in (self.requirements, *self.shim):
            content = file.read_bytes()
            total.update(f"{file.name}\0{len(content)}\0".encode() + content)
        return total.hexdigest()


def ensure(requirements: str, *, images_root: Path, home: Home, progress: Progress) -> Environment:
    """The environment of a requirement file below `images_root`, built where it is not there yet.

    Two that need the same one wait for each other; a build that fails or is interrupted leaves nothing. Raises
    BuildError with the installer's last lines.
    """
    recipe = _Recipe.read(requirements, images_root)
    digest = recipe.digest
    folder = home.environments / digest[:16]
    environment = Environment(python=folder / "bin" / "python", digest=digest, built=False)
    if _complete(folder):
        return environment
    with _locked(folder.with_suffix(".lock"), progress):
        if _complete(folder):  # somebody else has built it meanwhile
            return environment
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _build(folder, recipe, progress)
        finally:
            progress.done()
            if not _complete(folder):
                shutil.rmtree(folder, ignore_errors=True)
    return Environment(python=environment.python, digest=digest, built=True)


def generate_model(model: Model, *, python: Path, images_root: Path, home: Home, progress: Progress) -> Path:
    """The checkpoint of a `generated` model below the home's models, made with the engine's own Python.

    It is made anew when its generator has changed. Raises BuildError with the generator's last lines, and for a
    directory that was not made here: nobody else's files are ever removed.
    """
    generator, target = images_root / model.source.location, home.models / model.name
    digest = hashlib.sha256(generator.read_bytes()).hexdigest()
    marker = target / ".generator"
    with _locked(home.models / f".{model.name}.lock", progress):
        if marker.is_file() and marker.read_text() == digest:
            return target
        if target.exists() and not marker.is_file():
            raise BuildError(
                f"model `{model.name}` is not generated over files that were not made here",
                where=str(target),
                hint="move them away, or serve them: `--set model.origin.kind=directory`",
            )
        shutil.rmtree(target, ignore_errors=True)
        progress.update(f"model `{model.name}`: generating")
        result = shell.run([str(python), str(generator), str(target)])
        progress.done()
        if not result.ok:
            last = "\n".join(result.stderr.splitlines()[-_SHOWN_LINES:])
            raise BuildError(f"model `{model.name}` could not be generated", where=str(generator), details=last)
        marker.write_text(digest)
    return target


def _build(folder: Path, recipe: _Recipe, progress: Progress) -> None:
    began = time.monotonic()
    platform_name = recipe.torch["platform"] if recipe.torch else ""
    pinned = PinnedList(
        file=recipe.requirements,
        torch=recipe.torch[0] if recipe.torch else None,
        torch_index=_TORCH_INDEX.format(platform=platform_name),
    )
    installer = install(folder, pinned, progress)
    for file in recipe.shim:
        shutil.copy(file, folder / "lib" / f"python{_python_version()}" / "site-packages")
    facts = {"requirements": recipe.requirements.name, "installer": installer, "python": platform.python_version()}
    seconds = round(time.monotonic() - began, 1)
    write_whole(folder / _MARKER, json.dumps({**facts, "digest": recipe.digest, "seconds": seconds}, indent=2) + "\n")
    progress.update(f"{pinned.name}: built in {seconds:.0f} s with {installer}")


def _complete(folder: Path) -> bool:
    """Whether a build has ended there, and the interpreter it stands on is still there."""
    return (folder / _MARKER).is_file() and (folder / "bin" / "python").exists()


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open_lock(path)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.update(f"waiting for another command that makes `{path.stem.lstrip('.')}`")
            fcntl.flock(lock, fcntl.LOCK_EX)
            progress.done()
        yield
    finally:
        os.close(lock)


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
