"""Plans and manifests for a Kubernetes cluster, with an image in a registry."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, render_artifacts, rendered_files

IMAGE: Final = f"registry.example/sglang@sha256:{'0123456789abcdef' * 4}"
HOST_PATH: Final = "kubernetes.weights.host_path=/srv/models"
MONITORED: Final = "kubernetes.allowed_scrapers=[kubernetes.io/metadata.name=monitoring]"
CASES: Final[Mapping[str, tuple[str, ...]]] = {  # one of each vendor; together they use all settings
    "mi355x-tp4dp2": (
        "kubernetes.namespace=serving",
        "kubernetes.node_selector=[amd.com/gpu.device-id=75a3]",
        "kubernetes.tolerations=[amd.com/gpu:NoSchedule]",
        "kubernetes.weights.pvc=models",
        "server.api_key_env=SGLANG_KEY",
    ),
    "b200-tp8": (
        "kubernetes.runtime_class=nvidia",
        "kubernetes.image_pull_secrets=[registry]",
        "kubernetes.supplemental_groups=[44,109]",
        "kubernetes.cpu=16",
        "kubernetes.memory=64Gi",
        "kubernetes.tolerations=[team=ours:NoExecute]",
        "kubernetes.service_type=NodePort",
        "server.api_key_env=SGLANG_KEY",
        HOST_PATH,
    ),
    "mi355x-tp4x2": ("kubernetes.namespace=serving", MONITORED, "server.api_key_env=SGLANG_KEY", HOST_PATH),
    "cpu-tiny": (HOST_PATH, "kubernetes.image_pull_policy=Never"),
}

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_schema_contents: Final = cache(utils.schema_contents)


def cluster_plan(profile: str, *overrides: str, image: str | None = IMAGE) -> Plan:
    return replace(load(profile, overrides=("runtime=kubernetes", *overrides)).plan, prebuilt_image=image)


def manifest_texts(plan: Plan, name: str | None = None) -> dict[str, str]:
    """Return the rendered manifests by file name."""
    files = rendered_files(render_artifacts(plan), name)
    return {file.path: file.content.decode() for file in files if file.path.endswith(".yaml")}


def all_objects(plan: Plan, name: str | None = None) -> list[dict[str, Any]]:
    return [obj for text in manifest_texts(plan, name).values() for obj in yaml.load_all(text, Loader=_LOADER) if obj]


def check_object(manifest: dict[str, Any], version: str) -> None:
    """Raise ValidationError unless the object matches the schema of this version of Kubernetes.

    Unknown fields, which the API server would silently drop, are errors. The library reads 2 MB of schemas for each
    object; here they are cached.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", _schema_contents)
        kubernetes_validate.validate(manifest, version, strict=True)


def objects(plan: Plan, name: str | None = None) -> dict[str, Any]:
    """Return the rendered objects of one server by kind."""
    return {obj["kind"]: obj for obj in all_objects(plan, name)}


def pod(plan: Plan, name: str | None = None) -> Any:  # noqa: ANN401 - JSON of the API's shape
    """Return the pod spec of the server."""
    return objects(plan, name)["Deployment"]["spec"]["template"]["spec"]
