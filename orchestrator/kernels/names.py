"""Which kernel names an aiter commit knows; a row that names another ends in `Invalid FlyDSL kernel name`."""

import re
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.kernels.keys import Shape

_JUDGED = "flydsl"  # names of other families (CK, assembly) are generated from the row and are not judged


class Verdict(StrEnum):
    """What can be said of a kernel name at one aiter commit."""

    KNOWN = "known"
    UNKNOWN = "kernel unknown to this aiter"
    NOT_GENERATED = "kernel not generated for this shape"


@dataclass(frozen=True, kw_only=True)
class ShapeBound:
    """A family of kernels that exists for some shapes only; `prefix` is how its names begin."""

    prefix: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class KernelNames:
    """The FlyDSL names of one aiter commit, as patterns that match a whole name."""

    commit: str
    patterns: tuple[re.Pattern[str], ...]
    bound: tuple[ShapeBound, ...]

    def judge(self, name: str, shape: Shape) -> Verdict:
        """What this aiter makes of `name` for `shape`."""
        if not name.startswith(_JUDGED):
            return Verdict.KNOWN
        if not any(pattern.fullmatch(name) for pattern in self.patterns):
            return Verdict.UNKNOWN
        for family in self.bound:
            if name.startswith(family.prefix) and shape not in family.shapes:
                return Verdict.NOT_GENERATED
        return Verdict.KNOWN

    def judge_all(self, names: tuple[str, ...], shape: Shape) -> Verdict:
        """The verdict on the first of `names` that is not known, or KNOWN."""
        verdicts = (self.judge(name, shape) for name in names)
        return next((verdict for verdict in verdicts if verdict is not Verdict.KNOWN), Verdict.KNOWN)
