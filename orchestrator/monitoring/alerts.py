"""The recording rules and alerts of a server, rendered from `rules.yaml.j2` without unsupported rules."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from orchestrator.monitoring.series import ACCEPT_LENGTH, CACHE_HIT_RATE, RECORDED, TTFT_P95, MonitoredServer, rendered

_METRIC: Final = re.compile(r"sglang:\w+?(?=_bucket\b|\b)")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rule groups of a server, without rules for metrics that its version of sglang lacks."""

    groups: list[dict[str, Any]]
    missing_metrics: dict[str, str]  # missing metrics by recorded series
    missing_series: dict[str, str]  # missing series by alert
    recorded: frozenset[str]  # names of the recorded series


def rules_of(server: MonitoredServer) -> Rules:
    """Render the rules of a server, without those that need a missing metric or series."""
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
    recorded = frozenset(needs.keys() - missing_metrics.keys())
    missing_series = {
        rule["alert"]: ", ".join(sorted(missing))
        for rule in alerts
        if (missing := set(RECORDED.findall(rule["expr"])) - recorded)
    }
    series[:] = [rule for rule in series if rule["record"] in recorded]
    alerts[:] = [rule for rule in alerts if rule["alert"] not in missing_series]
    return Rules(groups=groups, missing_metrics=missing_metrics, missing_series=missing_series, recorded=recorded)


def skipped_rules(server: MonitoredServer) -> Iterator[str]:
    """Yield the skipped series and alerts, each with the reason."""
    rules = rules_of(server)
    for record, missing in rules.missing_metrics.items():
        yield f"no {record}: sglang {server.plan.engine.version} has no {missing}"
    for alert, missing in rules.missing_series.items():
        yield f"no alert {alert}: {missing} is not recorded"
    for name, of in ((TTFT_P95, "DeployTtftHigh"), (CACHE_HIT_RATE, "DeployCacheHitRateLow")):
        if name not in server.expected:
            yield f"no alert {of}: no expected value; set one with `--workload` or `--expect {name}=…`"
    if server.plan.serving.drafts is not None and ACCEPT_LENGTH not in server.expected:
        yield f"DeployAcceptLengthLow fires only if no draft is accepted; change it with `--expect {ACCEPT_LENGTH}=…`"
    if server.plan.replicas > 1 and not server.gateway_is_scraped:
        yield "no gateway alerts: no scraper may read its metrics; see `kubernetes.allowed_scrapers`"
    if server.plan.gpus and not server.gpu_target:
        yield "no alert DeployVramFull: sglang exports no VRAM use; set an exporter with `--gpu-exporter HOST:PORT`"
    yield f"no alert for untuned kernels: only the log has them; see `deploy top {server.name}`"
