"""The ledger of patches: read from patches/, and passed to images/apply_patches.py as a manifest."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from orchestrator.core import files
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.safe_paths import RelativePath, join
from orchestrator.core.validation import model_of, read_file
from orchestrator.patches.schema import Diff, Patch

_MAX_DIFF: Final = 4 << 20  # maximum size of a diff


def read_ledger(catalog: Catalog | None = None) -> tuple[Patch, ...]:
    """Return every patch of the catalog, sorted by id; by default the user's own and the shipped patches.

    Raises ProfileError with the location of every problem in any patch.yaml.
    """
    return _read(catalog or Catalog.from_environment())


@cache
def _read(catalog: Catalog) -> tuple[Patch, ...]:
    """Read the ledger once per process, for the plan, its image and the checkpoint's overlay."""
    patches: list[Patch] = []
    problems: list[Problem] = []
    for path in catalog.all(EntryKind.PATCH):
        try:
            document = read_file(path, catalog.display_path(path))
            patch = model_of(document, Patch)
        except ProfileError as error:
            problems += error.problems_or_self()
            continue
        patches.append(patch)
        if path.parent.name != patch.id:
            message = f"patch `{patch.id}` is in a folder with another name"
            problems.append(Problem(message, document.location(("id",)), f"rename the folder to `{patch.id}`"))
    if problems:
        raise ProfileError("the patch ledger is invalid", problems=problems)
    return tuple(sorted(patches, key=lambda patch: patch.id))


def read_diffs(ledger: Sequence[Patch], catalog: Catalog | None = None) -> dict[str, str]:
    """Return the diffs of these patches by patch id. Raises ProfileError for an unreadable diff."""
    catalog = catalog or Catalog.from_environment()
    diffs = [(patch.id, patch.apply) for patch in ledger if isinstance(patch.apply, Diff)]
    return {name: _diff(diff, catalog.path(EntryKind.PATCH, name)) for name, diff in diffs}


def _diff(diff: Diff, folder: Path) -> str:
    path = join(folder.parent, RelativePath(diff.file))
    try:
        return files.read_file(path, max_bytes=_MAX_DIFF).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        hint = "correct `diff.file` of the patch, or write the file"
        raise ProfileError(f"cannot read the diff: {reason}", location=str(path), hint=hint) from error


def manifest(
    patches: Sequence[Patch], diffs: Mapping[str, str], *, unexpected: Collection[str] = (), hint: str = ""
) -> str:
    """Return the manifest of `patches`, sorted by id; `diffs` maps the id of a patch of kind `diff` to its text.

    A patch that does not apply to the sources fails the build, unless it is in `unexpected`. `hint` is the next
    command if a patch lacks its file.
    """
    entries = [
        {**_entry(patch, diffs), "digest": patch_digest(patch, diffs), "expected": patch.id not in unexpected}
        | ({"hint": hint} if hint and patch.apply.kind == "file" else {})
        for patch in sorted(patches, key=lambda patch: patch.id)
    ]
    return json.dumps(entries, indent=2) + "\n"


def patch_digest(patch: Patch, diffs: Mapping[str, str]) -> str:
    """Return the sha256 (hex) of a patch's conditions and effects, which identifies the patch in a receipt."""
    acts = {key: value for key, value in _entry(patch, diffs).items() if key not in {"title", "upstream"}}
    return sha256(json.dumps(acts, sort_keys=True).encode()).hexdigest()


def _entry(patch: Patch, diffs: Mapping[str, str]) -> dict[str, object]:
    """Return the manifest entry of a patch.

    Without prose, so that a reworded symptom does not rebuild every image.
    """
    entry: dict[str, object] = {
        "id": patch.id,
        "title": patch.title,
        "upstream": patch.upstream.reference,
        "sources": patch.sources,
        "detect": patch.detect.model_dump(mode="json", exclude_none=True),
        "apply": patch.apply.model_dump(mode="json"),
        "verify": [pattern.model_dump(mode="json", exclude_none=True) for pattern in patch.verify],
    }
    return {**entry, "diff": diffs[patch.id]} if patch.apply.kind == "diff" else entry
