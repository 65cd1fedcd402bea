"""By what a cluster starts a server again that hangs: each rank is asked, by a program in the server's own container.

`/health` would answer as soon as anything comes back from any rank, and no behind a chunk of prefill that takes longer
than 20 s. The program is `engine.life`, whose rule is that of `deploy watch`; a ConfigMap brings it.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any, Final

from orchestrator.engine import liveness
from orchestrator.plan.plan import Plan

FOLDER: Final = "/run/deploy"
_PROGRAM: Final = "life.py"
_BETWEEN: Final = 30  # seconds between two looks at the most: each asks every rank for a token


def hang_seconds(plan: Plan) -> int:
    """For how many seconds, in whole looks, a server gives no answer and does no work before it is started again.

    Those of `deploy watch`; the last look may begin as many seconds later as there are between two.
    """
    between = _between(plan)
    return math.ceil(plan.restart_policy.unhealthy_after / between) * between


def liveness_probe(plan: Plan, config_words: Sequence[str]) -> dict[str, Any]:
    """A look at each rank, which ends by itself before it is ended; it has the key from where the server has it."""
    between = _between(plan)
    seconds = max(between * 2 // 3, 1)
    asked = (str(plan.server.port), str(plan.layout.dp), str(seconds), *config_words[1:])
    return {
        "exec": {"command": ["python3", "-I", "-S", f"{FOLDER}/{_PROGRAM}", *asked]},
        "timeoutSeconds": max(between * 5 // 6, 1),
        "periodSeconds": between,
        "failureThreshold": hang_seconds(plan) // between + 1,  # the first only begins to see that no work is done
    }


def liveness_program() -> dict[str, str]:
    """The program, for the ConfigMap that is mounted at `FOLDER`."""
    return {_PROGRAM: inspect.getsource(liveness)}


def _between(plan: Plan) -> int:
    return min(_BETWEEN, plan.restart_policy.unhealthy_after)
