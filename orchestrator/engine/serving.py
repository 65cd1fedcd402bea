"""The meaning of sglang's options: only this module interprets them.

Paths are below `sglang/srt/` in sglang's wheel 0.5.14, unless another version is named.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.engine.cache_tiers import DEFAULT_RATIO, CacheTiers
from orchestrator.engine.disaggregation import BOOTSTRAP_PORT
from orchestrator.engine.flag_checks import RANGES
from orchestrator.engine.flags import FlagTable, FlagValue, flag_problems, flag_words, read_number
from orchestrator.engine.memory import DSA_PAGE, WINDOW_RATIO
from orchestrator.engine.options import Meaning
from orchestrator.engine.request_memory import DSV4_PAGE, STATE_RATIO, StateOptions

_OF_DEEPSEEK_V4: Final = 256  # with drafts too; 0.5.19 to 0.5.23, arg_groups/deepseek_v4_hook.py
_SOURCE_WINDOWS: Final = 0.1  # 0.5.21, model_executor/pool_configurator.py, DSV4_DEFAULT_SWA_FULL_TOKENS_RATIO
_SIZE_SOURCE_WINDOWS: Final = (
    "disable-radix-cache",
    "swa-prefix-tails",
    "disable-overlap-schedule",
    "disaggregation-mode",
)
_RUNNING_WITH_DRAFTS: Final = 48  # default running requests with speculation; arg_groups/speculative_hook.py:271
_MAX_PREFILL_TOKENS: Final = 16384  # default `max_prefill_tokens`: tokens of a prefill batch without chunking
# Default steps/top-k/draft tokens: 3/1/4 for GLM, DeepSeek and most others (arg_groups/speculative_hook.py:512-542,
# the same in 0.5.16 and 0.5.23). The 5/4/8 of Llama and Grok is omitted, as they have no MTP layer.
_STEPS: Final = 3
_PORTS: Final = ("nccl-port", "dist-init-addr", BOOTSTRAP_PORT)  # a port, or host:port
_HOST_CACHES: Final = ("enable-hierarchical-cache", "enable-hicache", "enable-hisparse")
# Aliases of options used in this module; the same in every version that has them.
_ALIASES: Final[Mapping[str, str]] = {
    "pipeline-parallel-size": "pp-size",
    "speculative-draft-model": "speculative-draft-model-path",
    "nccl-init-addr": "dist-init-addr",
    "enable-hicache": "enable-hierarchical-cache",
}


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """The settings of speculative decoding."""

    algorithm: str
    steps: int
    topk: int  # branches per step
    tokens: int  # verified in one step of the target
    tokens_are_set: bool
    separate_model: bool  # otherwise the checkpoint's MTP layer or n-grams draft
    by_ngrams: bool

    @property
    def by_checkpoint(self) -> bool:
        """Whether the options name no separate draft model."""
        return not self.separate_model

    @property
    def room(self) -> int:
        """The KV-cache tokens that a running request reserves for drafts."""
        return max(self.steps * self.topk, self.tokens)


@dataclass(frozen=True, kw_only=True)
class FixedPort:
    """A port set by an option; None if the value contains no port."""

    option: str  # name as written in the profile
    port: int | None


@dataclass(frozen=True, kw_only=True)
class ServingFacts:
    """The meaning of a server's options. None means that the engine chooses the value at startup."""

    context: int  # tokens
    running_set: int | None  # limit of concurrent requests in a DP rank, set by an option
    running_default: int | None  # the engine's default limit; None: only memory limits them
    prefill_chunk: int | None  # tokens; None also without chunking
    prefill_batch: int | None  # maximum tokens of a prefill batch
    cache_tokens: int | None  # limit of tokens in a DP rank's KV cache, set by an option
    kv_dtype: str | None
    dtype: str | None
    page: int  # tokens
    memory_fraction: float | None  # as written, even if the engine rejects the value
    graph_batch: int | None  # largest batch of a CUDA graph; 0: no graphs
    window_ratio: float | None  # tokens of the window pool relative to other layers; None: no window pool
    window_pool_option: str  # options, in backticks, that change the size of that pool; "" for none
    source_windows: float | None  # the same for DeepSeek-V4.1; None: sized by running requests
    source_window_option: str  # like `window_pool_option`, for DeepSeek-V4.1
    sparse_backends: tuple[str | None, str | None]  # for prefill and decode with sparse attention
    drafts: Drafts | None
    prefix_cache: bool
    plain_cache: bool  # neither a host cache nor disaggregation
    states: StateOptions  # for linear attention
    cached_tokens_report: bool  # in `usage`
    metrics: bool
    grammar: bool  # structured output
    reasoning_parser: str | None
    tool_parser: str | None
    expert_fusion: bool | None  # fusion of the shared experts with the routed experts
    fusion_vetoes: tuple[str, ...]  # options that disable that fusion unless it is enforced
    stages: int  # pipeline stages
    first_gpu: int
    gpu_step: int
    tiers: CacheTiers | None  # below the KV cache of the device
    head_option: str  # option that sets the first node's address, as written; "" for none
    binds_memory: bool  # binds each rank to a NUMA node
    ports: tuple[FixedPort, ...]
    bootstrap_port: int | None  # port at which decode servers find a prefill server
    paths: tuple[str, ...]  # values that may name a repository on the hub

    @property
    def running(self) -> int | None:
        """The limit of concurrent requests in a DP rank; None if only memory limits them."""
        return self.running_set or self.running_default


