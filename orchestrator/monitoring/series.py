"""The targets of a monitored server, and its expected values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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

    @property
    def servers(self) -> int:
        """The number of replicas."""
        return self.plan.replicas

    @property
    def min_servers(self) -> int | None:
        """The fewest replicas that an autoscaler keeps; None without one."""
        return self.pods.min_replicas if self.pods else None

    @property
    def each(self) -> str:
        """The labels that distinguish replicas."""
        return "server" if self.servers == 1 else "server, replica"

    @property
    def speculates(self) -> bool:
        """Whether the plan uses speculation."""
        return self.plan.serving.drafts is not None
