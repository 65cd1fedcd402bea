"""The gateway of a replicated server in a cluster, which discovers the replicas' pods.

Each replica is a Deployment with one pod, not one of several pods of a Deployment: each is started and verified
separately.
"""

from dataclasses import replace
from typing import Final

from orchestrator.engine.gateway import IMAGE_DIR, IN_IMAGE_PACKAGES, LAUNCHER, PodDiscovery
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import LOOPBACK, replica_plans
from orchestrator.render.artifacts import Command, gateway_command
from orchestrator.runtimes.kubernetes.pod import cluster_of
from orchestrator.runtimes.kubernetes.record import REPLICA, ROLE
from orchestrator.runtimes.labels import NAME

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - of a pod, which its NetworkPolicy protects


def command_of_gateway(plan: Plan, name: str) -> Command:
    """Return the command of the gateway's pod for the replicas of that name."""
    cluster = cluster_of(plan)
    port = replica_plans(plan)[0].server.port
    pods = PodDiscovery(namespace=cluster.namespace, labels={NAME: name, ROLE: REPLICA}, port=port)
    metrics = ANY_ADDRESS if cluster.allowed_scrapers else LOOPBACK
    launcher = f"{IMAGE_DIR}/{LAUNCHER}"
    command = gateway_command(plan, launcher=launcher, host=ANY_ADDRESS, metrics_host=metrics, pods=pods)
    return replace(command, env=(("PYTHONPATH", IN_IMAGE_PACKAGES),))
