"""The Grafana dashboard of a server, rendered from `dashboard.json.j2`."""

import json
from typing import Any, Final

from orchestrator.monitoring.series import RECORDED, MonitoredServer
from orchestrator.monitoring.templates import rendered

_ACROSS: Final = 3
_WIDTH: Final = 24 // _ACROSS  # of 24 grid columns
_HEIGHT: Final = 8


def dashboard(server: MonitoredServer, recorded: frozenset[str]) -> str:
    """Return the dashboard as JSON, without unrecorded series and without empty panels."""
    shown = json.loads(rendered("dashboard.json.j2", server))
    panels: list[dict[str, Any]] = []
    for panel in shown["panels"]:
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
    return json.dumps({**shown, "panels": panels}, indent=2) + "\n"
