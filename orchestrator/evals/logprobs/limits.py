"""By how much two right servers may differ: what is measured on the very model, and never less than rounding."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.evals.logprobs.reference import LogprobReference
from orchestrator.evals.logprobs.report import ProbeRow

# Right servers of one model, of other layouts and in fp32 beside bf16, were apart by 0.7 to 1.7 times this noise, and
# faults by 4 times and more (docs/verified.md, "Log-probabilities").
_FACTOR: Final = 4.0
# Nats. Between decoding and prefill of the tiny model, two layers, on a CPU: more layers have more, and tell it.
_LEAST_BF16: Final = 5e-4
_LEAST_FP32: Final = 5e-7
_FP32: Final = frozenset({"float32", "float"})
_ROUNDING: Final = ("dtype", "quantization", "kv_cache_dtype")  # of settings: those that change how numbers are rounded


@dataclass(frozen=True, kw_only=True)
class MeanLimit:
    """The most that a mean may be, in nats, None where nothing is judged; `basis` says where it is from."""

    most: float | None
    basis: str


def noise_of(rows: Iterable[ProbeRow]) -> float:
    """The largest mean, over whole texts, by which a server differs from itself between the ways it is asked."""
    return max((row.whole.mean for row in rows), default=0.0)


def limit_for(
    reference: LogprobReference | None, numerics: Mapping[str, str], *, own_noise: float, asked: float | None
) -> MeanLimit:
    """The limit of a server with these settings and this noise beside a reference; `asked` is the user's own.

    A reference of the same rounding alone decides; beside one of another rounding, the noisier side does.
    """
    if asked is not None:
        return MeanLimit(most=asked, basis=f"a mean of at most {asked:.2g} nats is asked for")
    if reference is None:
        return MeanLimit(
            most=None, basis="nothing is judged: a limit is measured on a reference, which `--save FILE` makes"
        )
    other = [key for key in _ROUNDING if reference.numerics.get(key) != numerics.get(key)]
    least = max(least_noise(reference.numerics), least_noise(numerics) if other else 0.0)
    noise = max(reference.noise, own_noise if other else 0.0, least)
    of = f"of both sides, which differ in {', '.join(f'`{key}`' for key in other)}" if other else "of the reference"
    why = "the least that its rounding has" if noise == least else "between the ways of asking it"
    basis = f"a mean of at most {_FACTOR * noise:.2g} nats: {_FACTOR:g} times the noise {of}, {noise:.2g}, {why}"
    return MeanLimit(most=_FACTOR * noise, basis=basis)


def least_noise(numerics: Mapping[str, str]) -> float:
    """What rounding alone gives; `auto` is the checkpoint's own dtype, and none ships in fp32."""
    return _LEAST_FP32 if numerics.get("dtype") in _FP32 else _LEAST_BF16


def settings_apart(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The settings in which two servers differ, in words."""
    return tuple(
        f"`{key}` is {after.get(key, 'not told')} here, {before.get(key, 'not told')} in the reference"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )
