"""Checkpoints that are made rather than fetched: a small model with random weights, for a CPU."""

import hashlib
import shutil
from pathlib import Path
from typing import Final

from orchestrator.core import shell
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError
from orchestrator.core.files import locked
from orchestrator.core.paths import Home
from orchestrator.plan import Model

_SHOWN_LINES: Final = 15


def generate_model(model: Model, generator: Path, *, python: Path, home: Home, progress: Progress) -> Path:
    """The checkpoint of a `generated` model below the home's models, made by `generator` with the engine's own Python.

    It is made anew when its generator has changed. Raises BuildError with the generator's last lines, and for a
    directory that was not made here: nobody else's files are ever removed.
    """
    target = home.models / model.name
    digest = hashlib.sha256(generator.read_bytes()).hexdigest()
    marker = target / ".generator"
    with locked(home.models / f".{model.name}.lock", progress):
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
        if not target.is_dir():
            raise BuildError(
                f"the generator of model `{model.name}` ended without making `{target}`",
                where=str(generator),
                hint="it is called with that directory as its one argument, and writes the checkpoint there",
            )
        marker.write_text(digest)
    return target
