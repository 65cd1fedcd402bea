"""The ledger of patches: read from patches/, and handed to images/apply_patches.py as a manifest."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from orchestrator.core.document import Document, read_document
from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.paths import data_root
from orchestrator.core.validation import faults_in
from orchestrator.patches.schema import Diff, Patch


def read_ledger(root: Path | None = None) -> tuple[Patch, ...]:
    """Every patch, sorted by id. Raises ProfileError with all that is wrong in any patch.yaml, each at its line."""
    root = root or data_root()
    documents = [_read(path, root) for path in sorted((root / "patches").glob("*/patch.yaml"))]
    patches: list[Patch] = []
    problems: list[Problem] = []
    places: dict[str, str] = {}
    for document in documents:
        try:
            patch = Patch.model_validate_json(json.dumps(document.data))
        except ValidationError as error:
            problems += faults_in(error, document.place)
            continue
        patches.append(patch)
        problems += _misplaced(patch, document, places, root)
        places.setdefault(patch.id, document.place(("id",)))
    if problems:
        raise ProfileError("the ledger of patches is not valid", problems=problems)
    return tuple(sorted(patches, key=lambda patch: patch.id))


def read_diffs(ledger: Sequence[Patch], root: Path | None = None) -> dict[str, str]:
    """The texts of the diffs among these patches, by patch id."""
    folder = (root or data_root()) / "patches"
    return {
        patch.id: (folder / patch.id / patch.apply.file).read_text(encoding="utf-8")
        for patch in ledger
        if isinstance(patch.apply, Diff)
    }


def manifest(patches: Sequence[Patch], diffs: Mapping[str, str]) -> str:
    """The manifest of `patches`, sorted by id; `diffs` maps the id of a patch of kind `diff` to its text."""
    return json.dumps([_entry(patch, diffs) for patch in sorted(patches, key=lambda p: p.id)], indent=2) + "\n"


def _entry(patch: Patch, diffs: Mapping[str, str]) -> dict[str, object]:
    """What is read inside. Prose stays out, so that a better wording of a symptom does not rebuild every image."""
    entry: dict[str, object] = {
        "id": patch.id,
        "title": patch.title,
        "upstream": patch.upstream.reference,
        "sources": patch.sources,
        "detect": patch.detect.model_dump(mode="json", exclude_none=True),
        "apply": patch.apply.model_dump(mode="json"),
        "verify": [probe.model_dump(mode="json", exclude_none=True) for probe in patch.verify],
    }
    return {**entry, "diff": diffs[patch.id]} if patch.apply.kind == "diff" else entry


def _read(path: Path, root: Path) -> Document:
    return read_document(path.read_text(encoding="utf-8"), str(path.relative_to(root)))


def _misplaced(patch: Patch, document: Document, places: Mapping[str, str], root: Path) -> Iterator[Problem]:
    """What the schema cannot see: another patch of that id, the folder's name, the diff beside the file."""
    place = document.place(("id",))
    folder = Path(document.name).parent
    if patch.id in places:
        yield Problem(f"patch `{patch.id}` stands twice: here and at {places[patch.id]}", place, "rename one")
    elif folder.name != patch.id:
        yield Problem(f"patch `{patch.id}` stands in a folder of another name", place, f"call the folder `{patch.id}`")
    if isinstance(patch.apply, Diff) and not (root / folder / patch.apply.file).is_file():
        yield Problem(f"patch `{patch.id}` names a diff that does not exist", str(folder / patch.apply.file))
