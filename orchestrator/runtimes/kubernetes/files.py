"""`kubernetes.yaml`: the input of `kubectl apply`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.subprocesses import quote
from orchestrator.core.text import printable
from orchestrator.core.yaml_document import dump_yaml
from orchestrator.engine.options import Meaning
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.render.artifacts import Artifacts, RenderedFile
from orchestrator.render.scripts import text_file
from orchestrator.runtimes.kubernetes.autoscaling import autoscaling_notes, autoscaling_of
from orchestrator.runtimes.kubernetes.manifests import objects_of
from orchestrator.runtimes.kubernetes.pod import CONFIG, cluster_of, copy_to_claim, secret_name
from orchestrator.runtimes.kubernetes.security import required_level


@dataclass(frozen=True, kw_only=True)
class PodImage:
    """The image of a plan's pods."""

    reference: str
    is_local_build: bool  # and in no registry


def manifest_files(artifacts: Artifacts, name: str) -> tuple[RenderedFile, ...]:
    """Return the objects of the server as a file. Raises ProfileError if no cluster can pull its image."""
    plan, image = artifacts.plan, image_of_pods(artifacts)
    replicas = artifacts.named_replicas[: 1 if autoscaling_of(plan) else None]
    parts = (*replicas, ("", artifacts))
    found = chain.from_iterable(objects_of(item, image.reference, name, part) for part, item in parts)
    head = "".join(f"# {' '.join(printable(line).splitlines())}".rstrip() + "\n" for line in _head(plan, name))
    documents = "---\n".join(dump_yaml(item, width=1000) for item in found)
    return (text_file("kubernetes.yaml", f"{head}---\n{documents}"),)


def image_of_pods(artifacts: Artifacts) -> PodImage:
    """Return the image of artifacts that were rendered for a cluster. Raises ProfileError if no cluster can pull it."""
    plan, image = artifacts.plan, artifacts.spec
    assert isinstance(image, PodImage)  # noqa: S101 - for the type: `render` puts it there
    named = None if image.is_local_build else image.reference
    if problems := tuple(image_problems(cluster_of(plan), named)):
        raise ProfileError(f"cannot render profile `{plan.profile}` for a cluster", problems=problems)
    return image


def image_problems(cluster: KubernetesSection, image: str | None) -> Iterator[Problem]:
    """Yield the problem of an image that the nodes cannot pull; None is one that is built on this host."""
    pushed = "`deploy build PROFILE --tag registry.example/served:1 --push` prints its name; pass that with `--image`"
    on_node = "`--set kubernetes.image_pull_policy=Never` if the nodes have the image"
    if cluster.image_pull_policy == "Never":
        return
    if image is None:
        yield Problem("the image that `deploy` builds is in no registry", "--image", f"{pushed}; or {on_node}")
    elif "@sha256:" not in image:
        what = f"`{image}` has no registry digest; a cluster needs the image by digest"
        yield Problem(what, "--image", f"{pushed}; or {on_node}")


def _head(plan: Plan, name: str) -> Iterator[str]:
    yield f"{plan.profile}: {plan.description}"
    yield "`kubectl apply --server-side -f kubernetes.yaml` starts it"
    if any(replica_plan.layout.nodes > 1 for replica_plan in replica_plans(plan)):
        yield "the cluster needs LeaderWorkerSet 0.6 or newer (lws.sigs.k8s.io/docs/installation)"
    yield from autoscaling_notes(plan)
    level, reason = required_level(plan)
    yield f"the namespace must admit the Pod Security Standard {level}: {reason}"
    if limits := ", ".join(limit.name for limit in plan.hardware.container.ulimits):
        yield f"limits ({limits}): a pod has the limits of its node's container runtime and cannot request others"
    cluster = cluster_of(plan)
    if cluster.weights.pvc:
        yield f"before that, once: fill claim `{cluster.weights.pvc}`: {copy_to_claim(plan)}"
    if variable := plan.server.api_key_env:
        argv = ["kubectl", "create", "secret", "generic", secret_name(plan, name), "--namespace", cluster.namespace]
        argv += [f"--from-file={CONFIG}=/dev/stdin", *(["--context", cluster.context] if cluster.context else [])]
        yield f"before that, once: store the API key of ${variable}, without a file or an argument"
        yield f"""  printf '{{"{Meaning.API_KEY}": "%s"}}\\n' "${variable}" | {quote(argv)}"""
