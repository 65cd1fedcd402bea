"""Autoscaling of replicas by KEDA: one Deployment for all replicas, and a ScaledObject.

`up` verifies each replica that it starts, so it rejects autoscaling; `deploy render` writes the objects.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import Problem
from orchestrator.engine.metrics import cache_usage_query, queue_query
from orchestrator.plan.plan import Plan
from orchestrator.profiles.kubernetes import Autoscaling
from orchestrator.runtimes.kubernetes.record import deployment_name

if TYPE_CHECKING:  # plan rules are slow to import, and listing servers does not need them
    from orchestrator.plan.rules import RuleContext

ANY_REPLICA: Final = "replica"  # the pods of one Deployment have no numbers
# Seconds that the load must stay low before a replica is removed: three times the default window of the
# HorizontalPodAutoscaler (300 s, kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale).
_STABILIZATION: Final = 900
_POLLING: Final = 30  # KEDA's default, keda.sh/docs/2.20/reference/scaledobject-spec
_KEDA: Final = "https://keda.sh/docs/2.20/deploy"


def autoscaling_of(plan: Plan) -> Autoscaling | None:
    """Return the autoscaling section of a plan; None without autoscaling."""
    return plan.kubernetes.autoscaling if plan.kubernetes else None


def scaled_object(plan: Plan, name: str) -> dict[str, Any] | None:
    """Return the spec of a server's ScaledObject (KEDA 2.20, keda.sh/v1alpha1); None without autoscaling."""
    if (section := autoscaling_of(plan)) is None:
        return None

    def trigger(query: str, threshold: float, metric: str) -> Mapping[str, object]:
        source = {"serverAddress": section.prometheus, "query": query, "threshold": f"{threshold:g}"}
        return {"type": "prometheus", "metricType": metric, "metadata": source}

    down = {"stabilizationWindowSeconds": _STABILIZATION}
    return {
        "scaleTargetRef": {"name": deployment_name(name, ANY_REPLICA)},
        "minReplicaCount": section.min_replicas,
        "maxReplicaCount": section.max,
        "pollingInterval": _POLLING,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": down}}},
        "triggers": [  # the trigger that asks for the most replicas wins
            trigger(queue_query(name), section.waiting_requests, "AverageValue"),
            trigger(cache_usage_query(name), section.cache_usage, "Value"),
        ],
    }


def autoscaling_notes(plan: Plan) -> Iterator[str]:
    """Yield notes about a plan's autoscaling, for readers of `kubernetes.yaml`."""
    if (section := autoscaling_of(plan)) is None:
        return
    yield f"the cluster needs KEDA ({_KEDA}), and a Prometheus with `deploy monitoring` of this server"
    yield f"a start takes {section.start_seconds} s: autoscaling cannot help in shorter bursts"
    yield (
        f"{section.min_replicas} to {section.max} replicas: {section.min_replicas} absorb a growth of "
        f"{section.growth_rps_per_minute:g} requests/s per minute until another has started"
    )


def autoscaling_problems(context: "RuleContext") -> Iterator[Problem]:
    """Check that autoscaled replicas have a gateway, one node each, and a minimum below their maximum."""
    profile, section = context.profile, context.profile.kubernetes.autoscaling
    if section is None:
        return
    location = context.location("kubernetes", "autoscaling")
    if profile.layout.prefill or profile.layout.decode:
        hint = "`--set kubernetes.autoscaling=null`; `layout.prefill.replicas` and `layout.decode.replicas` are fixed"
        yield Problem("autoscaling does not support prefill and decode servers", location, hint)
    elif profile.replicas == 1 or profile.layout.nodes.value > 1:
        hint = "`--set replicas=2`; the autoscaler replaces the number"
        yield Problem("autoscaling needs replicas of one node behind a gateway", location, hint)
    if section.min_replicas > section.max:
        yield Problem(
            f"`growth_rps_per_minute` needs {section.min_replicas} replicas while another starts, "
            f"and `max` is {section.max}",
            location,
            "raise `max`, or shorten the start: see `deploy status`",
        )
