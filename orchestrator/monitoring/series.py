"""What is recorded of a server: each series once, for the alerts and the dashboard. The expressions are PromQL."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.engine.gateway import GatewayMetric
from orchestrator.engine.metrics import Metric
from orchestrator.plan.plan import Plan
from orchestrator.runtimes.base import Pods

TTFT_P95: Final = "ttft_p95_s"
HIT_SHARE: Final = "hit_share"
ACCEPT_LENGTH: Final = "accept_length"
EXPECTED: Final = (TTFT_P95, HIT_SHARE, ACCEPT_LENGTH)
SCRAPED: Final = "deploy"  # the job's name
SCRAPED_GATEWAY: Final = f"{SCRAPED}-gateway"  # that of a gateway's own counters
_FAILED: Final = ',status_code=~"5.."'
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
class Monitored:
    """A server, or several behind a gateway, as Prometheus reaches them.

    `exported` are the metrics that their version of sglang has.
    """

    name: str
    plan: Plan
    targets: tuple[str, ...]  # host:port of each server; none: as its cluster finds it
    gateway_target: str | None  # of the gateway's own counters, where it is scraped
    pods: Pods | None  # of a server that runs in one
    gpu_target: str | None  # of the exporter of its GPUs
    exported: frozenset[str]
    expected: Mapping[str, Expected]  # by the names of `EXPECTED`

    @property
    def selector(self) -> str:
        """What selects its series, and no other server's."""
        return f'server="{self.name}"'

    @property
    def gateway_is_scraped(self) -> bool:
        """Whether the gateway's own counters are read."""
        return self.gateway_target is not None or (self.pods is not None and self.pods.gateway is not None)

    @property
    def servers(self) -> int:
        """How many there are."""
        return self.plan.replicas

    @property
    def each(self) -> str:
        """The labels that tell one server from another."""
        return "server" if self.servers == 1 else "server, replica"

    @property
    def speculates(self) -> bool:
        """Whether its plan drafts tokens."""
        return self.plan.serving.drafts is not None


@dataclass(frozen=True, kw_only=True)
class Series:
    """One recorded series; `needs` are the metrics of sglang that it is made of."""

    record: str
    expression: str
    needs: frozenset[Metric]


@dataclass(frozen=True)
class _Expressions:
    """PromQL over the metrics of servers, summed `by` labels."""

    selector: str
    by: str

    def ranks(self, metric: Metric) -> str:
        """A gauge of each data-parallel rank once: the ranks of its tensor-parallel group repeat each other.

        With priorities, the one without a priority is the sum of the others (0.5.14, metrics_collector.py).
        """
        return f'max by ({self.by}, dp_rank) ({metric}{{{self.selector},priority=""}})'

    def rate(self, metric: str, by: str = "", where: str = "") -> str:
        """What a counter counts in a second."""
        return f"sum by ({self.by}{by}) (rate({metric}{{{self.selector}{where}}}[{WINDOW}]))"

    def quantile(self, share: float, metric: Metric) -> str:
        """Seconds within which that share of a histogram was done."""
        return f"histogram_quantile({share}, {self.rate(f'{metric}_bucket', ', le')})"


def series_of(server: Monitored) -> tuple[Series, ...]:
    """Everything that is recorded of a server whose sglang has the metrics for it."""
    return tuple(series for series in _series(server) if series.needs <= server.exported)


def left_out(server: Monitored) -> Iterator[tuple[Series, str]]:
    """What is not recorded, each with the metrics that its version of sglang has not."""
    for series in _series(server):
        if missing := series.needs - server.exported:
            yield series, ", ".join(f"`{metric}`" for metric in sorted(missing))


def _one(record: str, expression: str, *needs: Metric) -> Series:
    return Series(record=f"deploy:{record}", expression=expression, needs=frozenset(needs))


