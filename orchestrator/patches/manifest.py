"""What images/apply_patches.py is given: the patches as JSON, diffs with their text."""

import json
from collections.abc import Mapping, Sequence

from orchestrator.patches.schema import Patch


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
        "detect": patch.detect.model_dump(),
        "apply": patch.apply.model_dump(mode="json"),
        "verify": [probe.model_dump() for probe in patch.verify],
    }
    return {**entry, "diff": diffs[patch.id]} if patch.apply.kind == "diff" else entry
