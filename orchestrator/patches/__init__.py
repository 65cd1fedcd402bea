"""The ledger of patches: what each mends, how it is told whether it is needed, when it drops itself.

Which patches a plan carries is decided here, by version and facts. Whether the sources at hand need them is decided by
their content, in one place for an image, a wheel and a directory alike: images/apply_patches.py.
"""

from orchestrator.patches.exclude import Expansion, expand_exclude
from orchestrator.patches.manifest import manifest
from orchestrator.patches.schema import Patch

__all__ = ["Expansion", "Patch", "expand_exclude", "manifest"]
