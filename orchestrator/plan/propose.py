"""The smallest layout that fits a model on a node, with the reasons against smaller layouts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.text import gb
from orchestrator.engine.options import Tie, ties
from orchestrator.plan.capacity import Capacity, KvCache, Memory
from orchestrator.plan.serving import profile_serving
from orchestrator.profiles.schema import ModelSection, Profile


class DoesNotFitError(ProfileError):
    """No layout of the node fits the model's longest request.

    `max_tokens` is the length of the longest request that fits, 0 if the weights fit into no layout.
    """

    def __init__(self, message: str, *, problems: Sequence[Problem], hint: str, max_tokens: int) -> None:
        super().__init__(message, problems=problems, hint=hint)
        self.max_tokens = max_tokens


@dataclass(frozen=True, kw_only=True)
class LayoutAttempt:
    """A layout with its capacity, or with the problems from the rules."""

    tp: int
    capacity: Capacity | None
    problems: tuple[Problem, ...]


def layouts(gpus: int) -> Iterator[int]:
    """Yield the possible numbers of GPUs per DP rank on a node with `gpus`, smallest first."""
    yield from (count for count in range(1, max(gpus, 1) + 1) if max(gpus, 1) % count == 0)


def shortfall(attempt: LayoutAttempt, context: int) -> str:
    """Return why a request of `context` tokens does not fit into a DP rank; "" if it does, or if that is unknown."""
    if attempt.problems:
        return "; ".join(problem.message for problem in attempt.problems)
    cache, memory, fit = (
        (attempt.capacity.cache, attempt.capacity.memory, attempt.capacity.load_fit)
        if attempt.capacity
        else (None, None, None)
    )
    if cache is None or cache.tokens is None:
        return ""
    if cache.tokens < context:
        return f"{_cache_size(memory, cache)}; a request may have {context:,}"
    if fit is not None and fit.concurrent == 0:
        return f"{_cache_size(memory, cache)}; no request of `{fit.load}` fits"
    return ""


def _cache_size(memory: Memory | None, cache: KvCache) -> str:
    weights = f"{gb(memory.weights_bytes)} of weights a GPU leave " if memory else ""
    return f"{weights}a cache of {cache.tokens:,} tokens"


def common_problems(attempts: Sequence[LayoutAttempt]) -> tuple[Problem, ...]:
    """Return the problems that all layouts have, so that no other size solves them."""
    return tuple(
        problem for problem in attempts[0].problems if all(problem in attempt.problems for attempt in attempts)
    )


def longest_context(attempts: Iterable[LayoutAttempt]) -> int:
    """Return the length of the longest request that fits into any of these layouts, in tokens."""
    caches = [attempt.capacity.cache for attempt in attempts if attempt.capacity and not attempt.problems]
    return max((cache.tokens or 0 for cache in caches if cache is not None), default=0)


def require_host_memory(model: ModelSection, capacity: Capacity, available: int, *, name: str) -> None:
    """Raise DoesNotFitError if weights and cache of a CPU server exceed the `available` bytes of its host."""
    weights, cache = model.weights_size, capacity.cache
    per_token, tokens = (cache.actual_token_bytes, cache.tokens or 0) if cache else (0, 0)
    if (needed := weights + tokens * per_token) <= available:
        return
    values = f"{gb(weights)} of weights and {gb(tokens * per_token)} of cache for {tokens:,} tokens"
    raise DoesNotFitError(
        f"`{name}` does not fit into the memory of this host",
        problems=[Problem(f"{values} need {gb(needed)}; {gb(available)} are available")],
        hint="use another host (`--host ssh://NODE`), or a checkpoint with a smaller quantization",
        max_tokens=max(int((available - weights) / per_token), 0) if per_token else 0,
    )


def inherited_flags(
    profile: Profile, flags: Iterable[str], *, model: Profile, options: Sequence[str]
) -> Mapping[str, str]:
    """Return the options of another profile that do not apply to this `model`, with reasons."""
    sized = model.hardware.vendor != "cpu"
    speculation = profile_serving(profile).drafts
    drafts = model.model.mtp_layer is not None and (speculation is None or speculation.by_checkpoint)
    omitted: dict[str, str] = {}
    for flag in flags:
        tied = ties(flag)
        if Tie.SIZE in tied and sized:
            omitted[flag] = "sized for another model"
        elif Tie.MODEL in tied:
            omitted[flag] = "specific to another model"
        elif Tie.SPARSE_ATTENTION in tied and not model.model.sparse_attention:
            omitted[flag] = "the model has no sparse attention"
        elif Tie.DRAFTS in tied and not drafts:
            omitted[flag] = "the checkpoint has no MTP layer"
        elif flag not in options:
            omitted[flag] = f"sglang {model.engine.version} has no such option"
    return omitted
