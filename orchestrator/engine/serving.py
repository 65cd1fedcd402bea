"""What sglang's options mean for everyone else: decided here, once, so that no other package reads an option.

Sources are sglang's wheel 0.5.14, below `sglang/srt/`, unless they say otherwise.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.engine.flags import FlagValue, flag_words
from orchestrator.engine.memory import DSA_PAGE, WINDOW_RATIO

_BESIDE_DRAFTS: Final = 48  # running requests, where nobody says; arg_groups/speculative_hook.py:271
_WHOLE_PREFILL: Final = 16384  # tokens of a batch that is not split, where nobody says: `max_prefill_tokens`
# What is drafted where nobody says: 3/1/4 for GLM, DeepSeek and most others (arg_groups/speculative_hook.py:512-542,
# the same in 0.5.16 and 0.5.23); 5/4/8 for Llama and Grok, which have no MTP layer, is left out.
_STEPS: Final = 3
_PORTS: Final = ("nccl-port", "dist-init-addr", "disaggregation-bootstrap-port")  # a port, or host:port
_LARGEST: Final = 2**63
# Second names of the options that are read here; the same in every version that has them.
_ALIASES: Final[Mapping[str, str]] = {
    "pipeline-parallel-size": "pp-size",
    "speculative-draft-model": "speculative-draft-model-path",
    "nccl-init-addr": "dist-init-addr",
}


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """Speculative decoding: steps, branches of a step, and tokens that one step of the target verifies."""

    algorithm: str
    steps: int
    topk: int
    tokens: int
    tokens_are_set: bool
    own_model: bool  # a draft model is named; else the checkpoint's MTP layer drafts, or n-grams do
    by_ngrams: bool

    @property
    def by_checkpoint(self) -> bool:
        """Whether the checkpoint's own MTP layer is expected to draft."""
        return not self.own_model

    @property
    def room(self) -> int:
        """Tokens of the cache that a running request takes beyond those it has."""
        return max(self.steps * self.topk, self.tokens)


@dataclass(frozen=True, kw_only=True)
class FixedPort:
    """A port that an option fixes; None where the value names none."""

    option: str  # as it is written
    port: int | None


@dataclass(frozen=True, kw_only=True)
class ServingFacts:
    """What a server's options mean. None stands for what the engine decides at its start."""

    context: int  # tokens
    running_set: int | None  # requests at once in a replica, as the options limit them
    prefill_chunk: int | None  # tokens; None also where prefills are not split
    prefill_batch: int | None  # tokens that are prefilled at once, at most
    cache_tokens: int | None  # that the options let a replica's cache hold
    kv_dtype: str | None
    dtype: str | None
    page: int  # tokens
    memory_fraction: float | None  # as it is written, even where the engine refuses it
    graph_batch: int | None  # the largest batch of a CUDA graph; 0 for no graphs
    window_ratio: float | None  # tokens of sliding windows to those of other layers; None: windows have no pool
    window_pool_option: str  # why the engine sizes that pool otherwise, in backticks; empty for nothing
    sparse_backends: tuple[str | None, str | None]  # for prefill and decode with sparse attention
    drafts: Drafts | None
    prefix_cache: bool
    cached_tokens_report: bool  # in `usage`
    metrics: bool
    grammar: bool  # structured output
    tool_parser: str | None
    expert_fusion: bool | None  # of the shared experts with the routed ones
    fusion_vetoes: tuple[str, ...]  # options that rule that fusion out where it is not asked for
    stages: int  # of a pipeline
    first_gpu: int
    gpu_step: int
    ports: tuple[FixedPort, ...]
    paths: tuple[str, ...]  # values that may name a repository of the hub

    @property
    def running(self) -> int | None:
        """Requests that may run at once in a replica; None where memory alone decides."""
        return self.running_set or (_BESIDE_DRAFTS if self.drafts is not None else None)


