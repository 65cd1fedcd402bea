"""Log gate for CUDA: found and missing tuned Triton configurations of fused MoE in a server's log.

sglang looks up one file per shape of a rank, e.g. `E=33,N=1024,device_name=NVIDIA_H200.json` for 33 experts (including
the shared one) of 1024 columns (0.5.16, moe_runner/triton_utils/fused_moe_triton_config.py). Without that file sglang
uses a slower default and reports no error. The file of the down projection (`_down`) is optional.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from orchestrator.plan.plan import Plan

_FOUND: Final = re.compile(r"Using MoE kernel config from (?P<path>.+?\.json)")
_OTHER_VERSION: Final = re.compile(
    r"Fallback to triton version (?P<version>\S+) and use MoE kernel config from (?P<path>.+?\.json)"
)
_MISSED: Final = re.compile(r"Using default MoE kernel config\. .*Config file not found at (?P<path>.+?\.json)")
_OPTIONAL: Final = "_down.json"
TRITON_HINT: Final = (
    "sglang's benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py makes them; the server reads a folder by "
    "`--set env.SGLANG_MOE_CONFIG_DIR=…`"
)


@dataclass(frozen=True, kw_only=True)
class TritonReport:
    """Sorted paths of configurations: tuned for this Triton, for another version (`older`), and missing."""

    hits: tuple[str, ...]
    older: tuple[str, ...]
    misses: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The counts, then one line for each configuration that is missing or for another Triton."""
        if not (self.hits or self.older or self.misses):
            return "fused MoE configurations: no lookup found in the log"
        lines = [f"fused MoE configurations: {len(self.hits)} found, {len(self.misses)} missing"]
        lines += [f"  missing: {PurePosixPath(path).name}" for path in self.misses]
        lines += [f"  tuned for another Triton: {PurePosixPath(path).name}" for path in self.older]
        return "\n".join(lines)


def uses_triton_configs(plan: Plan) -> bool:
    """Return whether the plan's server may look up Triton configurations of fused MoE."""
    return plan.engine.platform == "cuda" and plan.model.moe is not None


@dataclass(kw_only=True)
class TritonReader:
    """Incremental reader of a log; counts each file once."""

    _found: dict[re.Pattern[str], set[str]] = field(
        default_factory=lambda: {_FOUND: set(), _OTHER_VERSION: set(), _MISSED: set()}
    )

    def feed(self, line: str) -> None:
        """Read one complete line."""
        for pattern, paths in self._found.items() if "MoE kernel config" in line else ():
            if (match := pattern.search(line)) and _OPTIONAL not in match["path"]:
                paths.add(match["path"])

    def report(self) -> TritonReport:
        """Return the report on the lines read so far."""
        hits, older, misses = (tuple(sorted(paths)) for paths in self._found.values())
        return TritonReport(hits=hits, older=older, misses=misses)


def triton_report(lines: Iterable[str]) -> TritonReport:
    """Return the report on the lines of a log."""
    reader = TritonReader()
    for line in lines:
        reader.feed(line)
    return reader.report()
