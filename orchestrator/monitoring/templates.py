"""The Jinja templates of this package, rendered for a server."""

from pathlib import Path

from orchestrator.core.safe_paths import FileName
from orchestrator.core.templates import render_template
from orchestrator.monitoring.series import EVERY, EXPECTED, SCRAPED, SCRAPED_GATEWAY, MonitoredServer


def rendered(template: str, server: MonitoredServer) -> str:
    """Render a template for a server in Jinja's sandbox; templates insert values with `tojson`."""
    fraction = server.plan.serving.memory_fraction
    values = {
        "name": server.name,
        "job": SCRAPED,
        "gateway_job": SCRAPED_GATEWAY,
        "every": EVERY,
        "each": server.each,
        "servers": server.servers,
        "min_servers": server.min_servers,
        "dp": server.plan.layout.dp,
        "speculates": server.speculates,
        "gateway_is_scraped": server.gateway_is_scraped,
        "has_gpu_exporter": server.gpu_target is not None,
        "vendor": server.plan.hardware.vendor,
        "mem_fraction": "" if fraction is None else f"{fraction:g}",
        "expected": {name: server.expected.get(name) for name in EXPECTED},
    }
    text = (Path(__file__).parent / FileName(template)).read_text(encoding="utf-8")
    return render_template(
        text,
        values,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
