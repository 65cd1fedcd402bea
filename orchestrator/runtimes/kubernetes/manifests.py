"""The Kubernetes objects of a unit, from the template in this folder and a plan.

Equal plans yield equal objects.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from orchestrator.core.templates import render_template
from orchestrator.engine import endpoints, gateway
from orchestrator.engine.launch import HEAD_ADDRESS, HOST_ADDRESS, NODE_RANK, key_file_words
from orchestrator.engine.server_args import is_server
from orchestrator.images.argument_checker import argument_checker, argument_question
from orchestrator.plan.host_needs import host_needs, mebibytes
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import LOOPBACK
from orchestrator.plan.units import Role
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.render.artifacts import Artifacts, Command, gateway_command
from orchestrator.runtimes.kubernetes.autoscaling import ANY_REPLICA, autoscaling_of, scaled_object
from orchestrator.runtimes.kubernetes.probes import (
    FOLDER,
    GATEWAY_LIMIT,
    drain_hook,
    liveness_probe,
    programs,
    progress_deadline_seconds,
    startup_probe,
)
from orchestrator.runtimes.kubernetes.record import (
    CONFIG,
    MODELS,
    REPLICA,
    ROLE,
    annotations,
    cluster_of,
    copy_to_claim,
    deployment_name,
    labels,
    model_path,
    node_checkpoint,
    object_name,
    pairs,
    requested_gpus,
    secret_name,
    selected,
)
from orchestrator.runtimes.kubernetes.security import HOME, PodSecurity, level_of, pod_security, uses_host_network
from orchestrator.runtimes.labels import GATEWAY, NAME

Manifest: TypeAlias = dict[str, Any]  # Any: JSON of the API
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - in a pod, which a NetworkPolicy protects

_WORKER: Final = "leaderworkerset.sigs.k8s.io/worker-index"  # label of a pod, "0" for the leader
# Variables of a pod of a LeaderWorkerSet (kubernetes-sigs/lws v0.7.0, api/leaderworkerset/v1/leaderworkerset_types.go).
_OF_GROUP: Final = {NODE_RANK: "$(LWS_WORKER_INDEX)", HEAD_ADDRESS: "$(LWS_LEADER_ADDRESS)"}
_SECRETS: Final = "/run/secrets/deploy"
_MESSAGE: Final = "/dev/termination-log"  # the default of `terminationMessagePath`
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def objects_of(artifacts: Artifacts, image: str, name: str, unit_name: str = "") -> list[Manifest]:
    """Return the objects for one start: of a server, of the replica `unit_name`, or of the gateway."""
    plan = artifacts.plan
    unit_name = GATEWAY if plan.gateway else ANY_REPLICA if unit_name and autoscaling_of(plan) else unit_name
    context = _of_unit(artifacts.plan, image, name, unit_name)
    context |= _of_gateway(artifacts.plan, name) if unit_name == GATEWAY else _of_server(artifacts)
    text = Path(__file__).with_name("unit.yaml.j2").read_text(encoding="utf-8")
    return list(yaml.load_all(render_template(text, context, filters={"yaml": _quoted}), Loader=_LOADER))


def metadata(plan: Plan, name: str, name_in_cluster: str) -> Manifest:
    """Return the metadata for an object of a server."""
    namespace = cluster_of(plan).namespace
    object_annotations = annotations(plan, name, namespace)
    return {"name": name_in_cluster, "namespace": namespace, "labels": labels(name), "annotations": object_annotations}


def _quoted(value: object) -> str:
    """Return a value as YAML on one line: JSON with escapes for the characters that YAML folds or rejects."""
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08x}", json.dumps(value, ensure_ascii=False))


def _of_unit(plan: Plan, image: str, name: str, unit_name: str) -> dict[str, object]:
    """Return the template values that all units have."""
    cluster, nodes = cluster_of(plan), 1 if unit_name == GATEWAY else plan.layout.nodes
    of_role, bootstrap = plan.role is not Role.SERVER, plan.serving.bootstrap_port
    ports = gateway.pod_annotations(plan.server.port, bootstrap) if of_role else {}
    is_replica = unit_name not in {"", GATEWAY}  # only the gateway may reach a replica
    beyond = cluster.service_type != "ClusterIP"  # clients outside the cluster have no labels
    same_server = selected(name, "" if of_role else GATEWAY)  # sglang chooses the ports for the KV cache
    clients = same_server if is_replica else None if beyond else pairs(cluster.allowed_clients)
    is_open = not unit_name and beyond  # every client may connect, so scrapers need no rule of their own
    return {
        "gateway": unit_name == GATEWAY,
        "name": object_name(name, unit_name),
        "deployment": deployment_name(name, unit_name),
        "cluster": cluster,
        "labels": labels(name, unit_name),
        "annotations": annotations(plan, name, cluster.namespace, unit_name),
        "of_pod": annotations(plan, name, cluster.namespace, unit_name) | ports,
        "selected": selected(name, unit_name),
        "nodes": nodes,
        "serving": selected(name, unit_name) | ({_WORKER: "0"} if nodes > 1 else {}),
        "host_network": unit_name != GATEWAY and uses_host_network(plan),
        # Replicas share a port number, so no two may share a node; prefill and decode servers have different ports.
        "apart": selected(name, unit_name) if of_role else selected(name) | ({ROLE: REPLICA} if is_replica else {}),
        "clients": clients,
        "of_role": of_role,
        "bootstrap_port": bootstrap,
        "scrapers": pairs(cluster.allowed_scrapers) if cluster.allowed_scrapers and not is_open else None,
        "metrics_port": plan.gateway.metrics_port if plan.gateway else plan.server.port,
        "service_type": "ClusterIP" if is_replica else cluster.service_type,
        "port": plan.server.port,
        "progress_deadline_seconds": progress_deadline_seconds(plan),
        "gateway_limit": GATEWAY_LIMIT,
        "timeouts": plan.timeouts,
        "node_selector": pairs(cluster.node_selector),
        "tolerations": [_toleration(taint) for taint in cluster.tolerations],
        "image": image,
        "pull_policy": cluster.image_pull_policy,
        "key_secret": secret_name(plan, name),
        "scaled_object": scaled_object(plan, name) if unit_name == ANY_REPLICA else None,
    }


def command_of_gateway(plan: Plan, name: str) -> Command:
    """Return the command of the gateway's pod, which discovers the pods of that server's replicas.

    Each replica has its own Deployment with one pod, because each is started and verified separately.
    """
    cluster, servers = cluster_of(plan), list(plan.servers.values())
    labels = {}
    for server in servers:
        role = "" if server.role is Role.SERVER else server.role.value
        leader = {_WORKER: "0"} if server.layout.nodes > 1 else {}
        labels[role] = {NAME: name, ROLE: role or REPLICA, **leader}
    return gateway_command(
        plan,
        in_image=True,
        host=ANY_ADDRESS,
        metrics_host=ANY_ADDRESS if cluster.allowed_scrapers else LOOPBACK,
        pods=gateway.PodDiscovery(namespace=cluster.namespace, labels=labels, port=servers[0].server.port),
    )


def _of_gateway(plan: Plan, name: str) -> dict[str, object]:
    """Return the template values of a gateway. It runs on its replicas' nodes, which have the image, without a GPU."""
    security = pod_security(plan, "privileged" if cluster_of(plan).pod_security == "privileged" else "restricted")
    return {
        **_command(plan, command_of_gateway(plan, name), security),
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        "missing": "",
        "judge": (),
        "liveness": gateway.LIVENESS,
        "readiness": gateway.READINESS,
        "mounts": {**_home_mount(security), **_key_mount(plan)},
    }


