"""The files: YAML for Prometheus, JSON for Grafana. The same bytes for the same server."""

from typing import Final

import yaml

from orchestrator.engine import ESCAPED, endpoints
from orchestrator.monitoring.alerts import Alert, alerts_of, omitted
from orchestrator.monitoring.dashboard import dashboard
from orchestrator.monitoring.series import SCRAPED, Monitored, series_of
from orchestrator.render import ContextFile

_EVERY: Final = "15s"
_WIDTH: Final = 118


def monitoring_files(server: Monitored) -> tuple[ContextFile, ...]:
    """All of them, sorted by path, with what was left out at the head of the rules."""
    name = server.name
    texts = {
        "prometheus.yml": _yaml(
            _scrape(), "`prometheus --config.file prometheus.yml` watches all that stand beside it"
        ),
        f"{name}.targets.yml": _yaml(_targets(server), f"where `{name}` is scraped"),
        f"{name}.rules.yml": _yaml(_rules(server), f"what is recorded of `{name}`, and its alerts", *omitted(server)),
        f"{name}.dashboard.json": dashboard(server),
    }
    return tuple(ContextFile(path=path, content=texts[path].encode(), executable=False) for path in sorted(texts))


def _yaml(data: object, *comments: str) -> str:
    head = "".join(f"# {comment}\n" for comment in comments)
    return head + yaml.safe_dump(data, sort_keys=False, width=_WIDTH, allow_unicode=True)


def _scrape() -> dict[str, object]:
    """The same for every server, so that several share a folder."""
    written, name = ESCAPED
    renamed = {"source_labels": ["__name__"], "regex": written, "target_label": "__name__", "replacement": name}
    job = {
        "job_name": SCRAPED,
        "metrics_path": endpoints.METRICS,
        "file_sd_configs": [{"files": ["*.targets.yml"]}],
        "metric_relabel_configs": [renamed],
    }
    return {
        "global": {"scrape_interval": _EVERY, "evaluation_interval": _EVERY},
        "rule_files": ["*.rules.yml"],
        "scrape_configs": [job],
    }


def _targets(server: Monitored) -> list[dict[str, object]]:
    """The server, without a key: metrics are open where the rest asks for one; and what tells of its GPUs."""
    labels = {"server": server.name, "profile": server.plan.profile}
    found: list[dict[str, object]] = [{"targets": [server.target], "labels": labels}]
    if server.gpu_target:
        found.append({"targets": [server.gpu_target], "labels": {**labels, "job": f"{SCRAPED}-gpus"}})
    return found


def _rules(server: Monitored) -> dict[str, object]:
    records = [{"record": each.record, "expr": each.expression} for each in series_of(server)]
    alerts = [_rule(alert, server) for alert in alerts_of(server)]
    named = ((f"deploy-{server.name}-series", records), (f"deploy-{server.name}-alerts", alerts))
    return {"groups": [{"name": name, "interval": _EVERY, "rules": rules} for name, rules in named]}


def _rule(alert: Alert, server: Monitored) -> dict[str, object]:
    said = {"summary": f"{server.name}: {alert.summary}", "limit": alert.limit.replace("{{", '{{ "{{" }}')}
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity, "server": server.name},
        "annotations": said,
    }
