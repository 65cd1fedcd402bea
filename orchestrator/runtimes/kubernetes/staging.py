"""The Job that brings a checkpoint into a cluster: this tool's own `deploy stage`, so its receipt is the same."""

import hashlib
import json
from typing import Final

from orchestrator.plan.plan import Kubernetes, Plan
from orchestrator.runtimes.kubernetes.manifests import (
    Manifest,
    cluster_of,
    escape_dollar,
    metadata,
    model_path,
    models_volume,
    placement,
)
from orchestrator.runtimes.kubernetes.record import STAGES, object_name

_TOKEN: Final = "/run/secrets/hub"  # noqa: S105 - where it is
_TRIES: Final = 20  # a download goes on where it was cut, so that each of them gets on


def staging_job(plan: Plan, name: str) -> Manifest | None:
    """The Job, None where the checkpoint has to be there: no image with this tool is named, or no hub has it.

    A Job cannot be changed: another checkpoint or image makes one of another name.
    """
    cluster = cluster_of(plan)
    if cluster.stage_image is None or plan.model.source.kind != "hub":
        return None
    template = {"metadata": {"labels": {STAGES: name}}, "spec": _pod(plan, cluster, cluster.stage_image)}
    spec = {"backoffLimit": _TRIES, "template": template}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    about = metadata(plan, name, called=f"{object_name(name)}-stage-{digest}")
    about["labels"][STAGES] = name
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def _pod(plan: Plan, cluster: Kubernetes, image: str) -> Manifest:
    models, at = models_volume(plan)
    mounts: list[Manifest] = [{"name": models["name"], "mountPath": at}]
    volumes = [models]
    script = 'exec deploy "$@"'
    if cluster.token_secret:  # read when it runs: a variable of the pod would be shown by whoever describes it
        script = f'HF_TOKEN="$(cat {_TOKEN}/token)" && export HF_TOKEN && {script}'
        volumes.append({"name": "hub", "secret": {"secretName": cluster.token_secret, "defaultMode": 0o400}})
        mounts.append({"name": "hub", "mountPath": _TOKEN, "readOnly": True})
    return {
        **placement(cluster),
        "restartPolicy": "OnFailure",
        "containers": [
            {
                "name": "stage",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", escape_dollar(script), "deploy"],
                "args": [escape_dollar(word) for word in _stage(plan)],
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _stage(plan: Plan) -> list[str]:
    """`deploy stage` of this very checkpoint, whatever the image's own files say of the model."""
    source = plan.model.source
    said = [f"model={plan.model.name}", "model.origin.kind=hub", f"model.origin.location={source.location}"]
    revision = ["--revision", source.revision] if source.revision else []
    return ["stage", plan.profile, "--dir", model_path(plan), *(w for s in said for w in ("--set", s)), *revision]