def _of_server(artifacts: Artifacts) -> dict[str, object]:
    plan, cluster, needs = artifacts.plan, cluster_of(artifacts.plan), artifacts.plan.hardware.container
    directory = node_checkpoint(plan)
    models_at = MODELS if directory is None else model_path(plan)
    security = pod_security(plan, level_of(plan))
    mounts = {"models": models_at, **_home_mount(security)}
    if needs.shm_bytes is not None or needs.ipc is not None:
        mounts["shm"] = "/dev/shm"  # noqa: S108 - in the pod
    if uses_host_network(plan) and plan.gpus:
        mounts["infiniband"] = "/dev/infiniband"
    checker = {}  # the engine validates the arguments before weights are loaded, which avoids a crash loop
    if is_server(artifacts.command.argv):
        question = argument_question(artifacts, None).to_json() + "\n"
        checker = {"check_server_args.py": argument_checker(), "arguments.json": question}
    claim = None if directory else cluster.weights.pvc
    missing = f"claim `{claim}` has no `{plan.model.name}`; {copy_to_claim(plan)}" if claim else ""
    return {
        **_command(plan, artifacts.command, security),
        "programs": {**programs(), **checker},
        "programs_at": FOLDER,
        "models_at": models_at,
        "claim": claim,
        "host_path": directory or cluster.weights.host_path,
        "config_file": f"{model_path(plan)}/config.json",
        "missing": _literal(missing),
        "judge": ["python3", "-B", *(f"{FOLDER}/{name}" for name in checker), _MESSAGE] if checker else [],
        **_resources(plan, cluster),
        "readiness": endpoints.HEALTH,
        "startup": startup_probe(plan, _config_words(plan)),
        "liveness": liveness_probe(plan, _config_words(plan)),
        "drain": drain_hook(plan, _config_words(plan)),
        "shm": {"medium": "Memory"} | ({"sizeLimit": str(needs.shm_bytes)} if needs.shm_bytes else {}),
        "mounts": {**mounts, **_key_mount(plan), "life": FOLDER},
    }


