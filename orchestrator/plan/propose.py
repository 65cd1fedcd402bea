"""Which layout to propose for a model on a machine: the smallest that holds what is asked of it, and why no smaller."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.errors import Problem
from orchestrator.engine.options import Tie, ties
from orchestrator.plan.capacity import Capacity, KvCache, Memory
from orchestrator.plan.serving import profile_serving
from orchestrator.profiles.schema import Profile


@dataclass(frozen=True, kw_only=True)
class ContextNeed:
    """What one replica has to hold: a request of so many tokens."""

    context: int


@dataclass(frozen=True, kw_only=True)
class LayoutAttempt:
    """A layout, and what came of it: its capacity, or what its rules refuse."""

    tp: int
    capacity: Capacity | None
    refused: tuple[Problem, ...]


def layouts(gpus: int) -> Iterator[int]:
    """The GPUs that a replica may have on a node of so many, the fewest first."""
    yield from (count for count in range(1, max(gpus, 1) + 1) if max(gpus, 1) % count == 0)


def shortfall(tried: LayoutAttempt, need: ContextNeed) -> str:
    """Why a layout does not hold what is needed, with figures; empty where it does, as far as is known."""
    if tried.refused:
        return "; ".join(problem.message for problem in tried.refused)
    cache, memory, served = (
        (tried.capacity.cache, tried.capacity.memory, tried.capacity.served) if tried.capacity else (None, None, None)
    )
    if cache is None or cache.tokens is None:
        return ""
    if cache.tokens < need.context:
        return f"{_held(memory, cache)}, and a request may have {need.context:,}"
    if served is not None and served.at_once == 0:
        return f"{_held(memory, cache)}, and no request of `{served.load}` fits"
    return ""


def _held(memory: Memory | None, cache: KvCache) -> str:
    weights = f"{memory.weights_bytes / 1e9:.1f} GB of weights a GPU leave " if memory else ""
    return f"{weights}a cache of {cache.tokens:,} tokens"


def refused_by_all(tried: Sequence[LayoutAttempt]) -> tuple[Problem, ...]:
    """What the rules refuse in every layout, and so not for its size."""
    return tuple(problem for problem in tried[0].refused if all(problem in each.refused for each in tried))


def longest(tried: Iterable[LayoutAttempt]) -> int:
    """The longest request that any of these layouts holds."""
    caches = [each.capacity.cache for each in tried if each.capacity and not each.refused]
    return max((cache.tokens or 0 for cache in caches if cache is not None), default=0)


def inherited_flags(
    profile: Profile, flags: Iterable[str], *, model: Profile, known: Sequence[str]
) -> Mapping[str, str]:
    """Of another profile's options those that are left out for this `model`, each with the reason."""
    sized = model.hardware.vendor != "cpu"
    own = profile_serving(profile).drafts
    drafts = model.model.mtp_layer is not None and (own is None or own.by_checkpoint)
    left: dict[str, str] = {}
    for flag in flags:
        tied = ties(flag)
        if Tie.SIZE in tied and sized:
            left[flag] = "it was sized for another model"
        elif Tie.MODEL in tied:
            left[flag] = "it speaks of another model"
        elif Tie.SPARSE_ATTENTION in tied and not model.model.sparse_attention:
            left[flag] = "the model has no sparse attention"
        elif Tie.DRAFTS in tied and not drafts:
            left[flag] = "the checkpoint has no layer that drafts"
        elif flag not in known:
            left[flag] = f"sglang {model.engine.version} has no such option"
    return left
