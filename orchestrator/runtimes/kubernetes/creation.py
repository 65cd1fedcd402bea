"""Creation of a start's objects in a cluster, the Deployment first."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.console import note, warn
from orchestrator.core.errors import NameTakenError, StartError
from orchestrator.core.secrets import Secret
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.engine.launch import split_secrets
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.manifests import Manifest, metadata, objects_of
from orchestrator.runtimes.kubernetes.record import CONFIG, ReplicaRef, cluster_of, object_name, secret_name
from orchestrator.runtimes.kubernetes.spec import image_of_pods
from orchestrator.runtimes.labels import NAME


def objects_of_start(
    replica: ReplicaRef, artifacts: Artifacts, name: str, secrets: Mapping[str, Secret]
) -> Iterator[Manifest]:
    """Yield the objects to apply: the rendered manifests, and the Secret, which no manifest contains."""
    plan = artifacts.plan
    delivery = split_secrets(secrets, api_key_env=plan.server.api_key_env)
    if delivery.config is not None and cluster_of(plan).api_key_secret is None:
        object_metadata = metadata(plan, name, secret_name(plan, name))
        data = {CONFIG: delivery.config.reveal()}
        yield {"apiVersion": "v1", "kind": "Secret", "metadata": object_metadata, "type": "Opaque", "stringData": data}
    for item in objects_of(artifacts, image_of_pods(artifacts).reference, name, replica.unit_name):
        if item["apiVersion"] == "policy/v1" and not replica.cluster.ask("get", "--raw", "/apis/policy/v1").ok:
            warn("this Kubernetes is older than 1.21: draining the node evicts the server")
            continue
        yield item


def create_deployment(cluster: Cluster, deployment: Manifest) -> Mapping[str, Any]:
    """Return the Deployment as created. Raises NameTakenError, or StartError if the cluster rejects it."""
    done, meta = cluster.create(deployment), deployment["metadata"]
    if done.ok:
        name, in_cluster = meta["labels"][NAME], meta["name"]
        if in_cluster == object_name(name) != name:  # with replicas, only the first one prints it
            note(f"the objects of `{name}` are named `{in_cluster}`: Kubernetes allows no dots and no long names")
        created: Mapping[str, Any] = json.loads(done.stdout)
        return created
    if "AlreadyExists" not in done.stderr:
        require_applied(done)
    hint = f"choose another `--name`; {cluster.command_text('get', 'deployment', meta['name'])} shows it"
    raise NameTakenError(f"`{meta['labels'][NAME]}` exists in namespace `{cluster.namespace}`", hint=hint)


def require_applied(applied: CompletedProgram) -> None:
    """Raise StartError if the cluster rejected the objects."""
    if not applied.ok:
        text = "\n".join(f"  {line}" for line in applied.stderr.strip().splitlines())
        hint = "change the setting that the message names; `deploy render PROFILE` shows the objects"
        raise StartError("the cluster rejected the server", details=text, hint=hint)
