"""The targets of a monitored server, its expected values, and the templates of this package."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.safe_paths import FileName
from orchestrator.core.templates import render_template
from orchestrator.plan.plan import Plan
from orchestrator.runtimes.base import PodTargets

TTFT_P95: Final = "ttft_p95_s"
CACHE_HIT_RATE: Final = "cache_hit_rate"
ACCEPT_LENGTH: Final = "accept_length"
EXPECTED: Final = (TTFT_P95, CACHE_HIT_RATE, ACCEPT_LENGTH)
SCRAPED: Final = "deploy"  # name of the Prometheus job
SCRAPED_GATEWAY: Final = f"{SCRAPED}-gateway"  # job for the metrics of a gateway
RECORDED: Final = re.compile(r"deploy:[\w:]+")  # a recorded series in an expression
EVERY: Final = "15s"  # interval of scrapes and rule evaluations


@dataclass(frozen=True, kw_only=True)
class Expected:
    """An expected value and its source."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class MonitoredServer:
    """A server with its Prometheus targets; `exported` are the metrics of its version of sglang."""

    name: str
    plan: Plan
    targets: tuple[str, ...]  # host:port of each replica; empty if `pods` is used
    gateway_target: str | None  # host:port of the gateway metrics, if scraped
    pods: PodTargets | None  # labels of the pods, in a Kubernetes cluster
    gpu_target: str | None  # host:port of the GPU exporter
    exported: frozenset[str]
    expected: Mapping[str, Expected]  # by the keys in `EXPECTED`

    @property
    def gateway_is_scraped(self) -> bool:
        """Whether the metrics of the gateway are scraped."""
        return self.gateway_target is not None or (self.pods is not None and self.pods.gateway is not None)


def rendered(template: str, server: MonitoredServer) -> str:
    """Render a template for a server in Jinja's sandbox; templates insert values with `tojson`."""
    fraction = server.plan.serving.memory_fraction
    values = {
        "name": server.name,
        "job": SCRAPED,
        "gateway_job": SCRAPED_GATEWAY,
        "every": EVERY,
        "unit_labels": "server" if server.plan.replicas == 1 else "server, replica",  # they distinguish replicas
        "servers": server.plan.replicas,
        "min_servers": server.pods.min_replicas if server.pods else None,
        "dp": server.plan.layout.dp,
        "speculates": server.plan.serving.drafts is not None,
        "gateway_is_scraped": server.gateway_is_scraped,
        "has_gpu_exporter": server.gpu_target is not None,
        "vendor": server.plan.hardware.vendor,
        "mem_fraction": "" if fraction is None else f"{fraction:g}",
        "expected": {name: server.expected.get(name) for name in EXPECTED},
    }
    text = (Path(__file__).parent / FileName(template)).read_text(encoding="utf-8")
    return render_template(
        text,
        values,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
