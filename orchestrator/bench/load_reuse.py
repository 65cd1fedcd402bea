"""How far apart the requests of a workload use the same tokens: of shared prefixes, synthetic sessions or a trace."""

from orchestrator.bench.sessions import open_sessions
from orchestrator.bench.traces.accesses import cache_accesses
from orchestrator.bench.workload import load_workload, workload_name
from orchestrator.core.catalog import Catalog
from orchestrator.plan.reuse_distance import hit_rates
from orchestrator.plan.tier_outlook import LoadReuse, prefix_reuse


def load_reuse(name: str, catalog: Catalog, *, page: int, replicas: int) -> LoadReuse:
    """Return the reuse of a workload or trace in the cache of one of several replicas, whose sessions stay there.

    Raises UsageError or ProfileError for one that cannot be read."""
    workload = load_workload(name, catalog=catalog)
    source = open_sessions(workload)
    if source is None:
        return prefix_reuse(
            workload_name(name),
            num_prefixes=workload.num_prefixes,
            prefix_tokens=workload.prefix_tokens,
            input_tokens=workload.input_tokens,
            output_tokens=workload.output_tokens,
            page=page,
            replicas=replicas,
        )
    most = workload.max_think_time_s
    accesses = cache_accesses(
        source.trees(), concurrency=workload.concurrency, max_delay_s=float("inf") if most is None else most
    )
    return LoadReuse(
        workload=workload_name(name),
        rates=hit_rates(accesses, page=page, replicas=replicas),
        output_share=source.totals.output_tokens / max(source.totals.input_tokens, 1),
    )
