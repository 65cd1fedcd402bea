"""A dashboard for Grafana: what `deploy top` shows, over time. It asks for recorded series and nothing else."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orchestrator.monitoring.series import SCRAPED, Monitored, series_of

_ACROSS: Final = 3
_WIDTH: Final = 24 // _ACROSS  # of the 24 columns that a dashboard has
_HEIGHT: Final = 8
_SCHEMA: Final = 39  # of dashboards: Grafana 10.4 and later bring older ones up to date by themselves
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}  # chosen where the dashboard is imported


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """A picture with its lines: the series that each draws, and what it is called."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


_PANELS: Final = (
    _Panel(title="Answers", unit="bool", lines=(("up", "up"),)),
    _Panel(title="Servers that the gateway sends to", unit="short", lines=(("gateway_servers", "servers"),)),
    _Panel(
        title="Answers of the gateway",
        unit="reqps",
        lines=(("gateway_answers:rate", "all"), ("gateway_retries:rate", "tried again")),
    ),
    _Panel(title="Errors among them", unit="percentunit", lines=(("gateway_failed_share:rate", "share"),)),
    _Panel(title="Requests", unit="short", lines=(("requests_running", "running"), ("requests_queued", "queued"))),
    _Panel(title="Requests done", unit="reqps", lines=(("requests_done:rate", "done"),)),
    _Panel(title="Tokens a second", unit="short", lines=(("tokens_in:rate", "in"), ("tokens_out:rate", "out"))),
    _Panel(title="Time to first token", unit="s", lines=(("ttft_seconds:p50", "p50"), ("ttft_seconds:p95", "p95"))),
    _Panel(title="Between tokens", unit="s", lines=(("itl_seconds:p50", "p50"), ("itl_seconds:p95", "p95"))),
    _Panel(title="Prompt tokens from the cache", unit="percentunit", lines=(("hit_share:rate", "share"),)),
    _Panel(title="KV cache in use, fullest rank", unit="percentunit", lines=(("kv_share", "share"),)),
    _Panel(title="Tokens of each rank a second", unit="short", lines=(("rank_tokens:rate", "rank {{dp_rank}}"),)),
    _Panel(title="Tokens a verification", unit="short", lines=(("accept_length:rate", "accept length"),)),
    _Panel(title="VRAM, fullest GPU", unit="percentunit", lines=(("vram_share", "share"),)),
)


_OF_ALL: Final = {"vram_share", *(name for panel in _PANELS for name, _ in panel.lines if name.startswith("gateway"))}


def dashboard(server: Monitored) -> str:
    """The dashboard as JSON; a series that is not recorded is left out, and a panel without any."""
    recorded = {series.record for series in series_of(server)}
    panels = [panel for panel in _PANELS if any(_known(name, recorded) for name, _ in panel.lines)]
    drawn = [_drawn(panel, at, server, recorded) for at, panel in enumerate(panels)]
    shown = {
        "title": f"deploy: {server.name}",
        "uid": f"deploy-{server.name}"[:40],
        "tags": ["deploy", "sglang"],
        "timezone": "browser",
        "schemaVersion": _SCHEMA,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": drawn,
    }
    return json.dumps(shown, indent=2) + "\n"


def _known(name: str, recorded: set[str]) -> bool:
    return name == "up" or f"deploy:{name}" in recorded


def _drawn(panel: _Panel, at: int, server: Monitored, recorded: set[str]) -> dict[str, object]:
    row, column = divmod(at, _ACROSS)
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": list(_targets(panel, server, recorded)),
    }


def _lines(panel: _Panel, server: Monitored, recorded: set[str]) -> list[tuple[str, str]]:
    """What a panel draws: of several servers each, and then all of them together."""
    known = [(name, legend) for name, legend in panel.lines if _known(name, recorded)]
    if server.servers == 1:
        return known
    own = [(name, legend if name in _OF_ALL else f"{{{{replica}}}}: {legend}") for name, legend in known]
    return own + [(f"all:{name}", f"all: {legend}") for name, legend in known if _known(f"all:{name}", recorded)]


def _targets(panel: _Panel, server: Monitored, recorded: set[str]) -> Iterator[dict[str, object]]:
    for letter, (name, legend) in zip("ABCDEF", _lines(panel, server, recorded), strict=False):
        expression = f"deploy:{name}{{{server.selector}}}"
        if name == "up":
            expression = f'up{{{server.selector},job="{SCRAPED}"}}'
        yield {"refId": letter, "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
