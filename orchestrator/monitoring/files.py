"""The monitoring files: YAML for Prometheus and JSON for Grafana, reproducible byte for byte."""

import json
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.yaml_document import dump_yaml
from orchestrator.engine import endpoints
from orchestrator.engine.metrics import ESCAPED
from orchestrator.monitoring.alerts import rules_of, skipped_rules
from orchestrator.monitoring.series import EVERY, RECORDED, SCRAPED, SCRAPED_GATEWAY, MonitoredServer, rendered
from orchestrator.render.artifacts import RenderedFile
from orchestrator.runtimes.base import PodTargets

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
        whole = "`prometheus --config.file prometheus.yml` scrapes all servers with files in this directory"
        notes = (f"recording rules and alerts of `{name}`", *skipped_rules(server))
        texts |= {
            "prometheus.yml": dump_yaml(_scrape(), whole),
            f"{name}.targets.yml": dump_yaml(_targets(server), f"scrape targets of `{name}`"),
            f"{name}.rules.yml": dump_yaml({"groups": rules.groups}, *notes),
        }
    return tuple(RenderedFile(path=path, content=texts[path].encode(), executable=False) for path in sorted(texts))


def _dashboard(server: MonitoredServer, recorded: frozenset[str]) -> str:
    """Return the Grafana dashboard as JSON, without unrecorded series and without empty panels."""
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
                "metadata": {"name": called, "namespace": pods.namespace, "labels": dict(labels)},
                "spec": spec,
            }
        )
        for kind, called, spec in objects
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
    own = {"server": server.name, "profile": server.plan.profile, "job": job, "instance": server.name}
    relabelings: list[dict[str, object]] = [
        {"targetLabel": label, "replacement": value} for label, value in own.items()
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
    several = server.plan.replicas > 1
    found: list[dict[str, object]] = [
        {"targets": [target], "labels": labels | ({"replica": server.plan.server_names[number - 1]} if several else {})}
        for number, target in enumerate(server.targets, start=1)
    ]
    if server.gateway_target:
        found.append({"targets": [server.gateway_target], "labels": {**labels, "job": SCRAPED_GATEWAY}})
    if server.gpu_target:
        found.append({"targets": [server.gpu_target], "labels": {**labels, "job": f"{SCRAPED}-gpus"}})
    return found
