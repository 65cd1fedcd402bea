"""The divergence of two sets of log-probabilities (nats) for the same tokens. Pure.

Two correct servers differ by rounding, about equally at all positions. A wrong kernel causes larger differences: at all
positions, from a certain position on, or growing with the position.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from orchestrator.engine.logprobs import Ranked, TokenLogprobs

BANDS: Final = (1, 64, 512, 2048, 8192, 32768)  # first positions of the bands, then the end of the last band
_MIN_REST: Final = 1e-9  # minimum probability of all other tokens, which rounding can make negative


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The divergence at positions `first` to `last` (inclusive): mean and maximum difference of the token's logprob.

    `kl` is the mean Kullback-Leibler divergence over the top tokens in both lists, with all other tokens as one. It is
    a lower bound of the divergence over the vocabulary (data processing inequality). `top1_agreement` is the share of
    positions with the same top token.
    """

    first: int
    last: int
    positions: int
    mean: float
    maximum: float
    kl: float
    top1_agreement: float


def diverge(before: TokenLogprobs, after: TokenLogprobs, *, first: int) -> tuple[Divergence, tuple[Divergence, ...]]:
    """Return the divergence over all positions, and by band; `first` is the position of the first score.

    Compares only common positions. Raises ValueError if there are none.
    """
    count = min(len(before.actual), len(after.actual))
    if not count:
        raise ValueError("no log-probabilities to compare")
    edges = [min(max(edge - first, 0), count) for edge in BANDS]
    edges[-1] = count
    bands = [(begin, end) for begin, end in pairwise(edges) if begin < end]
    scores = zip(before.actual[:count], after.actual[:count], before.top[:count], after.top[:count], strict=True)
    positions = [
        (abs(a - b), kl_of_tops(top_a, top_b), top_a == top_b or bool(_top_tokens(top_a) & _top_tokens(top_b)))
        for a, b, top_a, top_b in scores
    ]
    return _summary(positions, first), tuple(_summary(positions[begin:end], first + begin) for begin, end in bands)


def _summary(positions: Sequence[tuple[float, float, bool]], first: int) -> Divergence:
    """Return the divergence over positions from `first` on: difference, KL divergence and agreement of each."""
    count, differences = len(positions), [difference for difference, _, _ in positions]
    return Divergence(
        first=first,
        last=first + count - 1,
        positions=count,
        mean=math.fsum(differences) / count,
        maximum=max(differences),
        kl=math.fsum(divergence for _, divergence, _ in positions) / count,
        top1_agreement=sum(agrees for _, _, agrees in positions) / count,
    )


def kl_of_tops(before: Ranked, after: Ranked) -> float:
    """Return the Kullback-Leibler divergence at one position, over the common tokens and all others as one token."""
    if before == after:
        return 0.0
    after_scores = dict(after)
    shared = [(score, after_scores[token]) for token, score in before if token in after_scores]
    rest_before, rest_after = _rest(score for score, _ in shared), _rest(score for _, score in shared)
    kl = math.fsum(math.exp(a) * (a - b) for a, b in shared)
    return max(kl + rest_before * math.log(rest_before / rest_after), 0.0)


def _rest(scores: Iterator[float]) -> float:
    return max(1 - math.fsum(math.exp(score) for score in scores), _MIN_REST)


def _top_tokens(ranked: Ranked) -> set[int]:
    """Return the tokens with the highest score; ties are common in bf16."""
    highest = max(score for _, score in ranked)
    return {token for token, score in ranked if score == highest}