def serving_facts(
    flags: Mapping[str, FlagValue],
    *,
    context_length: int,
    platform: str,
    sparse_attention: bool,
    architecture: str = "",
) -> ServingFacts:
    """Return the meaning of `flags` for a model on a platform; an invalid value counts as unset."""
    reader = _Options(flags)
    deepseek_v4 = architecture.startswith("DeepseekV4")
    page = DSV4_PAGE if deepseek_v4 else 1  # 0.5.20, 0.5.21, arg_groups/model_overrides/deepseek_v4.py
    window_ratio = reader.number("swa-full-tokens-ratio")
    chunk, drafts = reader.count("chunked-prefill-size"), _drafts(reader)
    whole_prompts = reader.number("chunked-prefill-size") == -1
    grammar = reader.text("grammar-backend")
    batch = reader.count("cuda-graph-max-bs-decode") or reader.count("cuda-graph-max-bs")
    return ServingFacts(
        context=reader.count("context-length") or context_length,
        running_set=reader.count("max-running-requests"),
        running_default=_OF_DEEPSEEK_V4 if deepseek_v4 else _RUNNING_WITH_DRAFTS if drafts is not None else None,
        prefill_chunk=chunk,
        prefill_batch=reader.count("max-prefill-tokens") or _MAX_PREFILL_TOKENS if whole_prompts else chunk,
        cache_tokens=reader.count("max-total-tokens"),
        kv_dtype=reader.text("kv-cache-dtype"),
        dtype=reader.text("dtype"),
        page=DSA_PAGE if sparse_attention else reader.count("page-size") or page,
        memory_fraction=reader.number("mem-fraction-static"),
        graph_batch=0 if reader.has("disable-cuda-graph") else batch,
        window_ratio=_window_ratio(reader),
        window_pool_option=_window_pool_option(reader),
        # 0.5.21, model_executor/pool_configurator.py, `_resolve_swa_cap_tokens`
        source_windows=window_ratio or (_SOURCE_WINDOWS if whole_prompts else None),
        source_window_option=next((f"`{window}`" for window in _SIZE_SOURCE_WINDOWS if reader.has(window)), ""),
        sparse_backends=(reader.text("dsa-prefill-backend"), reader.text("dsa-decode-backend")),
        drafts=drafts,
        prefix_cache=not reader.has("disable-radix-cache"),
        plain_cache=not any(reader.has(name) for name in _HOST_CACHES) and reader.text("disaggregation-mode") is None,
        states=_states(reader),
        cached_tokens_report=reader.has("enable-cache-report"),
        metrics=reader.has("enable-metrics"),
        # On a CPU the default backend crashes the scheduler, so only an explicit backend counts.
        grammar=grammar != "none" and (grammar is not None or platform != "cpu"),
        reasoning_parser=reader.text("reasoning-parser"),
        tool_parser=reader.text("tool-call-parser"),
        expert_fusion=_expert_fusion(reader),
        fusion_vetoes=tuple(_fusion_vetoes(reader)),
        stages=reader.count("pp-size") or 1,
        first_gpu=reader.count("base-gpu-id") or 0,
        gpu_step=reader.count("gpu-id-step") or 1,
        tiers=_tiers(reader),
        head_option=next((name for name in flags if _ALIASES.get(name, name) == Meaning.HEAD), ""),
        binds_memory=reader.has("numa-node"),
        ports=tuple(_ports(flags)),
        bootstrap_port=reader.count(BOOTSTRAP_PORT),
        paths=tuple(word for name in flags if name.endswith(("-path", "-paths")) for word in flag_words(flags[name])),
    )


def all_readable(flags: Mapping[str, FlagValue], table: FlagTable) -> bool:
    """Return whether sglang's parser accepts the options in `Meaning`; `serving_facts` treats invalid ones as unset."""
    return not any([*flag_problems(name, flags[name], table, "")] for name in Meaning if name in flags)


def recorded_facts(plan: Mapping[str, object]) -> ServingFacts | None:
    """Return the meaning of the flags in a saved result's plan; None if it has no list of flags."""
    flags, model, engine = plan.get("flags"), plan.get("model"), plan.get("engine")
    if not isinstance(flags, list | tuple):
        return None
    model, engine = (section if isinstance(section, dict) else {} for section in (model, engine))
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
        architecture=str(model.get("architecture", "")),
    )


class _Options:
    """A server's options by their first names."""

    def __init__(self, flags: Mapping[str, FlagValue]) -> None:
        self._words = {_ALIASES.get(name, name): flag_words(value) for name, value in flags.items()}

    def has(self, name: str) -> bool:
        return name in self._words

    def text(self, name: str) -> str | None:
        """Return the first word of an option, "" for a switch, None if it is unset."""
        return next(iter(self._words[name]), "") if name in self._words else None

    def number(self, name: str) -> float | None:
        """Return the value of a numeric option, like `read_number`."""
        return read_number(self.text(name))

    def count(self, name: str) -> int | None:
        """Return the value of an option as a count; None if it is below 1 or not a number."""
        number = self.number(name)
        return int(number) if number is not None and number >= 1 else None


