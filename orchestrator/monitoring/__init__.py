"""Files for Prometheus and Grafana that watch one server: what to scrape, rules, alerts, a dashboard. Pure."""

from orchestrator.monitoring.alerts import omitted
from orchestrator.monitoring.files import monitoring_files
from orchestrator.monitoring.series import ACCEPT_LENGTH, EXPECTED, HIT_SHARE, TTFT_P95, Expected, Monitored, Pods

__all__ = [
    "ACCEPT_LENGTH",
    "EXPECTED",
    "HIT_SHARE",
    "TTFT_P95",
    "Expected",
    "Monitored",
    "Pods",
    "monitoring_files",
    "omitted",
]
