"""The programs in a server's container: startup probe, liveness probe and drain. A ConfigMap contains all three.

The startup probe, `engine.first_sample`, succeeds after the first sampled request of each rank. The liveness probe,
`engine.liveness`, checks each rank as `deploy watch` does (which asks one rank of a prefill or decode server); the
cluster restarts a hung server. `/health` cannot replace it: it succeeds as soon as any rank emits anything, and fails
during a chunk of prefill that takes longer than 20 s. `engine.drain` is the preStop hook: a deleted pod gets no new
requests, and it gets SIGTERM once its running requests have ended.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any, Final

from orchestrator.engine import drain, first_sample, liveness
from orchestrator.plan.plan import Plan
from orchestrator.plan.units import Role

FOLDER: Final = "/run/deploy"
_PROGRAM: Final = "liveness.py"
_DRAIN: Final = "drain.py"
_FIRST_SAMPLE: Final = "first_sample.py"
_STARTUP_PERIOD: Final = 5  # seconds
_PYTHON: Final = ("python3", "-I", "-S")
_BETWEEN: Final = 30  # maximum seconds between two probes, each of which asks every rank for a token
# Bytes per second of the slowest reported load: 438 GB of GLM-5.2 took 13 minutes to an hour over NFS.
_SLOWEST: Final = 438e9 / 3600
_MIN_SECONDS: Final = 480  # minimum seconds of a start, to compile kernels and capture graphs (420 s, an estimate)
GATEWAY_LIMIT: Final = 60  # seconds; a gateway loads nothing, and starts within 4 s if the image is present


def startup_limit(plan: Plan) -> int:
    """Return the seconds for a server to become healthy: the slowest load of its weights, plus `progress_deadline`."""
    return max(math.ceil(plan.model.weight_bytes / _SLOWEST), _MIN_SECONDS) + plan.timeouts.progress_deadline


def progress_deadline_seconds(plan: Plan) -> int:
    """Return the Deployment's `progressDeadlineSeconds`, which restarts nothing; it covers the sampled requests."""
    return startup_limit(plan) + first_sample.SAMPLE_LIMIT + plan.timeouts.progress_deadline


def hang_seconds(plan: Plan) -> int:
    """Return the seconds without answer or progress after which a server is restarted, in whole probe intervals.

    `deploy watch` uses the same value. The last probe may begin one interval later.
    """
    between = _between(plan)
    return math.ceil(plan.restart_policy.unhealthy_after / between) * between


def liveness_probe(plan: Plan, config_words: Sequence[str]) -> dict[str, Any]:
    """Return a probe that checks each rank.

    Its program ends before the probe's timeout, and reads the API key from the server's file.
    """
    between = _between(plan)
    seconds = max(between * 2 // 3, 1)
    asked = (str(plan.server.port), str(plan.layout.dp), str(seconds))
    arguments = (*asked, *_disaggregated_words(plan), *config_words[1:])
    return {
        "exec": {"command": [*_PYTHON, f"{FOLDER}/{_PROGRAM}", *arguments]},
        "timeoutSeconds": max(between * 5 // 6, 1),
        "periodSeconds": between,
        "failureThreshold": hang_seconds(plan) // between + 1,  # the first failure only sets the baseline for progress
    }


def startup_probe(plan: Plan, config_words: Sequence[str]) -> dict[str, Any]:
    """Return a probe that succeeds once the server is healthy and each rank has answered a sampled request.

    Its failure threshold limits only the time until the server is healthy, since it does not fail during the requests.
    """
    arguments = (str(plan.server.port), str(plan.layout.dp), *_disaggregated_words(plan), *config_words[1:])
    return {
        "exec": {"command": [*_PYTHON, f"{FOLDER}/{_FIRST_SAMPLE}", *arguments]},
        "timeoutSeconds": first_sample.HEALTH_LIMIT + first_sample.SAMPLE_LIMIT + _STARTUP_PERIOD,
        "periodSeconds": _STARTUP_PERIOD,
        "failureThreshold": math.ceil(startup_limit(plan) / _STARTUP_PERIOD),
    }


def drain_hook(plan: Plan, config_words: Sequence[str]) -> dict[str, Any]:
    """Return the preStop hook, which waits for a server's requests and aborts the rest."""
    arguments = (str(plan.server.port), str(plan.timeouts.termination_grace), *config_words[1:])
    return {"exec": {"command": [*_PYTHON, f"{FOLDER}/{_DRAIN}", *arguments]}}


def programs() -> dict[str, str]:
    """Return the programs for the ConfigMap mounted at `FOLDER`."""
    sources = {_PROGRAM: liveness, _DRAIN: drain, _FIRST_SAMPLE: first_sample}
    return {name: inspect.getsource(module) for name, module in sources.items()}


def _disaggregated_words(plan: Plan) -> tuple[str, ...]:
    """Return the option to probe a prefill or decode server without its counterpart."""
    return () if plan.role is Role.SERVER else (liveness.ALONE,)


def _between(plan: Plan) -> int:
    return min(_BETWEEN, plan.restart_policy.unhealthy_after)