def _drafts(options: _Options) -> Drafts | None:
    algorithm = options.text("speculative-algorithm")
    if algorithm is None:
        return None
    block = options.count("speculative-dspark-block-size") if algorithm == "DSPARK" else None
    steps = block or options.count("speculative-num-steps") or _STEPS
    tokens = options.count("speculative-num-draft-tokens")
    return Drafts(
        algorithm=algorithm,
        steps=steps,
        topk=options.count("speculative-eagle-topk") or 1,
        tokens=tokens or steps + 1,
        tokens_are_set=tokens is not None,
        separate_model=options.has("speculative-draft-model-path"),
        by_ngrams=algorithm == "NGRAM",
    )


def _states(options: _Options) -> StateOptions:
    """Return the options of linear attention; a request takes three states, plus two to track overlapping batches.

    Source: 0.5.23, mem_cache/kv_cache_configurator.py, `_calculate_mamba_ratio`; the strategy's default is
    `extra_buffer` (0.5.20, arg_groups/overrides.py:545).
    """
    prefix_cache = not options.has("disable-radix-cache")
    strategy = options.text("mamba-radix-cache-strategy") or options.text("mamba-scheduler-strategy")
    tracked = {"no_buffer": 0, "extra_buffer_lazy": 1}.get(strategy or "", 2)
    if tracked and options.has("disable-overlap-schedule"):
        tracked = 1
    ratio = options.number("mamba-full-memory-ratio")
    return StateOptions(
        slots=options.count("max-mamba-cache-size"),
        ratio=STATE_RATIO if ratio is None else ratio,
        dtype=options.text("mamba-ssm-dtype"),
        per_request=3 + tracked if prefix_cache else 1,
        replay=options.has("enable-linear-replayssm-spec"),
        prefix_cache=prefix_cache,
    )


def _tiers(options: _Options) -> CacheTiers | None:
    """Return the tiers of the KV cache (server_args.py:1775-1835)."""
    if not options.has("enable-hierarchical-cache"):
        return None
    size = options.number("hicache-size") or 0
    return CacheTiers(
        kv_bytes=int(size * 1e9) if size > 0 else None,
        ratio=options.number("hicache-ratio") or DEFAULT_RATIO,
        write_policy=options.text("hicache-write-policy") or "write_through",
        storage=options.text("hicache-storage-backend"),
    )


def coupled_flags(varied: Mapping[str, object], flags: Mapping[str, object]) -> dict[str, int | None]:
    """Return the flags that must change with `varied` flags; `flags` are the profile's.

    With top-k 1, sglang verifies steps + 1 draft tokens; without steps it accepts neither top-k nor draft tokens
    (arg_groups/speculative_hook.py:316-404).
    """
    steps, topk, tokens = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
    value = varied.get(steps)
    if steps in varied and value is None:
        return {name: None for name in (topk, tokens) if name in flags and name not in varied}
    if str({**flags, **varied}.get(topk)) != "1":
        return {}
    if isinstance(value, int) and tokens in flags and tokens not in varied:
        return {tokens: value + 1}
    count = varied.get(tokens)
    if isinstance(count, int) and count > 1 and steps in flags and steps not in varied:
        return {steps: count - 1}
    return {}


def _window_ratio(options: _Options) -> float | None:
    """Return `ServingFacts.window_ratio` (configs/model_config.py:670)."""
    if options.has("disable-hybrid-swa-memory"):
        return None
    ratio = options.number("swa-full-tokens-ratio")
    return ratio if ratio is not None and ratio in RANGES["swa-full-tokens-ratio"] else WINDOW_RATIO


def _window_pool_option(options: _Options) -> str:
    if options.has("enable-unified-memory"):
        return "`enable-unified-memory`"
    if options.has("disable-radix-cache") and options.has("max-running-requests"):
        return "`disable-radix-cache` with `max-running-requests`"
    return ""


def _expert_fusion(options: _Options) -> bool | None:
    if options.has("disable-shared-experts-fusion"):
        return False
    return True if options.has("enforce-shared-experts-fusion") else None


def _fusion_vetoes(options: _Options) -> Iterator[str]:
    """Yield `ServingFacts.fusion_vetoes` (models/deepseek_v2.py:2650-2715)."""
    yield from (
        f"--{name}" for name in ("enable-two-batch-overlap", "enable-single-batch-overlap") if options.has(name)
    )
    if options.text("moe-a2a-backend") == "deepep":
        yield "--moe-a2a-backend deepep"


def _ports(flags: Mapping[str, FlagValue]) -> Iterator[FixedPort]:
    for name, value in flags.items():
        for word in flag_words(value) if _ALIASES.get(name, name) in _PORTS else ():
            port = word.rpartition(":")[2]
            yield FixedPort(option=name, port=int(port) if port.isdecimal() and len(port) <= 5 else None)
