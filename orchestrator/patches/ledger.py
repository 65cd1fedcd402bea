"""The ledger of patches, read from patches/."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from orchestrator.core.document import Document, read_document
from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.paths import data_root
from orchestrator.core.validation import faults_in
from orchestrator.patches import Patch
from orchestrator.patches.schema import Diff


def read_ledger(root: Path | None = None) -> tuple[Patch, ...]:
    """Every patch, sorted by id. Raises ProfileError with all that is wrong in any patch.yaml, each at its line."""
    root = root or data_root()
    documents = [_read(path, root) for path in sorted((root / "patches").glob("*/patch.yaml"))]
    patches: list[Patch] = []
    problems: list[Problem] = []
    for document in documents:
        try:
            patches.append(Patch.model_validate_json(json.dumps(document.data)))
        except ValidationError as error:
            problems += faults_in(error, document.place)
    problems += [problem for patch in patches for problem in _misplaced(patch, root)]
    if problems:
        raise ProfileError("the ledger of patches is not valid", problems=problems)
    return tuple(patches)


def read_diff(patch: Patch, root: Path | None = None) -> str | None:
    """The text of a patch's diff; None for a patch of another kind."""
    if not isinstance(patch.apply, Diff):
        return None
    return ((root or data_root()) / "patches" / patch.id / patch.apply.file).read_text(encoding="utf-8")


def _read(path: Path, root: Path) -> Document:
    return read_document(path.read_text(encoding="utf-8"), str(path.relative_to(root)))


def _misplaced(patch: Patch, root: Path) -> Iterator[Problem]:
    """What the schema cannot see: the folder's name, and the diff beside the file."""
    folder = root / "patches" / patch.id
    if not folder.is_dir():
        yield Problem(f"patch `{patch.id}` stands in a folder of another name", "patches/")
    elif isinstance(patch.apply, Diff) and not (folder / patch.apply.file).is_file():
        yield Problem(f"patch `{patch.id}` names a diff that does not exist", f"patches/{patch.id}/{patch.apply.file}")
