"""The readiness timeout of a server in a cluster: the limit of its startup probe, and of its Deployment's progress."""

import math
from typing import Final

from orchestrator.plan.plan import Plan

GATEWAY_LIMIT: Final = 60  # seconds; it loads nothing, and with an image that is there it is up within 4
# Bytes a second of the slowest load that was reported: 438 GB of GLM-5.2 took 13 minutes to an hour over NFS.
_SLOWEST: Final = 438e9 / 3600
_LEAST: Final = 480  # seconds, however little is loaded: kernels are compiled, graphs captured (420 s, an estimate)


def startup_limit(plan: Plan) -> int:
    """Seconds a pod may take to become ready: its weights over the slowest share, and `progress_deadline` more."""
    return max(math.ceil(plan.model.weight_bytes / _SLOWEST), _LEAST) + plan.timeouts.progress_deadline
