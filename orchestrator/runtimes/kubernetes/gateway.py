"""The gateway before several servers of a cluster, which finds their pods itself, and what it may do for that.

Each server is a Deployment of one pod, not one of several of a single Deployment: each is started and
proved by itself.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from orchestrator.engine.gateway import IMAGE_DIR, IN_IMAGE_PACKAGES, LAUNCHER, LIVENESS, READINESS, PodDiscovery
from orchestrator.plan.plan import Kubernetes, Plan
from orchestrator.plan.replicas import LOOPBACK, replica_plans
from orchestrator.render.artifacts import Artifacts, Command, gateway_command
from orchestrator.runtimes.kubernetes.manifests import (
    AFTER_DRAIN,
    CONTAINER,
    METRICS_PORT,
    PERIOD,
    Manifest,
    cluster_of,
    config_words,
    deployment,
    escape_dollar,
    key_volume,
    metadata,
    network_policy,
    placement,
    pull_policy,
    server_objects,
    service,
)
from orchestrator.runtimes.kubernetes.record import GATEWAY, NAME, REPLICA, ROLE, object_name

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - of a pod, which its NetworkPolicy guards
_ANSWER: Final = 5  # seconds that a look may take: it asks no server
_PATIENCE: Final = 60  # looks that a start may take: an image that is there is up within 4 s


def objects_of(artifacts: Artifacts, image: str, name: str, part: str = "") -> Iterator[Manifest]:
    """What one start applies: a server, one of several, or the gateway before them."""
    if artifacts.plan.gateway is None:
        return server_objects(artifacts, image, name, part)
    return gateway_objects(artifacts.plan, image, name)


def command_of_gateway(plan: Plan, name: str) -> Command:
    """What its pod runs, before the servers of that name."""
    pods = PodDiscovery(
        namespace=cluster_of(plan).namespace,
        labels={NAME: name, ROLE: REPLICA},
        port=replica_plans(plan)[0].server.port,
    )
    cluster = cluster_of(plan)
    metrics = ANY_ADDRESS if cluster.metrics_from else LOOPBACK
    launcher = f"{IMAGE_DIR}/{LAUNCHER}"
    command = gateway_command(plan, launcher=launcher, host=ANY_ADDRESS, metrics_host=metrics, pods=pods)
    return replace(command, env=(("PYTHONPATH", IN_IMAGE_PACKAGES),))


def gateway_objects(plan: Plan, image: str, name: str) -> Iterator[Manifest]:
    """Its rights come before it does. It alone has an account: the servers ask nothing of the cluster."""
    cluster = cluster_of(plan)
    yield from _rights(plan, name)
    yield network_policy(plan, cluster, name, GATEWAY)
    yield service(plan, cluster, name, GATEWAY)
    yield deployment(plan, name, GATEWAY, _pod(plan, cluster, image=image, name=name))


def _rights(plan: Plan, name: str) -> Iterator[Manifest]:
    """To see the pods of its own namespace, and nothing else."""

    def about() -> Manifest:
        return metadata(plan, name, GATEWAY)

    called, namespace = object_name(name), cluster_of(plan).namespace
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about()}
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": about(),
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
    }
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": about(),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": called},
        "subjects": [{"kind": "ServiceAccount", "name": called, "namespace": namespace}],
    }


def _metrics_port(plan: Plan, cluster: Kubernetes) -> Iterator[Manifest]:
    """That of its own counters, where somebody is let in to it."""
    if cluster.metrics_from and plan.gateway is not None:
        yield {"name": METRICS_PORT, "containerPort": plan.gateway.metrics_port}


def _pod(plan: Plan, cluster: Kubernetes, *, image: str, name: str) -> Manifest:
    """On the nodes of its servers, which hold the image; it takes no GPU."""
    command = command_of_gateway(plan, name)
    env = {"PYTHONUNBUFFERED": "1", **dict(command.env)}
    look = {"periodSeconds": PERIOD, "timeoutSeconds": _ANSWER, "failureThreshold": 3}
    container: Manifest = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy(cluster),
        "args": [escape_dollar(word) for word in (*command.argv, *config_words(plan))],
        "env": [{"name": variable, "value": escape_dollar(env[variable])} for variable in sorted(env)],
        "ports": [{"name": "http", "containerPort": plan.server.port}, *_metrics_port(plan, cluster)],
        "startupProbe": {
            "httpGet": {"path": LIVENESS, "port": "http"},
            "periodSeconds": 1,
            "failureThreshold": _PATIENCE,
        },
        "readinessProbe": {"httpGet": {"path": READINESS, "port": "http"}, **look, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": LIVENESS, "port": "http"}, **look},
    }
    volumes = list(key_volume(plan, name))
    if volumes:
        container["volumeMounts"] = [mount for _, mount in volumes]
    pod: Manifest = {
        **placement(cluster),
        "automountServiceAccountToken": True,
        "serviceAccountName": object_name(name),
        "terminationGracePeriodSeconds": plan.waiting.grace + AFTER_DRAIN,
        "containers": [container],
    }
    return pod | ({"volumes": [volume for volume, _ in volumes]} if volumes else {})
