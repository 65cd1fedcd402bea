"""Valid ranges of sglang's numeric options that sglang itself does not check before a start.

Paths are below `sglang/srt/` and line numbers are those of wheel 0.5.14.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class FlagRange:
    """A range of valid numbers; `min` and `max` are inclusive bounds."""

    min: float = -math.inf
    exclusive_min: float = -math.inf
    max: float = math.inf
    exclusive_max: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.min <= value <= self.max and self.exclusive_min < value < self.exclusive_max

    def __str__(self) -> str:
        ends = {
            "of at least": self.min,
            "above": self.exclusive_min,
            "of at most": self.max,
            "below": self.exclusive_max,
        }
        return " and ".join(f"{words} {end:g}" for words, end in ends.items() if math.isfinite(end))


_COUNT: Final = FlagRange(min=1)
_NONE_OR_MORE: Final = FlagRange(min=0)
_SECONDS: Final = FlagRange(exclusive_min=0)
_PORT: Final = FlagRange(min=1, max=65535)

# sglang checks none of these counts, sizes and times; a negative one makes no sense.
RANGES: Final[Mapping[str, FlagRange]] = {
    # model_executor/model_runner_kv_cache_mixin.py:97: sglang keeps (1 - fraction) * GPU memory free
    "mem-fraction-static": FlagRange(exclusive_min=0, exclusive_max=1),
    "max-running-requests": _COUNT,  # model_runner_kv_cache_mixin.py:988: divided among dp replicas, not checked
    "max-total-tokens": _COUNT,
    "max-prefill-tokens": _COUNT,
    "context-length": _COUNT,
    "page-size": _COUNT,
    "cuda-graph-max-bs": _COUNT,
    "cuda-graph-max-bs-decode": _COUNT,
    "watchdog-timeout": _SECONDS,  # utils/watchdog.py: seconds; 0 or less fires at once
    # server_args.py:5953: sglang checks it; the capacity of a plan needs it before sglang is asked
    "swa-full-tokens-ratio": FlagRange(exclusive_min=0, max=1),
    "nccl-port": _PORT,
    "disaggregation-bootstrap-port": _PORT,
    "hicache-size": _NONE_OR_MORE,
    "max-mamba-cache-size": _COUNT,
    "mamba-full-memory-ratio": FlagRange(exclusive_min=0),
    "pp-size": _COUNT,
    "speculative-num-steps": _COUNT,
    "speculative-eagle-topk": _COUNT,
    "speculative-num-draft-tokens": _COUNT,
    "hicache-ratio": FlagRange(exclusive_min=0),
}
