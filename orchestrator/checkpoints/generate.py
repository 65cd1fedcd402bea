"""Generated checkpoints: small models with random weights, for a CPU."""

import errno
import hashlib
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import Final

from orchestrator.core import subprocesses
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError
from orchestrator.core.files import atomic_write, move, remove_tree
from orchestrator.core.locks import file_lock
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.plan.plan import Model

_TAIL_LINES: Final = 15
_MARKER: Final = ".generator"  # the digest of the generator


def generate_model(model: Model, generator: Path, *, python: Path, home: Home, progress: Progress) -> Path:
    """Return the checkpoint of a `generated` model; if needed, create it by `generator` with the engine's Python.

    Raises BuildError with the generator's last lines, or for a directory that `deploy` did not create; OSError for a
    full disk.
    """
    target = home.models / FileName(model.name)
    with file_lock(home.models / FileName(f".{model.name}.lock"), progress):
        if is_generated(target, generator):
            return target
        if target.exists() and not (target / _MARKER).is_file():
            raise BuildError(
                f"cannot generate model `{model.name}`: the directory has other files",
                location=str(target),
                hint="move the files, or serve the directory as is: `--set model.checkpoint.source=local`",
            )
        for leftover in home.models.glob(f".{model.name}.making-*"):  # from killed commands
            remove_tree(leftover, within=home.models)
        # a new directory: the generator of a killed command may still write into the old one
        with tempfile.TemporaryDirectory(dir=home.models, prefix=f".{model.name}.making-") as temporary:
            checkpoint = Path(temporary, FileName(model.name))
            progress.update(f"model `{model.name}`: generating")
            try:
                _generate(model, generator, python=python, folder=checkpoint)
            finally:
                progress.done()
            atomic_write(checkpoint / _MARKER, _digest(generator))
            remove_tree(target, within=home.models)
            move(checkpoint, target)  # with its marker: a directory without a marker counts as the user's
    return target


def is_generated(directory: Path, generator: Path) -> bool:
    """Return whether this generator created the directory."""
    marker = directory / _MARKER
    return marker.is_file() and marker.read_text() == _digest(generator)


def _digest(generator: Path) -> str:
    return hashlib.sha256(generator.read_bytes()).hexdigest()


def _generate(model: Model, generator: Path, *, python: Path, folder: Path) -> None:
    last: deque[str] = deque(maxlen=_TAIL_LINES)
    if subprocesses.follow([str(python), str(generator), str(folder)], last.append) != 0:
        details = "\n".join(last)
        if os.strerror(errno.ENOSPC) in details:  # the generator's message names no file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        raise BuildError(f"cannot generate model `{model.name}`", location=str(generator), details=details)
    if not folder.is_dir():
        raise BuildError(
            f"the generator of model `{model.name}` did not create `{folder}`",
            location=str(generator),
            hint="the generator must write the checkpoint to the directory in its only argument",
        )
