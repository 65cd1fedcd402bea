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
_LEAST_BF16: Final = 5e-4
_LEAST_FP32: Final = 5e-7
_FP32: Final = frozenset({"float32", "float"})
_ROUNDING: Final = ("dtype", "quantization", "kv_cache_dtype")  # settings that affect rounding


@dataclass(frozen=True, kw_only=True)
class MeanLimit:
    """The maximum mean difference in nats (None: no verdict), and its `basis` as text."""

    most: float | None
    basis: str


def noise_of(rows: Iterable[ProbeRow]) -> float:
    """Return the noise of a server: the largest mean difference of a text between two request variants, in nats."""
    return max((row.whole.mean for row in rows), default=0.0)


def limit_for(
    reference: LogprobReference | None, numerics: Mapping[str, str], *, own_noise: float, asked: float | None
) -> MeanLimit:
    """Return the limit for a server compared with a reference; `asked` is the limit from the user, in nats.

    With equal rounding settings the limit comes from the noise of the reference, else from the noisier side.
    """
    if asked is not None:
        return MeanLimit(most=asked, basis=f"a mean of at most {asked:.2g} nats, as requested")
    if reference is None:
        return MeanLimit(most=None, basis="no limit: it is measured on a reference, which `--save FILE` writes")
    other = [key for key in _ROUNDING if reference.numerics.get(key) != numerics.get(key)]
    least = max(least_noise(reference.numerics), least_noise(numerics) if other else 0.0)
    noise = max(reference.noise, own_noise if other else 0.0, least)
    of = f"of both sides, which differ in {', '.join(f'`{key}`' for key in other)}" if other else "of the reference"
    why = "the minimum of its rounding" if noise == least else "between its own requests"
    basis = f"a mean of at most {_FACTOR * noise:.2g} nats: {_FACTOR:g} times the noise {of}, {noise:.2g}, {why}"
    return MeanLimit(most=_FACTOR * noise, basis=basis)


def least_noise(numerics: Mapping[str, str]) -> float:
    """Return the noise of rounding in nats; dtype `auto` counts as bf16, since no checkpoint ships in fp32."""
    return _LEAST_FP32 if numerics.get("dtype") in _FP32 else _LEAST_BF16


def settings_apart(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the different numeric settings of two servers."""
    return tuple(
        f"`{key}` is {after.get(key, 'unknown')} on the server, {before.get(key, 'unknown')} in the reference"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )
