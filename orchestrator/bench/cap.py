"""Did as many requests run at once as the server admits? Then its setting was measured, not what it can do. Pure."""

from collections.abc import Mapping
from typing import Final

from orchestrator.results import Point, ServerProvenance

_WITH_DRAFTS: Final = 48  # what is admitted where it speculates and nothing is said (0.5.14, speculative_hook.py:271)


def capped(point: Point, provenance: ServerProvenance) -> str | None:
    """A sentence for a point that ran at the cap of its plan; None below it, or where either is not known."""
    cap = _cap(provenance.plan or {})
    ran = point.server.running_max if point.server else None
    if cap is None or ran is None or ran < cap[0]:
        return None
    waited = point.server.queue_depth_max if point.server else None
    queue = f", up to {waited:g} waited" if waited else ""
    return f"{ran:g} requests ran at once, as many as {cap[1]} admits{queue}: the cap was measured, not the hardware"


def _cap(plan: Mapping[str, object]) -> tuple[int, str] | None:
    """How many requests the server admits, and by what.

    The setting holds for each replica; with dp-attention the replicas share it (0.5.14, managers/tp_worker.py).
    """
    layout, flags = plan.get("layout"), plan.get("flags")
    if not isinstance(layout, dict) or not isinstance(flags, list | tuple):
        return None
    values = {flag.get("name"): flag.get("values") for flag in flags if isinstance(flag, dict)}
    dp = layout.get("dp")
    replicas = dp if isinstance(dp, int) and not layout.get("dp_attention") else 1
    each = f" on each of {replicas} replicas" if replicas > 1 else ""
    given = values.get("max-running-requests")
    if isinstance(given, list | tuple) and len(given) == 1 and str(given[0]).isdigit():
        return int(given[0]) * replicas, f"`max-running-requests {given[0]}`{each}"
    if "speculative-algorithm" in values and given is None:
        return _WITH_DRAFTS * replicas, f"sglang's own {_WITH_DRAFTS} beside drafts{each}"
    return None
