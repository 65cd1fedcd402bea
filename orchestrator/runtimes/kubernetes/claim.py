"""Instructions for filling a persistent volume claim with a checkpoint, which this tool leaves to the user."""

import json
from typing import Final

from orchestrator.plan.plan import Plan
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.pod import MODELS, cluster_of, model_path
from orchestrator.runtimes.kubernetes.security import level_of, pod_security

_POD: Final = "deploy-fill"
_IMAGE: Final = "python:3.12-slim"
_RUN: Final = 'pip install huggingface_hub && exec python -c "$0" "$@"'
# A profile may abbreviate a commit, but the hub requires the full hash.
_DOWNLOAD: Final = (
    "import sys; from huggingface_hub import HfApi; hub = HfApi(); name, said, to = sys.argv[1:]; "
    "commits = [each.commit_id for each in hub.list_repo_commits(name)]; "
    "commit = next((each for each in commits if each.startswith(said)), said); "
    "hub.snapshot_download(name, revision=commit, local_dir=to)"
)


def how_to_fill(plan: Plan) -> str:
    """Return the command that downloads the plan's checkpoint into its claim; prose if no hub has it."""
    cluster, source = cluster_of(plan), plan.model.checkpoint
    if source.source == "local":
        return f"copy `{source.path}` to `{plan.model.name}` in the claim"
    if source.source != "hub":
        return f"`deploy stage {plan.profile}` downloads it; copy its directory to `{plan.model.name}` in the claim"
    security = pod_security(plan, level_of(plan))
    container = {
        "securityContext": security.container,
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - of that pod
        "name": _POD,
        "image": _IMAGE,
        "command": ["sh", "-c", _RUN, _DOWNLOAD, source.path, source.revision or "main", model_path(plan)],
        "volumeMounts": [{"name": "models", "mountPath": MODELS}],
    }
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": cluster.weights.pvc}}
    owner = {"fsGroup": cluster.run_as_user} if security.env else {}
    spec = {"securityContext": {**security.pod, **owner}, "containers": [container], "volumes": [volume]}
    pod = {"apiVersion": "v1", "spec": spec}
    namespace = Cluster(cluster.context or "", cluster.namespace)
    return namespace.shown("run", _POD, "--restart=Never", f"--image={_IMAGE}", f"--overrides={json.dumps(pod)}")
