"""`deploy show --capacity`: a DP rank's estimated capacity, as a table or as one line of a dry run."""

from collections.abc import Iterator

from orchestrator.core.console import note, table, warn
from orchestrator.core.text import gb
from orchestrator.engine.options import Meaning
from orchestrator.plan.capacity import Capacity, KvCache, LoadFit
from orchestrator.plan.plan import Plan, PlanWarning
from orchestrator.plan.tier_outlook import TierOutlook

_WARNINGS = "capacity-"  # prefix of the warning ids of `orchestrator.plan.capacity`


def capacity_table(capacity: Capacity, *, storage: str | None = None, outlook: TierOutlook | None = None) -> str:
    """Format the capacity as a table of values and origins."""
    return table(
        ("capacity", "value", "from"),
        [
            *_memory(capacity),
            *_cache(capacity),
            *_tiers(capacity, storage),
            *_served(capacity.load_fit),
            *_outlook(outlook, has_tier=capacity.host is not None),
            *(("not computed", "", reason) for reason in capacity.unknown),
        ],
    )


def note_capacity(plan: Plan, capacity: Capacity) -> None:
    """Print the known values of the capacity in one line, if any."""
    if words := "; ".join(_words(capacity)):
        note(f"capacity of `{plan.profile}`: {words}")


def unfit(plan: Plan) -> tuple[PlanWarning, ...]:
    """Return the warnings about the capacity of a plan."""
    return tuple(warning for warning in plan.warnings if warning.id.startswith(_WARNINGS))


def warn_capacity(plan: Plan) -> None:
    """Print the warnings about the capacity of a plan, and what its table leaves out."""
    if plan.roles:
        note("the table ignores `layout.prefill` and `layout.decode`; the warnings do not")
    for warning in unfit(plan):
        warn(warning.summary, hint=warning.hint)


def _words(capacity: Capacity) -> Iterator[str]:
    cache, memory, served = capacity.cache, capacity.memory, capacity.load_fit
    if memory:
        cache_bytes = memory.cache_bytes - capacity.spare_bytes
        yield f"{gb(memory.weights_bytes)} of weights and {gb(cache_bytes)} of cache per GPU"
    if cache and cache.tokens is not None:
        yield f"{cache.tokens:,} tokens per DP rank ({cache.token_bytes:,.0f} B each, {cache.kind})"
    if served and served.concurrent is not None:
        yield f"{served.concurrent:,} concurrent requests of `{served.load}`"
    if cache and cache.tokens is not None:
        yield f"the longest context ({capacity.context:,} tokens) fits {cache.tokens / capacity.context:.1f} times"
    if memory:
        yield f"`{Meaning.MEMORY_FRACTION}` {memory.fraction:g}, at most {memory.safe_fraction:g}"
    if not cache:
        yield capacity.unknown[0]
    elif cache.tokens is None and memory is None:
        limit = f"`--set flags.{Meaning.CACHE_TOKENS}={capacity.context}` limits it"
        yield f"the cache uses most of the host's memory; {limit}"


def _memory(capacity: Capacity) -> Iterator[tuple[str, str, str]]:
    memory = capacity.memory
    if memory is None:
        yield "memory", "the host's", "on a CPU, only a start shows the free memory"
        return
    free, fraction = memory.free_bytes, memory.fraction
    yield ("free per GPU", gb(free), f"{gb(memory.vram_bytes)}, less the use of driver, process and collectives")
    yield "weights per GPU", gb(memory.weights_bytes), "the checkpoint's, divided by tp"
    yield "static fraction", f"{fraction:g}", f"`{Meaning.MEMORY_FRACTION}`, {memory.fraction_source}"
    capped = f"; `{Meaning.CACHE_TOKENS}` leaves {gb(capacity.spare_bytes)} unused" if capacity.spare_bytes else ""
    yield ("cache per GPU", gb(memory.cache_bytes), f"{fraction:g} x {gb(free)} - {gb(memory.weights_bytes)}{capped}")
    yield (
        "reserved per GPU",
        gb(capacity.reserved_bytes),
        f"activations and graphs may need {gb(memory.activation_bytes)}",
    )
    yield "largest safe fraction", f"{memory.safe_fraction:g}", "keeps that reserve free (estimate)"


