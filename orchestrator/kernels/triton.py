"""The gate's twin for CUDA: which tuned Triton configurations of fused MoE a server's log names as found or missing.

sglang looks one file up a shape, by what one rank sees: `E=33,N=1024,device_name=NVIDIA_H200.json`, 33 experts (the
shared one among them) of 1024 columns (0.5.16, moe_runner/triton_utils/fused_moe_triton_config.py). Where none has that
name it takes a default for all shapes: slower, and nothing fails. The down projection's own file (`_down`) is optional.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from orchestrator.plan.plan import Plan

_FOUND: Final = re.compile(r"Using MoE kernel config from (?P<path>.+?\.json)")
_OLDER: Final = re.compile(
    r"Fallback to triton version (?P<version>\S+) and use MoE kernel config from (?P<path>.+?\.json)"
)
_MISSED: Final = re.compile(r"Using default MoE kernel config\. .*Config file not found at (?P<path>.+?\.json)")
_OPTIONAL: Final = "_down.json"


@dataclass(frozen=True, kw_only=True)
class TritonReport:
    """Paths of configurations, sorted: tuned for this Triton, for another one, and missing."""

    hits: tuple[str, ...]
    older: tuple[str, ...]
    misses: tuple[str, ...]

    @property
    def summary(self) -> str:
        """One paragraph for people: the counts, then one line for each that is missing or of another Triton."""
        if not (self.hits or self.older or self.misses):
            return "fused MoE configurations: the log names no lookup"
        lines = [f"fused MoE configurations: {len(self.hits)} found, {len(self.misses)} missing"]
        lines += [f"  missing: {PurePosixPath(path).name}" for path in self.misses]
        lines += [f"  tuned for another Triton: {PurePosixPath(path).name}" for path in self.older]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """The report as JSON-able data."""
        return {"hits": list(self.hits), "older": list(self.older), "misses": list(self.misses)}


def asks_triton(plan: Plan) -> bool:
    """Whether the plan's server may look up Triton configurations of fused MoE."""
    return plan.engine.platform == "cuda" and plan.model.moe is not None


@dataclass(kw_only=True)
class TritonReader:
    """Reads a log as it grows; each file counts once, however many ranks look it up."""

    _found: dict[re.Pattern[str], set[str]] = field(
        default_factory=lambda: {_FOUND: set(), _OLDER: set(), _MISSED: set()}
    )

    def feed(self, line: str) -> None:
        """Take one whole line."""
        for pattern, paths in self._found.items() if "MoE kernel config" in line else ():
            if (match := pattern.search(line)) and _OPTIONAL not in match["path"]:
                paths.add(match["path"])

    def report(self) -> TritonReport:
        """What has been read so far."""
        hits, older, misses = (tuple(sorted(paths)) for paths in self._found.values())
        return TritonReport(hits=hits, older=older, misses=misses)


def triton_report(lines: Iterable[str]) -> TritonReport:
    """The report on the lines of a log."""
    reader = TritonReader()
    for line in lines:
        reader.feed(line)
    return reader.report()
