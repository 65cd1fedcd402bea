"""Valid ranges of sglang's numeric options that sglang itself does not check before a start.

The values that `ServerArgs` rejects are in the flag table of each version, see `refusals.py`. Paths are below
`sglang/srt/` and line numbers are those of wheel 0.5.14.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of valid numbers: `least` and `most` are inclusive bounds, `above` and `below` exclusive ones."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        ends = {"of at least": self.least, "above": self.above, "of at most": self.most, "below": self.below}
        return " and ".join(f"{words} {end:g}" for words, end in ends.items() if math.isfinite(end))


_COUNT: Final = Range(least=1)
_NONE_OR_MORE: Final = Range(least=0)
_SECONDS: Final = Range(above=0)
_PORT: Final = Range(least=1, most=65535)

# sglang checks none of these counts, sizes and times, unless a line is named here; a negative one makes no sense.
RANGES: Final[Mapping[str, Range]] = {
    # model_executor/model_runner_kv_cache_mixin.py:97: sglang keeps (1 - fraction) * GPU memory free
    "mem-fraction-static": Range(above=0, below=1),
    "max-running-requests": _COUNT,  # model_runner_kv_cache_mixin.py:988: divided among dp replicas, not checked
    "max-queued-requests": _NONE_OR_MORE,
    "max-total-tokens": _COUNT,
    "max-prefill-tokens": _COUNT,
    "context-length": _COUNT,
    "page-size": _COUNT,
    "cuda-graph-max-bs": _COUNT,
    "cuda-graph-max-bs-decode": _COUNT,
    "cuda-graph-max-bs-prefill": _COUNT,
    "cuda-graph-bs": _COUNT,
    "cuda-graph-bs-decode": _COUNT,
    "cuda-graph-bs-prefill": _COUNT,
    "decode-log-interval": _COUNT,
    "stream-interval": _COUNT,
    "watchdog-timeout": _SECONDS,  # utils/watchdog.py: seconds; 0 or less fires at once
    "soft-watchdog-timeout": _SECONDS,
    "dist-timeout": _SECONDS,
    "schedule-conservativeness": _NONE_OR_MORE,  # server_args.py:6755
    "swa-full-tokens-ratio": Range(above=0, most=1),  # server_args.py:5953
    "random-seed": Range(least=0, most=2**32 - 1),  # utils/common.py:777: numpy rejects any other seed
    "nccl-port": _PORT,
    "disaggregation-bootstrap-port": _PORT,
    "prefill-max-requests": _COUNT,
    "num-continuous-decode-steps": _COUNT,
    "torch-compile-max-bs": _COUNT,
    "triton-attention-num-kv-splits": _COUNT,
    "cpu-offload-gb": _NONE_OR_MORE,
    "hicache-size": _NONE_OR_MORE,
    "max-mamba-cache-size": _COUNT,
    "mamba-full-memory-ratio": Range(above=0),
    "ep-num-redundant-experts": _NONE_OR_MORE,
    "gc-warning-threshold-secs": _NONE_OR_MORE,
    "tbo-token-distribution-threshold": Range(least=0, most=1),
    "attn-cp-size": _COUNT,
    "moe-dp-size": _COUNT,
    "pp-size": _COUNT,
    "speculative-num-steps": _COUNT,
    "speculative-eagle-topk": _COUNT,
    "speculative-num-draft-tokens": _COUNT,
    "speculative-accept-threshold-single": Range(least=0, most=1),
    "speculative-accept-threshold-acc": Range(least=0, most=1),
    "hicache-ratio": Range(above=0),
    "max-lora-rank": _COUNT,
}