def _series(server: Monitored) -> Iterator[Series]:
    of = _Expressions(server.selector, server.each)
    running = of.ranks(Metric.RUNNING)
    yield _one("rank_requests_running", running, Metric.RUNNING)
    yield _one("requests_running", f"sum by ({of.by}) ({running})", Metric.RUNNING)
    yield _one("requests_queued", f"sum by ({of.by}) ({of.ranks(Metric.QUEUED)})", Metric.QUEUED)
    yield _one(
        "requests_open",
        f'sum by ({of.by}) ({Metric.OPEN_REQUESTS}{{{server.selector},method="POST"}})',
        Metric.OPEN_REQUESTS,
    )
    yield _one("rank_tokens:rate", of.rate(Metric.RANK_TOKENS, ", dp_rank"), Metric.RANK_TOKENS)
    used, room = of.ranks(Metric.USED_TOKENS), of.ranks(Metric.ALL_TOKENS)
    yield _one("kv_share", f"max by ({of.by}) ({used} / {room})", Metric.USED_TOKENS, Metric.ALL_TOKENS)
    yield from _flow(of, "", speculates=server.speculates)
    if server.servers > 1:
        yield from _of_all(server)
    if server.gateway_is_scraped:
        yield from _of_gateway(_Expressions(server.selector, "server"))
    if server.gpu_target and server.plan.hardware.vendor in _VRAM:
        used, room = (text.replace("%s", server.selector) for text in _VRAM[server.plan.hardware.vendor])
        yield _one("vram_share", f"max by (server) ({used} / {room})")


def _flow(of: _Expressions, prefix: str, *, speculates: bool) -> Iterator[Series]:
    """What goes in and comes out: of each server, or of all of them."""
    prompt, output, done = (of.rate(each) for each in (Metric.PROMPT_TOKENS, Metric.OUTPUT_TOKENS, Metric.REQUESTS))
    cached = f"({of.rate(Metric.CACHED_TOKENS)} or 0 * {prompt})"  # not exported before the first hit
    yield _one(f"{prefix}requests_done:rate", done, Metric.REQUESTS)
    yield _one(f"{prefix}tokens_in:rate", prompt, Metric.PROMPT_TOKENS)
    yield _one(f"{prefix}tokens_out:rate", output, Metric.OUTPUT_TOKENS)
    for name, metric in (("ttft", Metric.TTFT), ("itl", Metric.ITL)):
        yield _one(f"{prefix}{name}_seconds:p50", of.quantile(0.5, metric), metric)
        yield _one(f"{prefix}{name}_seconds:p95", of.quantile(0.95, metric), metric)
    yield _one(f"{prefix}hit_share:rate", f"{cached} / {prompt}", Metric.CACHED_TOKENS, Metric.PROMPT_TOKENS)
    if speculates:
        verified = of.rate(Metric.VERIFY_STEPS)
        # The first token of a request comes from its prefill. Where nothing is verified, each step gives one token.
        accepted = f"({output} - {done}) / ({verified} > 0) or 0 * ({output} > 0) + 1"
        yield _one(f"{prefix}accept_length:rate", accepted, Metric.OUTPUT_TOKENS, Metric.REQUESTS, Metric.VERIFY_STEPS)


def _of_all(server: Monitored) -> Iterator[Series]:
    """Of several servers together."""
    for name, metric in (("requests_running", Metric.RUNNING), ("requests_queued", Metric.QUEUED)):
        yield _one(f"all:{name}", f"sum by (server) (deploy:{name}{{{server.selector}}})", metric)
    yield from _flow(_Expressions(server.selector, "server"), "all:", speculates=server.speculates)


def _of_gateway(of: _Expressions) -> Iterator[Series]:
    """What the gateway itself counts; that nobody is behind it, which it is asked while all start, is no answer."""
    answers, failed = (of.rate(GatewayMetric.ANSWERS, "", f',path!="/readiness"{code}') for code in ("", _FAILED))
    yield _one("gateway_servers", f"sum by (server) ({GatewayMetric.HEALTH}{{{of.selector}}})")
    yield _one("gateway_retries:rate", of.rate(GatewayMetric.RETRIES))
    yield _one("gateway_answers:rate", answers)
    yield _one("gateway_failed_share:rate", f"({failed} or 0 * {answers}) / ({answers} > 0)")