def _cache(capacity: Capacity) -> Iterator[tuple[str, str, str]]:
    cache = capacity.cache
    if cache is None:
        return
    yield "one token per GPU", f"{cache.token_bytes:,.0f} B", _token_from(cache)
    if cache.tokens is None:
        yield "tokens per DP rank", "unknown", f"`{Meaning.CACHE_TOKENS}` sets them"
        return
    ranks = "one DP rank" if capacity.dp_ranks == 1 else f"{capacity.dp_ranks} DP ranks of {capacity.gpus} GPUs"
    yield "tokens per DP rank", f"{cache.tokens:,}", f"pages of {cache.page}; {ranks}"
    if cache.windows is not None:
        text = f"{cache.windows.layers} layers keep a request's last {cache.windows.window:,}"
        ratio = f"`{Meaning.WINDOW_RATIO}` {cache.windows.ratio:g}"
        yield "tokens of windows", f"{cache.window_tokens:,}", f"{text}; {ratio}"
    if cache.requests is not None:
        text = f"{cache.requests.per_request / 1e6:.1f} MB each, {gb(cache.requests.bytes)} in all"
        yield "requests with a state", f"{cache.requests.requests:,}", f"{text}; no token is counted in it"
    yield "concurrent longest contexts", f"{cache.full_contexts:g}", "in a DP rank"


def _tiers(capacity: Capacity, storage: str | None) -> Iterator[tuple[str, str, str]]:
    if (host := capacity.host) is None:
        return
    copies = "; the device's tokens are among them" if host.keeps_copies else ""
    tokens = "unknown" if host.tokens is None else f"{host.tokens:,}"
    size = f"{gb(host.bytes)} for each GPU, {gb(host.bytes * capacity.gpus)} for a DP rank"
    yield "tokens in host memory", tokens, f"{size if host.bytes else 'only a start shows the size'}{copies}"
    if storage:
        yield "tokens in storage", "as many as fit", f"`{storage}`, which other servers may share"


def _outlook(outlook: TierOutlook | None, *, has_tier: bool) -> Iterator[tuple[str, str, str]]:
    if outlook is None or not (has_tier or outlook.reuse_distance):
        return
    hits = f"{outlook.device_hits:.0%} of the prompt tokens from the device, {outlook.host_hits:.0%} from host memory"
    yield "reuse distance", f"{outlook.reuse_distance:,}", f"tokens between two uses in `{outlook.workload}`: {hits}"
    subject = "the cache tier helps" if has_tier else "a cache tier would help"
    yield subject, "yes" if outlook.helps else "no", outlook.reason
    costs = outlook.costs
    item = f"{costs.retrieve:g} to retrieve, {costs.store:g} to store, {costs.recompute:g} to compute"
    if has_tier or outlook.host_hits:
        yield "saved per prompt token", f"{outlook.saved_us:g} µs", f"µs a token: {item}; {costs.source}"


def _token_from(cache: KvCache) -> str:
    pool_text = (
        "" if cache.actual_token_bytes == cache.token_bytes else f"; its pools take {cache.actual_token_bytes:,.0f} B"
    )
    windows = cache.windows
    share = f", those with windows for {windows.ratio:g} of the tokens" if windows else ""
    return f"{cache.kind}, all layers, including MTP{share}{pool_text}"


def _served(served: LoadFit | None) -> Iterator[tuple[str, str, str]]:
    if served is None:
        return
    limit = "no limit is set" if served.running is None else f"at most {served.running} run"
    item = f"`{served.load}`, {served.tokens:,} tokens each, plus {served.shared_tokens:,} shared; {limit}"
    yield "concurrent requests", "unknown" if served.concurrent is None else f"{served.concurrent:,}", item