def serving_facts(
    flags: Mapping[str, FlagValue], *, context_length: int, platform: str, sparse_attention: bool
) -> ServingFacts:
    """Decide what `flags` mean for a model on a platform; a value that is none of its kind counts as not set."""
    given = _Given(flags)
    chunk, drafts = given.count("chunked-prefill-size"), _drafts(given)
    whole = given.number("chunked-prefill-size") == -1
    grammar = given.text("grammar-backend")
    batch = given.count("cuda-graph-max-bs-decode") or given.count("cuda-graph-max-bs")
    return ServingFacts(
        context=given.count("context-length") or context_length,
        running_set=given.count("max-running-requests"),
        prefill_chunk=chunk,
        prefill_batch=given.count("max-prefill-tokens") or _WHOLE_PREFILL if whole else chunk,
        cache_tokens=given.count("max-total-tokens"),
        kv_dtype=given.text("kv-cache-dtype"),
        dtype=given.text("dtype"),
        page=DSA_PAGE if sparse_attention else given.count("page-size") or 1,
        memory_fraction=given.number("mem-fraction-static"),
        graph_batch=0 if given.has("disable-cuda-graph") else batch,
        window_ratio=_window_ratio(given),
        window_pool_option=_window_pool_option(given),
        sparse_backends=(given.text("dsa-prefill-backend"), given.text("dsa-decode-backend")),
        drafts=drafts,
        prefix_cache=not given.has("disable-radix-cache"),
        cached_tokens_report=given.has("enable-cache-report"),
        metrics=given.has("enable-metrics"),
        # On a CPU the default backend crashes the scheduler: only a backend that is named counts there.
        grammar=grammar != "none" and (grammar is not None or platform != "cpu"),
        tool_parser=given.text("tool-call-parser"),
        expert_fusion=_expert_fusion(given),
        fusion_vetoes=tuple(_fusion_vetoes(given)),
        stages=given.count("pp-size") or 1,
        first_gpu=given.count("base-gpu-id") or 0,
        gpu_step=given.count("gpu-id-step") or 1,
        ports=tuple(_ports(flags)),
        paths=tuple(word for name in flags if name.endswith(("-path", "-paths")) for word in flag_words(flags[name])),
    )


def recorded_facts(plan: Mapping[str, object]) -> ServingFacts | None:
    """Decide the same from the plan that a result holds as data; None where it has no options that can be read."""
    flags, model, engine = plan.get("flags"), plan.get("model"), plan.get("engine")
    if not isinstance(flags, list | tuple):
        return None
    model, engine = (part if isinstance(part, dict) else {} for part in (model, engine))
    read = {
        str(flag.get("name")): tuple(str(value) for value in values)
        for flag in flags
        if isinstance(flag, dict) and isinstance(values := flag.get("values"), list | tuple)
    }
    length = model.get("context_length")
    return serving_facts(
        read,
        context_length=length if isinstance(length, int) else 0,
        platform=str(engine.get("platform", "")),
        sparse_attention=model.get("sparse_attention") is True,
    )


class _Given:
    """The options by their first names."""

    def __init__(self, flags: Mapping[str, FlagValue]) -> None:
        self._words = {_ALIASES.get(name, name): flag_words(value) for name, value in flags.items()}

    def has(self, name: str) -> bool:
        return name in self._words

    def text(self, name: str) -> str | None:
        """The first word of an option, empty for a switch."""
        return next(iter(self._words[name]), "") if name in self._words else None

    def number(self, name: str) -> float | None:
        """The number that an option says; `nan` is none, nor is what does not fit into 64 bits."""
        try:
            number = float(self.text(name) or "")
        except ValueError:
            return None
        return number if abs(number) < _LARGEST else None

    def count(self, name: str) -> int | None:
        """The same for an option that counts something."""
        number = self.number(name)
        return int(number) if number is not None and number >= 1 else None


def _drafts(given: _Given) -> Drafts | None:
    algorithm = given.text("speculative-algorithm")
    if algorithm is None:
        return None
    steps = given.count("speculative-num-steps") or _STEPS
    tokens = given.count("speculative-num-draft-tokens")
    return Drafts(
        algorithm=algorithm,
        steps=steps,
        topk=given.count("speculative-eagle-topk") or 1,
        tokens=tokens or steps + 1,
        tokens_are_set=tokens is not None,
        own_model=given.has("speculative-draft-model-path"),
        by_ngrams=algorithm == "NGRAM",
    )


def _window_ratio(given: _Given) -> float | None:
    """configs/model_config.py:670."""
    if given.has("disable-hybrid-swa-memory"):
        return None
    ratio = given.number("swa-full-tokens-ratio")
    return WINDOW_RATIO if ratio is None else ratio


def _window_pool_option(given: _Given) -> str:
    if given.has("enable-unified-memory"):
        return "`enable-unified-memory`"
    if given.has("disable-radix-cache") and given.has("max-running-requests"):
        return "`disable-radix-cache` with `max-running-requests`"
    return ""


def _expert_fusion(given: _Given) -> bool | None:
    if given.has("disable-shared-experts-fusion"):
        return False
    return True if given.has("enforce-shared-experts-fusion") else None


def _fusion_vetoes(given: _Given) -> Iterator[str]:
    """models/deepseek_v2.py:2650-2715."""
    yield from (f"--{name}" for name in ("enable-two-batch-overlap", "enable-single-batch-overlap") if given.has(name))
    if given.text("moe-a2a-backend") == "deepep":
        yield "--moe-a2a-backend deepep"


def _ports(flags: Mapping[str, FlagValue]) -> Iterator[FixedPort]:
    for name, value in flags.items():
        for word in flag_words(value) if _ALIASES.get(name, name) in _PORTS else ():
            port = word.rpartition(":")[2]
            yield FixedPort(option=name, port=int(port) if port.isdecimal() and len(port) <= 5 else None)
