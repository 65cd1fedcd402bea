"""How far two servers, or two ways of asking one, are apart in what they say of the same tokens. Pure; in nats.

A right server differs from another right one by rounding, everywhere about as much. A wrong kernel differs more: in all
places, from some position on, or more and more with the position.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from orchestrator.engine.logprobs import Ranked, TokenLogprobs

BANDS: Final = (1, 64, 512, 2048, 8192, 32768)  # positions at which a band begins, and where the last one ends
_LEAST_REST: Final = 1e-9  # of the mass beside the likeliest tokens: rounding leaves less than none


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Of the places `first` to `last`: mean and largest difference of the own token's log-probability.

    `kl` is the mean Kullback-Leibler divergence over the likeliest tokens that both name, and all others as one: never
    more than that of the whole vocabulary (data processing inequality). `same_top` is the share of places with the same
    likeliest token.
    """

    first: int
    last: int
    places: int
    mean: float
    most: float
    kl: float
    same_top: float


def diverge(before: TokenLogprobs, after: TokenLogprobs, *, first: int) -> tuple[Divergence, tuple[Divergence, ...]]:
    """Of all places, and by bands of position; `first` is the position of the first place. As many as both have."""
    count = min(len(before.own), len(after.own))
    if not count:
        raise ValueError("there is nothing to compare")
    edges = [min(max(edge - first, 0), count) for edge in BANDS]
    edges[-1] = count
    bands = [(begin, end) for begin, end in pairwise(edges) if begin < end]
    return _of(before, after, 0, count, first), tuple(_of(before, after, *band, first) for band in bands)


def _of(before: TokenLogprobs, after: TokenLogprobs, begin: int, end: int, first: int) -> Divergence:
    apart = [abs(one - two) for one, two in zip(before.own[begin:end], after.own[begin:end], strict=True)]
    tops = list(zip(before.top[begin:end], after.top[begin:end], strict=True))
    return Divergence(
        first=first + begin,
        last=first + end - 1,
        places=len(apart),
        mean=math.fsum(apart) / len(apart),
        most=max(apart),
        kl=math.fsum(divergence_of_tops(*pair) for pair in tops) / len(apart),
        same_top=sum(bool(_likeliest(one) & _likeliest(two)) for one, two in tops) / len(tops),
    )


def divergence_of_tops(before: Ranked, after: Ranked) -> float:
    """The Kullback-Leibler divergence of one place: of the tokens that both rank, and of all others together."""
    there = dict(after)
    shared = [(score, there[token]) for token, score in before if token in there]
    whole = math.fsum(math.exp(one) * (one - two) for one, two in shared)
    rest = _rest(one for one, _ in shared), _rest(two for _, two in shared)
    return max(whole + rest[0] * math.log(rest[0] / rest[1]), 0.0)


def _rest(scores: Iterator[float]) -> float:
    return max(1 - math.fsum(math.exp(score) for score in scores), _LEAST_REST)


def _likeliest(ranked: Ranked) -> set[int]:
    """The likeliest tokens: several where they are equally likely, as in bf16 they often are."""
    return {token for token, score in ranked if score == max(each for _, each in ranked)}
