"""The monitoring files: YAML for Prometheus and JSON for Grafana, reproducible byte for byte."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from orchestrator.core.yaml_document import dump_yaml
from orchestrator.engine import endpoints
from orchestrator.engine.metrics import ESCAPED
from orchestrator.monitoring.series import (
    ACCEPT_LENGTH,
    CACHE_HIT_RATE,
    EVERY,
    RECORDED,
    SCRAPED,
    SCRAPED_GATEWAY,
    TTFT_P95,
    MonitoredServer,
    rendered,
)
from orchestrator.render.artifacts import RenderedFile
from orchestrator.runtimes.base import PodTargets

_METRIC: Final = re.compile(r"sglang:\w+?(?=_bucket\b|\b)")
_ACROSS: Final = 3
_WIDTH: Final = 24 // _ACROSS  # of 24 grid columns
_HEIGHT: Final = 8


def monitoring_files(server: MonitoredServer) -> tuple[RenderedFile, ...]:
    """Return the monitoring files of a server, sorted by path; the rules file starts with a list of skipped rules."""
    name, rules = server.name, rules_of(server)
    texts = {f"{name}.dashboard.json": _dashboard(server, rules.recorded)}
    if server.pods is not None:
        texts[f"{name}.monitor.yml"] = _objects(server, server.pods, rules.groups)
    if server.targets:
        comment = "`prometheus --config.file prometheus.yml` scrapes all servers with files in this directory"
        notes = (f"recording rules and alerts of `{name}`", *skipped_rules(server))
        texts |= {
            "prometheus.yml": dump_yaml(_scrape(), comment),
            f"{name}.targets.yml": dump_yaml(_targets(server), f"scrape targets of `{name}`"),
            f"{name}.rules.yml": dump_yaml({"groups": rules.groups}, *notes),
        }
    return tuple(RenderedFile(path=path, content=texts[path].encode(), executable=False) for path in sorted(texts))


def _dashboard(server: MonitoredServer, recorded: frozenset[str]) -> str:
    """Return the Grafana dashboard as JSON, without unrecorded series or empty panels."""
    dashboard = json.loads(rendered("dashboard.json.j2", server))
    panels: list[dict[str, Any]] = []
    for panel in dashboard["panels"]:
        panel["targets"] = [
            target for target in panel["targets"] if recorded.issuperset(RECORDED.findall(target["expr"]))
        ]
        for letter, target in zip("ABCDEF", panel["targets"], strict=False):
            target["refId"] = letter
        if panel["targets"]:
            row, column = divmod(len(panels), _ACROSS)
            panel["id"] = len(panels) + 1
            panel["gridPos"] = {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(panel)
    return json.dumps({**dashboard, "panels": panels}, indent=2) + "\n"


def _objects(server: MonitoredServer, pods: PodTargets, groups: list[dict[str, Any]]) -> str:
    """Return the objects for the Prometheus operator (0.93.0, PodMonitor and PrometheusRule v1).

    Series are labeled with the name of the server, since the name and address of a pod change with each start.
    """
    monitor = _monitor(server, SCRAPED, pods.labels, pods.port, pods.replica)
    if pods.one_of:
        monitor["selector"]["matchExpressions"] = [
            {"key": label, "operator": "In", "values": list(values)} for label, values in pods.one_of.items()
        ]
    objects = [("PodMonitor", pods.called, monitor)]
    if pods.gateway is not None:
        gateway = _monitor(server, SCRAPED_GATEWAY, pods.gateway, pods.gateway_port, None)
        objects.append(("PodMonitor", f"{pods.called}--gateway", gateway))
    objects.append(("PrometheusRule", pods.called, {"groups": groups}))
    labels = {**pods.labels, "app.kubernetes.io/managed-by": "deploy"}
    documents = (
        dump_yaml(
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": kind,
                "metadata": {"name": object_name, "namespace": pods.namespace, "labels": dict(labels)},
                "spec": spec,
            }
        )
        for kind, object_name, spec in objects
    )
    head = (
        f"`kubectl apply -f {server.name}.monitor.yml` lets the Prometheus of the cluster scrape `{server.name}`",
        "if its operator selects monitors by label, add the label: `kubectl label -f … release=…`",
        f"the NetworkPolicy of `{server.name}` must admit its pods: `kubernetes.allowed_scrapers` in the profile",
        *skipped_rules(server),
    )
    return "".join(f"# {line}\n" for line in head) + "---\n" + "---\n".join(documents)


def _monitor(
    server: MonitoredServer, job: str, labels: Mapping[str, str], port: str, replica: str | None
) -> dict[str, Any]:
    """Return the spec of a PodMonitor, with the labels of the server; it selects pods of its own namespace only."""
    written, name = ESCAPED
    server_labels = {"server": server.name, "profile": server.plan.profile, "job": job, "instance": server.name}
    relabelings: list[dict[str, object]] = [
        {"targetLabel": label, "replacement": value} for label, value in server_labels.items()
    ]
    if replica is not None:
        relabelings += [{"sourceLabels": [replica], "targetLabel": label} for label in ("replica", "instance")]
    endpoint = {
        "port": port,
        "path": endpoints.METRICS,
        "interval": EVERY,
        "relabelings": relabelings,
        "metricRelabelings": [
            {"sourceLabels": ["__name__"], "regex": written, "targetLabel": "__name__", "replacement": name}
        ],
    }
    return {"selector": {"matchLabels": dict(labels)}, "podMetricsEndpoints": [endpoint]}


def _scrape() -> dict[str, object]:
    written, name = ESCAPED
    renamed = {"source_labels": ["__name__"], "regex": written, "target_label": "__name__", "replacement": name}
    job = {
        "job_name": SCRAPED,
        "metrics_path": endpoints.METRICS,
        "file_sd_configs": [{"files": ["*.targets.yml"]}],
        "metric_relabel_configs": [renamed],
    }
    return {
        "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
        "rule_files": ["*.rules.yml"],
        "scrape_configs": [job],
    }


def _targets(server: MonitoredServer) -> list[dict[str, object]]:
    """Return the targets: replicas (metrics need no API key), their gateway, and the GPU exporter."""
    labels = {"server": server.name, "profile": server.plan.profile}
    has_replicas = server.plan.replicas > 1
    targets: list[dict[str, object]] = [
        {
            "targets": [target],
            "labels": labels | ({"replica": server.plan.server_names[number - 1]} if has_replicas else {}),
        }
        for number, target in enumerate(server.targets, start=1)
    ]
    if server.gateway_target:
        targets.append({"targets": [server.gateway_target], "labels": {**labels, "job": SCRAPED_GATEWAY}})
    if server.gpu_target:
        targets.append({"targets": [server.gpu_target], "labels": {**labels, "job": f"{SCRAPED}-gpus"}})
    return targets


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
    for name, alert_name in ((TTFT_P95, "DeployTtftHigh"), (CACHE_HIT_RATE, "DeployCacheHitRateLow")):
        if name not in server.expected:
            yield f"no alert {alert_name}: no expected value; set one with `--workload` or `--expect {name}=…`"
    if server.plan.serving.drafts is not None and ACCEPT_LENGTH not in server.expected:
        yield f"DeployAcceptLengthLow fires only if no draft is accepted; change it with `--expect {ACCEPT_LENGTH}=…`"
    if server.plan.replicas > 1 and not server.gateway_is_scraped:
        yield "no gateway alerts: no scraper may read its metrics; see `kubernetes.allowed_scrapers`"
    if server.plan.gpus and not server.gpu_target:
        yield "no alert DeployVramFull: sglang exports no VRAM use; set an exporter with `--gpu-exporter HOST:PORT`"
    yield f"no alert for untuned kernels: only the log has them; see `deploy top {server.name}`"
