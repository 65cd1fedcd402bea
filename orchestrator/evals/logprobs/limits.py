"""The limit on the difference of two correct servers: measured noise of the model, at least its rounding."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.evals.logprobs.reference import LogprobReference
from orchestrator.evals.logprobs.report import ProbeRow

# Correct servers of one model, with different layouts or fp32 against bf16, differed by 0.7 to 1.7 times this noise,
# and the injected errors that were found by 4 times or more (docs/verified.md, "Log-probabilities").
_FACTOR: Final = 4.0
# Nats; decoding against prefill of the tiny model (two layers) on a CPU. Larger models have more, measured noise.
_MIN_BF16: Final = 5e-4
_MIN_FP32: Final = 5e-7
_FP32: Final = frozenset({"float32", "float"})
_ROUNDING: Final = ("dtype", "quantization", "kv_cache_dtype")  # settings that affect rounding


@dataclass(frozen=True, kw_only=True)
class MeanLimit:
    """The maximum mean difference in nats (None: no verdict), and its `basis` as text."""

    maximum: float | None
    basis: str


def measure_noise(rows: Iterable[ProbeRow]) -> float:
    """Return the noise of a server: the largest mean difference of a text between two request variants, in nats."""
    return max((row.whole.mean for row in rows), default=0.0)


def mean_limit(
    reference: LogprobReference | None, numerics: Mapping[str, str], *, noise: float, requested: float | None
) -> MeanLimit:
    """Return the limit for a server with this `noise` compared with a reference; `requested` is the user's, in nats.

    With equal rounding settings the limit comes from the noise of the reference, else from the noisier side.
    """
    if requested is not None:
        return MeanLimit(maximum=requested, basis=f"a mean of at most {requested:.2g} nats, as requested")
    if reference is None:
        return MeanLimit(maximum=None, basis="no limit: it is measured on a reference, which `--save FILE` writes")
    differ = [key for key in _ROUNDING if reference.numerics.get(key) != numerics.get(key)]
    minimum = max(minimum_noise(reference.numerics), minimum_noise(numerics) if differ else 0.0)
    noise = max(reference.noise, noise if differ else 0.0, minimum)
    side = f"of both sides, which differ in {', '.join(f'`{key}`' for key in differ)}" if differ else "of the reference"
    source = "the minimum of its rounding" if noise == minimum else "between its own requests"
    basis = f"a mean of at most {_FACTOR * noise:.2g} nats: {_FACTOR:g} times the noise {side}, {noise:.2g}, {source}"
    return MeanLimit(maximum=_FACTOR * noise, basis=basis)


def minimum_noise(numerics: Mapping[str, str]) -> float:
    """Return the noise of rounding in nats; dtype `auto` counts as bf16, since no checkpoint ships in fp32."""
    return _MIN_FP32 if numerics.get("dtype") in _FP32 else _MIN_BF16


def numeric_differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the different numeric settings of two servers."""
    return tuple(
        f"`{key}` is {after.get(key, 'unknown')} on the server, {before.get(key, 'unknown')} in the reference"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )
