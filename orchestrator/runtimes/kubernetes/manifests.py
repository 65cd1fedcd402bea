"""The objects of one server, as the API server takes them. Equal plans give equal objects.

A Deployment rather than a StatefulSet: a server keeps nothing of its own, and one whose node is gone has to come back
on another, which a StatefulSet leaves to a person. `Recreate`, since the nodes of a cluster with GPUs are full: a
rolling update would wait for a second set of them.
"""

import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from orchestrator.engine import endpoints
from orchestrator.plan.plan import ContainerRequirements, Kubernetes, Plan
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.kubernetes.arguments import argument_container, argument_files
from orchestrator.runtimes.kubernetes.liveness import liveness_probe, liveness_program, liveness_volume
from orchestrator.runtimes.kubernetes.record import (
    GATEWAY,
    annotations,
    deployment_name,
    labels,
    object_name,
    pairs,
    selected,
)

Manifest: TypeAlias = dict[str, Any]  # Any: JSON of the API's own shape

MODELS: Final = "/models"  # in a pod: checkpoints by name
CONTAINER: Final = "server"
AWAITS: Final = "checkpoint"  # the init container that waits for a Job to bring it
PORT: Final = "http"  # what a pod calls it
METRICS_PORT: Final = "metrics"  # that of a gateway's own counters
CONFIG: Final = "config.yaml"  # the key of a Secret that is sglang's `--config` file
_SECRETS: Final = "/run/secrets/deploy"
_RESOURCES: Final = {"amd": "amd.com/gpu", "nvidia": "nvidia.com/gpu"}  # of the device plugins of both
# Bytes a second of the slowest load that was told: 438 GB of GLM-5.2 took 13 minutes to an hour over NFS.
_SLOWEST: Final = 438e9 / 3600
_LEAST: Final = (
    480  # seconds, however little is loaded: kernels are compiled, graphs captured (420 s, an estimate)
)
PERIOD: Final = 10  # seconds between two looks
_ANSWER: Final = (
    25  # seconds a look waits: behind a long prefill health answers after 20 (sglang, SGLANG_HEALTH_CHECK_TIMEOUT)
)
AFTER_DRAIN: Final = 30  # seconds more than the drain takes: as long as Kubernetes gives what has nothing to drain


def server_objects(artifacts: Artifacts, image: str, name: str, part: str = "") -> Iterator[Manifest]:
    """Everything that one server is, in the order in which it is applied; `part` tells one of several."""
    plan, cluster = artifacts.plan, cluster_of(artifacts.plan)
    yield network_policy(plan, cluster, name, part)
    yield _disruption_budget(plan, name, part)
    yield service(plan, cluster, name, part)
    yield liveness_program(metadata(plan, name, part), argument_files(artifacts))
    yield deployment(plan, name, part, _pod(artifacts, cluster, image=image, name=name, part=part))


def cluster_of(plan: Plan) -> Kubernetes:
    """How a cluster runs a plan that was made for one."""
    assert plan.kubernetes is not None  # noqa: S101 - for the type: the section is called as the runtime is
    return plan.kubernetes


def secret_name(plan: Plan, name: str) -> str:
    """The Secret with the API key of a server."""
    return cluster_of(plan).secret or f"{object_name(name)}-key"


def gpus_asked(plan: Plan) -> tuple[str, int]:
    """The device plugin's resource, and how many: up to the last one that the ranks take, whichever the first is."""
    return _RESOURCES.get(plan.hardware.vendor, ""), plan.gpus[-1] + 1 if plan.gpus else 0


def startup_seconds(plan: Plan) -> int:
    """How long a start may take: its weights over the slowest share, and then as long as `up` waits for a sign."""
    return max(math.ceil(plan.model.weight_bytes / _SLOWEST), _LEAST) + plan.waiting.silence


def metadata(plan: Plan, name: str, part: str = "", *, called: str | None = None) -> Manifest:
    """Of one object of a server, or of a part of several, which may be `called` otherwise than its part."""
    namespace = cluster_of(plan).namespace
    return {
        "name": called or object_name(name, part),
        "namespace": namespace,
        "labels": labels(name, part),
        "annotations": annotations(plan, name, namespace, part),
    }


def placement(cluster: Kubernetes) -> Manifest:
    """On which nodes a pod runs, and how it gets its image."""
    found: Manifest = {"automountServiceAccountToken": False, "enableServiceLinks": False}
    if cluster.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in cluster.image_pull_secrets]
    if cluster.runtime_class:
        found["runtimeClassName"] = cluster.runtime_class
    if cluster.node_selector:
        found["nodeSelector"] = dict(pairs(cluster.node_selector))
    if cluster.tolerations:
        found["tolerations"] = [_toleration(taint) for taint in cluster.tolerations]
    return found


def models_volume(plan: Plan) -> tuple[Manifest, str]:
    """The volume with the checkpoint, and where a pod has it. A host's directory has to be there already."""
    cluster, source = cluster_of(plan), plan.model.source
    if source.kind == "directory":
        volume: Manifest = {"hostPath": {"path": source.location, "type": "Directory"}}
        return {"name": "models", **volume}, model_path(plan)
    if cluster.claim:
        volume = {"persistentVolumeClaim": {"claimName": cluster.claim}}
    else:
        volume = {"hostPath": {"path": cluster.host_path, "type": "Directory"}}
    return {"name": "models", **volume}, MODELS


def model_path(plan: Plan) -> str:
    """Where a pod finds the checkpoint."""
    return f"{MODELS}/{plan.model.name}"


def receipt_path(plan: Plan) -> str:
    """Where the receipt of a staged checkpoint is (weights/receipt.py)."""
    return f"{model_path(plan)}.receipt.json"


def escape_dollar(text: str) -> str:
    """A word of a command or a variable of which the kubelet expands nothing: `$$` is its `$`."""
    return text.replace("$", "$$")


def network_policy(plan: Plan, cluster: Kubernetes, name: str, part: str) -> Manifest:
    """Who may reach it; the node itself always may, for probes and port-forward. One of several: its gateway alone.

    Whoever may read its metrics besides reaches a server's one port, and of a gateway that of its counters.
    """
    ingress: Manifest = {"ports": [{"protocol": "TCP", "port": plan.server.port}]}
    if _is_behind(part):
        ingress = {"from": [{"podSelector": {"matchLabels": selected(name, GATEWAY)}}], **ingress}
    elif cluster.service == "ClusterIP":  # clients beyond the cluster have no labels
        ingress = {"from": [{"podSelector": {"matchLabels": dict(pairs(cluster.clients))}}], **ingress}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(plan, name, part),
        "spec": {
            "podSelector": {"matchLabels": selected(name, part)},
            "policyTypes": ["Ingress"],
            "ingress": [ingress, *_metrics_ingress(plan, cluster, part)],
        },
    }


def _metrics_ingress(plan: Plan, cluster: Kubernetes, part: str) -> Iterator[Manifest]:
    """The pods of a namespace in which a Prometheus is; a single server that is open to all needs no second rule."""
    if not cluster.metrics_from or (part == "" and cluster.service != "ClusterIP"):
        return
    port = plan.gateway.metrics_port if plan.gateway is not None and part == GATEWAY else plan.server.port
    namespaces = {"namespaceSelector": {"matchLabels": dict(pairs(cluster.metrics_from))}}
    yield {"from": [namespaces], "ports": [{"protocol": "TCP", "port": port}]}


def _disruption_budget(plan: Plan, name: str, part: str) -> Manifest:
    """Who drains a node is told that a server is on it, which takes up to an hour to come back: nobody evicts it."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(plan, name, part),
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": selected(name, part)}},
    }


def service(plan: Plan, cluster: Kubernetes, name: str, part: str) -> Manifest:
    """By which it is reached within the cluster; from beyond it, one of several through its gateway alone."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(plan, name, part),
        "spec": {
            "type": "ClusterIP" if _is_behind(part) else cluster.service,
            "selector": selected(name, part),
            "ports": [{"name": PORT, "protocol": "TCP", "port": plan.server.port, "targetPort": PORT}],
        },
    }


def deployment(plan: Plan, name: str, part: str, pod: Manifest) -> Manifest:
    """One pod, which another takes the place of once it is gone."""
    about = metadata(plan, name, part, called=deployment_name(name, part))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": about,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selected(name, part)},
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": startup_seconds(plan) + plan.waiting.silence,  # 600 is less than a start takes
            "template": {"metadata": {"labels": about["labels"], "annotations": about["annotations"]}, "spec": pod},
        },
    }


def _pod(artifacts: Artifacts, cluster: Kubernetes, *, image: str, name: str, part: str) -> Manifest:
    """`shareProcessNamespace`: sglang as process 1 exits with 0 when its scheduler is killed, and reaps no zombies."""
    plan = artifacts.plan
    volumes = [*_volumes(plan, name), liveness_volume(object_name(name, part))]
    pod: Manifest = {
        **placement(cluster),
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": plan.waiting.grace + AFTER_DRAIN,
    }
    if security := _pod_security(plan.hardware.container, cluster):
        pod["securityContext"] = security
    server = _server(artifacts, cluster, image=image, mounts=[mount for _, mount in volumes])
    awaits = (
        [_await_checkpoint(plan, cluster, image)] if cluster.stage_image else []
    )  # with it comes the model's config
    if first := [*awaits, *argument_container(artifacts, server)]:
        pod["initContainers"] = first
    pod["containers"] = [server]
    pod["volumes"] = [volume for volume, _ in volumes]
    return pod


def _server(artifacts: Artifacts, cluster: Kubernetes, *, image: str, mounts: list[Manifest]) -> Manifest:
    """`args`: the image's entry point stays, as docker leaves it."""
    plan = artifacts.plan
    argv = [*artifacts.command.argv, *config_words(plan)]
    env = {"PYTHONUNBUFFERED": "1", **dict(artifacts.command.env)}  # else the log comes in blocks
    health = {"httpGet": {"path": endpoints.HEALTH, "port": PORT}, "timeoutSeconds": _ANSWER}
    container: Manifest = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy(cluster),
        "args": [escape_dollar(word) for word in argv],
        "env": [{"name": variable, "value": escape_dollar(env[variable])} for variable in sorted(env)],
        "ports": [{"name": PORT, "containerPort": plan.server.port}],
        "resources": _resources(plan, cluster),
        "startupProbe": {
            **health,
            "periodSeconds": PERIOD,
            "failureThreshold": math.ceil(startup_seconds(plan) / PERIOD),
        },
        "readinessProbe": {**health, "periodSeconds": PERIOD, "failureThreshold": 3},
        "livenessProbe": liveness_probe(plan, config_words(plan)),
        "volumeMounts": mounts,
    }
    if plan.hardware.container.cap_add:
        container["securityContext"] = {"capabilities": {"add": list(plan.hardware.container.cap_add)}}
    return container


def _volumes(plan: Plan, name: str) -> Iterator[tuple[Manifest, Manifest]]:
    """Each volume with its mount."""
    models, at = models_volume(plan)
    yield models, {"name": "models", "mountPath": at, "readOnly": True}
    needs = plan.hardware.container
    if needs.shm_bytes is not None or needs.ipc is not None:  # a pod's own has 64 MiB
        memory = {"medium": "Memory"} | ({"sizeLimit": str(needs.shm_bytes)} if needs.shm_bytes else {})
        yield {"name": "shm", "emptyDir": memory}, {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - the pod's
    yield from key_volume(plan, name)


def config_words(plan: Plan) -> tuple[str, ...]:
    """The words of a command that name the file with the API key."""
    return ("--config", f"{_SECRETS}/{CONFIG}") if plan.server.api_key_env else ()


def key_volume(plan: Plan, name: str) -> Iterator[tuple[Manifest, Manifest]]:
    """The volume with the API key, where there is one, with its mount."""
    if plan.server.api_key_env:
        items = [{"key": CONFIG, "path": CONFIG}]
        secret = {"secretName": secret_name(plan, name), "defaultMode": 0o400, "items": items}
        yield {"name": "key", "secret": secret}, {"name": "key", "mountPath": _SECRETS, "readOnly": True}


def _await_checkpoint(plan: Plan, cluster: Kubernetes, image: str) -> Manifest:
    """The server waits until the Job has verified the whole checkpoint; what is half there is not served."""
    waits = f'until [ -f "$0" ]; do echo "waiting for $0"; sleep {PERIOD}; done'
    models, at = models_volume(plan)
    return {
        "name": AWAITS,
        "image": image,
        "imagePullPolicy": pull_policy(cluster),
        "command": ["sh", "-c", escape_dollar(waits), receipt_path(plan)],
        "volumeMounts": [{"name": models["name"], "mountPath": at, "readOnly": True}],
    }


def _resources(plan: Plan, cluster: Kubernetes) -> Manifest:
    """GPUs are a limit, which is then asked for as well; memory is held to what was asked for."""
    asked: dict[str, str] = {}
    if cluster.cpu is not None:
        asked["cpu"] = str(cluster.cpu)
    if cluster.memory is not None:
        asked["memory"] = str(cluster.memory)
    limits = {key: value for key, value in asked.items() if key != "cpu"}
    resource, count = gpus_asked(plan)
    if count:
        limits[resource] = str(count)
    return {kind: amounts for kind, amounts in (("requests", asked), ("limits", limits)) if amounts}


def _pod_security(needs: ContainerRequirements, cluster: Kubernetes) -> Manifest:
    """Groups by their ids: a name means nothing to a node. The device plugin gives the devices themselves."""
    found: Manifest = {}
    if "seccomp=unconfined" in needs.security_opt:
        found["seccompProfile"] = {"type": "Unconfined"}
    groups = sorted({*cluster.groups, *(int(group) for group in needs.groups if group.isdigit())})
    if groups:
        found["supplementalGroups"] = groups
    return found


def _toleration(taint: str) -> Manifest:
    said, _, effect = taint.rpartition(":")
    key, equals, value = said.partition("=")
    matched = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **matched, "effect": effect}


def pull_policy(cluster: Kubernetes) -> str:
    """Of the image."""
    return "Never" if cluster.image_on_node else "IfNotPresent"


def _is_behind(part: str) -> bool:
    """Whether it is one of several servers, which their gateway alone may reach."""
    return part not in {"", GATEWAY}
