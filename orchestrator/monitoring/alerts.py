"""The recorded series and the alerts of a server, by `rules.yaml.j2`, and what of them is left out."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from orchestrator.monitoring.series import ACCEPT_LENGTH, HIT_SHARE, RECORDED, TTFT_P95, MonitoredServer
from orchestrator.monitoring.templates import rendered

_METRIC: Final = re.compile(r"sglang:\w+?(?=_bucket\b|\b)")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The groups of rules of a server, without those that need what its version of sglang lacks."""

    groups: list[dict[str, Any]]
    missing_metrics: dict[str, str]  # by the series that need them
    missing_series: dict[str, str]  # by the alerts that need them

    @property
    def recorded(self) -> frozenset[str]:
        """The series that are recorded."""
        return frozenset(rule["record"] for group in self.groups for rule in group["rules"] if "record" in rule)


def rules_of(server: MonitoredServer) -> Rules:
    """Render the rules, and leave out what cannot be computed."""
    groups = yaml.safe_load(rendered("rules.yaml.j2", server))["groups"]
    series, alerts = (group["rules"] for group in groups)
    needs: dict[str, set[str]] = {}
    for rule in series:
        needs[rule["record"]] = set(_METRIC.findall(rule["expr"])).union(
            *(needs[name] for name in RECORDED.findall(rule["expr"]))
        )
    missing_metrics = {
        record: ", ".join(f"`{metric}`" for metric in sorted(metrics - server.exported))
        for record, metrics in needs.items()
        if metrics - server.exported
    }
    recorded = needs.keys() - missing_metrics.keys()
    missing_series = {
        rule["alert"]: ", ".join(sorted(missing))
        for rule in alerts
        if (missing := set(RECORDED.findall(rule["expr"])) - recorded)
    }
    series[:] = [rule for rule in series if rule["record"] in recorded]
    alerts[:] = [rule for rule in alerts if rule["alert"] not in missing_series]
    return Rules(groups=groups, missing_metrics=missing_metrics, missing_series=missing_series)


def skipped_rules(server: MonitoredServer) -> Iterator[str]:
    """What is not recorded or told of, each with the reason."""
    rules = rules_of(server)
    for record, missing in rules.missing_metrics.items():
        yield f"no {record}: sglang {server.plan.engine.version} has no {missing}"
    for alert, missing in rules.missing_series.items():
        yield f"no alert {alert}: {missing} is not recorded"
    for name, of in ((TTFT_P95, "DeployTtftHigh"), (HIT_SHARE, "DeployHitShareLow")):
        if name not in server.expected:
            yield f"no alert {of}: nothing is expected; `--workload` names a load that does, or `--expect {name}=…`"
    if server.speculates and ACCEPT_LENGTH not in server.expected:
        yield f"DeployAcceptLengthLow fires where no draft is right: `--expect {ACCEPT_LENGTH}=…` names a better length"
    if server.servers > 1 and not server.gateway_is_scraped:
        yield "no alert of the gateway: nobody may read its counters; see `kubernetes.allowed_scrapers`"
    if server.plan.gpus and not server.gpu_target:
        yield "no alert DeployVramFull: sglang exports no VRAM; `--gpu-exporter HOST:PORT` names what does"
    yield f"no alert on kernels without a tuned row: the log alone tells of them, see `deploy top {server.name}`"
