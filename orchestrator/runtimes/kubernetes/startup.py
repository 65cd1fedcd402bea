"""The startup timeout of a server in a cluster: the limit of its startup probe and of its Deployment's progress."""

import math
from typing import Final

from orchestrator.engine.first_sample import SAMPLE_LIMIT
from orchestrator.plan.plan import Plan

GATEWAY_LIMIT: Final = 60  # seconds; it loads nothing, and takes up to 4 s if the image is present
# Bytes per second of the slowest reported load: 438 GB of GLM-5.2 took 13 minutes to an hour over NFS.
_SLOWEST: Final = 438e9 / 3600
_LEAST: Final = 480  # minimum seconds: kernels are compiled and graphs captured (420 s, an estimate)


def startup_limit(plan: Plan) -> int:
    """Return the seconds until a server is healthy: the slowest load of its weights, plus `progress_deadline`."""
    return max(math.ceil(plan.model.weight_bytes / _SLOWEST), _LEAST) + plan.timeouts.progress_deadline


def progress_limit(plan: Plan) -> int:
    """Return the seconds for a pod to become ready: its sampled requests come after `startup_limit`."""
    return startup_limit(plan) + SAMPLE_LIMIT + plan.timeouts.progress_deadline
