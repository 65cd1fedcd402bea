"""The ledger of patches: what each repairs, how it is told whether it is needed, when it drops itself.

Which patches a plan carries is decided by version and facts (orchestrator/plan/patches.py). Whether the sources at hand
need them is decided by their content, in one place for an image, a wheel and a directory: images/apply_patches.py.
"""

from orchestrator.patches.ledger import manifest, patch_digest, read_diffs, read_ledger
from orchestrator.patches.schema import (
    MOE_TABLE,
    AddedFile,
    Applies,
    ConfigTransform,
    Diff,
    EnvironmentPatch,
    Patch,
    VersionRange,
)
from orchestrator.patches.transforms import TRANSFORMS, Transformed

__all__ = [
    "MOE_TABLE",
    "TRANSFORMS",
    "AddedFile",
    "Applies",
    "ConfigTransform",
    "Diff",
    "EnvironmentPatch",
    "Patch",
    "Transformed",
    "VersionRange",
    "manifest",
    "patch_digest",
    "read_diffs",
    "read_ledger",
]
