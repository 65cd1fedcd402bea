"""What is recorded of a server: each series once, for the alerts and the dashboard. The expressions are PromQL."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.engine import Metric
from orchestrator.plan import Plan

TTFT_P95: Final = "ttft_p95_s"
HIT_SHARE: Final = "hit_share"
ACCEPT_LENGTH: Final = "accept_length"
EXPECTED: Final = (TTFT_P95, HIT_SHARE, ACCEPT_LENGTH)
SCRAPED: Final = "deploy"  # the job's name
WINDOW: Final = "5m"  # over which a rate is taken: twenty scrapes

# Of each GPU, by its vendor's own exporter: its memory in use, and all of it.
# AMD: ROCm/device-metrics-exporter, `gpu_used_vram`, `gpu_total_vram` in MB. NVIDIA: dcgm-exporter, in MiB.
_VRAM: Final[Mapping[str, tuple[str, str]]] = {
    "amd": ("gpu_used_vram{%s}", "gpu_total_vram{%s}"),
    "nvidia": ("DCGM_FI_DEV_FB_USED{%s}", "(DCGM_FI_DEV_FB_USED{%s} + DCGM_FI_DEV_FB_FREE{%s})"),
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a figure is to be, and who says so."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Where a Prometheus of the cluster finds a server: the pod that bears these labels."""

    namespace: str
    labels: Mapping[str, str]
    port: str  # its name in the pod
    called: str  # what its objects are called


@dataclass(frozen=True, kw_only=True)
class Monitored:
    """One server as Prometheus reaches it; `exported` are the metrics that its version of sglang has."""

    name: str
    plan: Plan
    target: str | None  # host:port; None: as its cluster finds it
    pods: Pods | None  # of a server that runs in one
    gpu_target: str | None  # of the exporter of its GPUs
    exported: frozenset[str]
    expected: Mapping[str, Expected]  # by the names of `EXPECTED`

    @property
    def selector(self) -> str:
        """What selects its series, and no other server's."""
        return f'server="{self.name}"'

    @property
    def speculates(self) -> bool:
        """Whether its plan drafts tokens."""
        return self.plan.flag("speculative-algorithm") is not None


@dataclass(frozen=True, kw_only=True)
class Series:
    """One recorded series; `needs` are the metrics of sglang that it is made of."""

    record: str
    expression: str
    needs: frozenset[Metric]


@dataclass(frozen=True)
class _Expressions:
    """PromQL over one server's metrics."""

    selector: str

    def ranks(self, metric: Metric) -> str:
        """A gauge of each data-parallel rank once: the ranks of its tensor-parallel group repeat each other.

        With priorities, the one without a priority is the sum of the others (0.5.14, metrics_collector.py).
        """
        return f'max by (server, dp_rank) ({metric}{{{self.selector},priority=""}})'

    def rate(self, metric: Metric, by: str = "server", part: str = "") -> str:
        """What a counter counts in a second."""
        return f"sum by ({by}) (rate({metric}{part}{{{self.selector}}}[{WINDOW}]))"

    def quantile(self, share: float, metric: Metric) -> str:
        """Seconds within which that share of a histogram was done."""
        return f"histogram_quantile({share}, {self.rate(metric, 'server, le', '_bucket')})"


def series_of(server: Monitored) -> tuple[Series, ...]:
    """Everything that is recorded of a server whose sglang has the metrics for it."""
    return tuple(series for series in _series(server) if series.needs <= server.exported)


def left_out(server: Monitored) -> Iterator[tuple[Series, str]]:
    """What is not recorded, each with the metrics that its version of sglang has not."""
    for series in _series(server):
        if missing := series.needs - server.exported:
            yield series, ", ".join(f"`{metric}`" for metric in sorted(missing))


def _series(server: Monitored) -> Iterator[Series]:
    of = _Expressions(server.selector)

    def series(record: str, expression: str, *needs: Metric) -> Series:
        return Series(record=f"deploy:{record}", expression=expression, needs=frozenset(needs))

    prompt, output, done = (of.rate(each) for each in (Metric.PROMPT_TOKENS, Metric.OUTPUT_TOKENS, Metric.REQUESTS))
    cached = f"({of.rate(Metric.CACHED_TOKENS)} or 0 * {prompt})"  # not exported before the first hit
    yield series("rank_requests_running", of.ranks(Metric.RUNNING), Metric.RUNNING)
    yield series("requests_running", f"sum by (server) ({of.ranks(Metric.RUNNING)})", Metric.RUNNING)
    yield series("requests_queued", f"sum by (server) ({of.ranks(Metric.QUEUED)})", Metric.QUEUED)
    yield series(
        "requests_open",
        f'sum by (server) ({Metric.OPEN_REQUESTS}{{{server.selector},method="POST"}})',
        Metric.OPEN_REQUESTS,
    )
    yield series("requests_done:rate", done, Metric.REQUESTS)
    yield series("tokens_in:rate", prompt, Metric.PROMPT_TOKENS)
    yield series("tokens_out:rate", output, Metric.OUTPUT_TOKENS)
    yield series("rank_tokens:rate", of.rate(Metric.RANK_TOKENS, "server, dp_rank"), Metric.RANK_TOKENS)
    for name, metric in (("ttft", Metric.TTFT), ("itl", Metric.ITL)):
        yield series(f"{name}_seconds:p50", of.quantile(0.5, metric), metric)
        yield series(f"{name}_seconds:p95", of.quantile(0.95, metric), metric)
    yield series("hit_share:rate", f"{cached} / {prompt}", Metric.CACHED_TOKENS, Metric.PROMPT_TOKENS)
    used, room = of.ranks(Metric.USED_TOKENS), of.ranks(Metric.ALL_TOKENS)
    yield series("kv_share", f"max by (server) ({used} / {room})", Metric.USED_TOKENS, Metric.ALL_TOKENS)
    if server.speculates:
        verified = of.rate(Metric.VERIFY_STEPS)
        # The first token of a request comes from its prefill. Where nothing is verified, each step gives one token.
        accepted = f"({output} - {done}) / ({verified} > 0) or 0 * ({output} > 0) + 1"
        yield series("accept_length:rate", accepted, Metric.OUTPUT_TOKENS, Metric.REQUESTS, Metric.VERIFY_STEPS)
    if server.gpu_target and server.plan.hardware.vendor in _VRAM:
        used, room = (text.replace("%s", server.selector) for text in _VRAM[server.plan.hardware.vendor])
        yield series("vram_share", f"max by (server) ({used} / {room})")