def _command(plan: Plan, command: Command, security: PodSecurity) -> dict[str, object]:
    env = {"PYTHONUNBUFFERED": "1", **security.env, **dict(command.env)}  # otherwise the log arrives in blocks
    words = [_literal(word) for word in (*command.argv, *_config_words(plan))]
    for value, variable in _OF_GROUP.items():
        words = [word.replace(_literal(value), variable) for word in words]
    variables: list[Manifest] = [{"name": variable, "value": _literal(env[variable])} for variable in sorted(env)]
    has_peers = plan.layout.nodes > 1 or plan.role is not Role.SERVER  # which reach it at its address
    if has_peers and HOST_ADDRESS not in env:
        variables += [{"name": HOST_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    return {"security": security, "args": words, "env": variables}


def _literal(text: str) -> str:
    """Return a command argument or variable that the kubelet does not expand: `$$` stands for `$`."""
    return text.replace("$", "$$")


def _config_words(plan: Plan) -> tuple[str, ...]:
    """Return the command arguments that name the file with the API key."""
    return key_file_words(f"{_SECRETS}/{CONFIG}") if plan.server.api_key_env else ()


def _home_mount(security: PodSecurity) -> Mapping[str, str]:
    return {"home": HOME} if security.env else {}


def _key_mount(plan: Plan) -> Mapping[str, str]:
    return {"key": _SECRETS} if plan.server.api_key_env else {}


def _resources(plan: Plan, cluster: KubernetesSection) -> Manifest:
    """Return the resources of the server's container and, without GPUs, those of its init containers."""
    needs = host_needs(plan)
    cpu, memory = cluster.cpu or needs.cpus, cluster.memory
    requests = {"cpu": f"{cpu:g}", "memory": memory or f"{mebibytes(needs.memory)}Mi"}
    limits = {"cpu": f"{max(cpu, needs.max_cpus):g}", "memory": memory or f"{mebibytes(needs.max_memory)}Mi"}
    resource, count = requested_gpus(plan)
    gpus = {resource: str(count)} if count else {}  # the limit is also the request
    return {
        "init_resources": {"requests": requests, "limits": limits},
        "resources": {"requests": requests, "limits": {**limits, **gpus}},
    }


def _toleration(taint: str) -> Manifest:
    text, _, effect = taint.rpartition(":")
    key, equals, value = text.partition("=")
    matched = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **matched, "effect": effect}
