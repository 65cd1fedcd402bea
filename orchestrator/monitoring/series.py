"""A server as Prometheus reaches it, and what is expected of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.plan.plan import Plan
from orchestrator.runtimes.base import PodTargets

TTFT_P95: Final = "ttft_p95_s"
HIT_SHARE: Final = "hit_share"
ACCEPT_LENGTH: Final = "accept_length"
EXPECTED: Final = (TTFT_P95, HIT_SHARE, ACCEPT_LENGTH)
SCRAPED: Final = "deploy"  # the job's name
SCRAPED_GATEWAY: Final = f"{SCRAPED}-gateway"  # that of a gateway's own counters
RECORDED: Final = re.compile(r"deploy:[\w:]+")  # a series that the rules record, in an expression
EVERY: Final = "15s"  # scraped, and its rules evaluated


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a figure is to be, and who says so."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class MonitoredServer:
    """A server, or several behind a gateway, as Prometheus reaches them.

    `exported` are the metrics that their version of sglang has.
    """

    name: str
    plan: Plan
    targets: tuple[str, ...]  # host:port of each server; none: as its cluster finds it
    gateway_target: str | None  # of the gateway's own counters, where it is scraped
    pods: PodTargets | None  # of a server that runs in one
    gpu_target: str | None  # of the exporter of its GPUs
    exported: frozenset[str]
    expected: Mapping[str, Expected]  # by the names of `EXPECTED`

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
