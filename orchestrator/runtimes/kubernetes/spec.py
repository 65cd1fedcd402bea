"""Rules, settings, artifacts and `kubernetes.yaml` of a plan for Kubernetes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.subprocesses import quote
from orchestrator.core.text import printable
from orchestrator.core.yaml_document import dump_yaml
from orchestrator.engine.options import Meaning
from orchestrator.plan.patches import profile_patches
from orchestrator.plan.placement import joins_no_gateway
from orchestrator.plan.plan import Gateway, Plan
from orchestrator.plan.roles import role_profiles
from orchestrator.plan.rules import KEY_HINT, RuleContext, RuntimeSettings
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.profiles.schema import Profile
from orchestrator.render.artifacts import Artifacts, RenderedFile, render_units, server_command
from orchestrator.render.scripts import text_file
from orchestrator.runtimes.base import HostRef, PodTargets, PreparedRun
from orchestrator.runtimes.image import has_image, image_of
from orchestrator.runtimes.kubernetes.autoscaling import autoscaling_notes, autoscaling_of, autoscaling_problems
from orchestrator.runtimes.kubernetes.manifests import ANY_ADDRESS, command_of_gateway, objects_of
from orchestrator.runtimes.kubernetes.probes import hang_seconds
from orchestrator.runtimes.kubernetes.record import (
    CONFIG,
    METRICS_PORT,
    PORT,
    REPLICA,
    ROLE,
    cluster_of,
    copy_to_claim,
    model_path,
    object_name,
    secret_name,
    selected,
)
from orchestrator.runtimes.kubernetes.security import required_level
from orchestrator.runtimes.labels import GATEWAY

# Labels of a discovered pod: its name, and the label `deploy.unit` with a `_` for each character that Prometheus does
# not allow (prometheus.io/docs/prometheus/latest/configuration/configuration, kubernetes_sd_config, role pod).
_POD_NAME: Final = "__meta_kubernetes_pod_name"
_POD_REPLICA: Final = "__meta_kubernetes_pod_label_deploy_unit"


@dataclass(frozen=True, kw_only=True)
class PodImage:
    """The image of a plan's pods."""

    reference: str
    is_local_build: bool  # and so in no registry


def weights_are_reachable(context: RuleContext) -> Iterator[Problem]:
    """Check that the pods have a checkpoint source: a claim, or a directory on their node."""
    weights, origin = context.profile.kubernetes.weights, context.profile.model.checkpoint.source
    if origin != "local" and not weights.pvc and not weights.host_path:
        message = "no checkpoint location is set for the pods"
        hint = "`--set kubernetes.weights.pvc=CLAIM`, or `--set kubernetes.weights.host_path=/DIR` on the nodes"
        yield Problem(message, context.location("kubernetes", "weights") or context.location("runtime"), hint)


def asks_for_a_key(context: RuleContext) -> Iterator[Problem]:
    """Check that a server open to its nodes' network or beyond the cluster has an API key, or an explicit exception."""
    server, service = context.profile.server, context.profile.kubernetes.service_type
    if service != "ClusterIP" and server.api_key_env is None and not server.allow_unauthenticated:
        yield Problem(
            f"a Service of type {service} exposes the server outside the cluster without an API key",
            context.location("kubernetes", "service_type"),
            KEY_HINT,
        )
    elif server.api_key_env is None and not server.allow_unauthenticated:
        if section := _ranks_on_nodes(context.profile):
            subject, key = "a server on several nodes", section.split(".")
        elif (transfer := context.profile.layout.transfer) is not None and transfer.network != "tcp":
            subject, key = "a server that sends its KV cache by RDMA", ["layout", "transfer"]
        else:
            return
        problem = f"{subject} is open to the network of the nodes and has no API key"
        yield Problem(problem, context.location(*key), KEY_HINT)


def _ranks_on_nodes(profile: Profile) -> str:
    """Return the profile's key that spreads a server over several nodes; "" if no key does."""
    roles = role_profiles(profile)
    spread = [f"layout.{name}.nodes" for name, role in roles.items() if role.layout.nodes.value > 1]
    return next(iter(spread), "") if roles else "layout.nodes" * (profile.layout.nodes.value > 1)


def user_can_open_the_gpus(context: RuleContext) -> Iterator[Problem]:
    """Check that, on AMD, a user who is not root has the ids of the GPU devices' groups."""
    cluster, hardware = context.profile.kubernetes, context.profile.hardware
    if cluster.pod_security == "restricted" and hardware.vendor == "amd" and not cluster.supplemental_groups:
        message = f"as user {cluster.run_as_user}, the server cannot open /dev/kfd and /dev/dri/renderD* of the node"
        hint = "on the node, `stat -c %g /dev/kfd` prints the id: `--set 'kubernetes.supplemental_groups=[109]'`"
        yield Problem(message, context.location("kubernetes", "pod_security"), hint)


def image_can_be_pulled(context: RuleContext) -> Iterator[Problem]:
    """Check that a prebuilt image has a digest. Without one, an image is built; `built_image_problems` reports that."""
    if context.image is not None:
        yield from image_problems(context.profile.kubernetes, context.image)


def config_is_unchanged(context: RuleContext) -> Iterator[Problem]:
    """Check that no patch changes the checkpoint's config.json, which is in the cluster."""
    uses = profile_patches(context.profile, context.ledger, {})
    if ids := [use.id for use in uses if use.kind == "config" and use.expected]:
        message = f"patch `{', '.join(ids)}` changes the checkpoint's config.json, which is in the cluster"
        hint = "use an engine that needs no such patch, such as sglang 0.5.16; or `--set runtime=docker`"
        yield Problem(message, context.location("engine"), hint)


RULES: Final = (
    has_image,
    weights_are_reachable,
    asks_for_a_key,
    image_can_be_pulled,
    config_is_unchanged,
    user_can_open_the_gpus,
    joins_no_gateway,
    autoscaling_problems,
)


def built_image_problems(profile: Profile) -> Iterator[Problem]:
    """Yield the problems of a start from an image built on this host."""
    return image_problems(profile.kubernetes, None)


def start_problems(profile: Profile) -> Iterator[Problem]:
    """Yield a problem for a server on several nodes, or with autoscaling, which `deploy` renders but does not start."""
    if profile.kubernetes.autoscaling is not None:
        hint = "`deploy render PROFILE --output keda`, then `kubectl apply --server-side -f keda/kubernetes.yaml`"
        yield Problem("`up` cannot start autoscaled replicas: KEDA sets their number", "kubernetes.autoscaling", hint)
    if key := _ranks_on_nodes(profile):
        hint = "`deploy render PROFILE --output lws`, then `kubectl apply --server-side -f lws/kubernetes.yaml`"
        yield Problem("`up` cannot start a LeaderWorkerSet (a server on several nodes)", key, hint)


def settings(profile: Profile) -> RuntimeSettings:
    """Return the settings from the profile's section. Each pod has its own GPUs and ports.

    Prefill and decode pods, however, may share a node's network.
    """
    return RuntimeSettings(kubernetes=profile.kubernetes, one_node=False, same_port=not role_profiles(profile))


def rendered(plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
    """Return the command, which listens on all addresses of its pod, and the image with its build context."""
    build, image = image_of(plan, inputs)
    spec = PodImage(reference=image, is_local_build=build is not None)

    def server(item: Plan) -> Artifacts:
        command = server_command(item, model_path=model_path(item), host=ANY_ADDRESS)
        return Artifacts(plan=item, command=command, build=None, spec=spec)

    def gateway(_: Gateway) -> Artifacts:
        command = command_of_gateway(plan, plan.profile)  # the server's name is set later
        return Artifacts(plan=plan, command=command, build=None, spec=spec)

    return replace(render_units(plan, server, gateway), build=build)


def prepare(artifacts: Artifacts, host_ref: HostRef) -> PreparedRun:  # noqa: ARG001 - the cluster has its own
    """Return the artifacts unchanged: the nodes pull the image. Raises ProfileError if they cannot."""
    return PreparedRun(artifacts=artifacts, records={"image.json": {"tag": image_of_pods(artifacts).reference}})


def monitoring_targets(plan: Plan, name: str) -> PodTargets:
    """Return the pods of the servers, not of the gateway, which has a role label of its own.

    Autoscaled replicas are the pods of one Deployment, so only their names differ.
    """
    has_gateway, autoscaling = plan.gateway is not None, autoscaling_of(plan)
    roles = tuple(role.role.value for role in plan.roles)
    label = _POD_NAME if autoscaling else _POD_REPLICA
    return PodTargets(
        namespace=cluster_of(plan).namespace,
        labels=selected(name) | ({ROLE: REPLICA} if has_gateway and not roles else {}),
        one_of={ROLE: roles} if roles else {},
        port=PORT,
        called=object_name(name),
        replica=label if has_gateway else None,
        min_replicas=autoscaling.min_replicas if autoscaling else None,
        gateway=selected(name, GATEWAY) if has_gateway and cluster_of(plan).allowed_scrapers else None,
        gateway_port=METRICS_PORT,
    )


def restart_owner(plan: Plan) -> str:
    """Return the component that restarts the server."""
    hangs = f"a server with a rank that makes no progress for {hang_seconds(plan)} s (its livenessProbe)"
    return f"the cluster restarts an exited server at once, and {hangs}"


def manifest_files(artifacts: Artifacts, name: str) -> tuple[RenderedFile, ...]:
    """Return the objects of the server as a file. Raises ProfileError if no cluster can pull its image."""
    plan, image = artifacts.plan, image_of_pods(artifacts)
    replicas = artifacts.named_replicas[: 1 if autoscaling_of(plan) else None]
    named_artifacts = (*replicas, ("", artifacts))
    objects = chain.from_iterable(
        objects_of(item, image.reference, name, unit_name) for unit_name, item in named_artifacts
    )
    head = "".join(f"# {' '.join(printable(line).splitlines())}".rstrip() + "\n" for line in _head(plan, name))
    documents = "---\n".join(dump_yaml(item, width=1000) for item in objects)
    return (text_file("kubernetes.yaml", f"{head}---\n{documents}"),)


def image_of_pods(artifacts: Artifacts) -> PodImage:
    """Return the image of artifacts rendered for a cluster. Raises ProfileError if no cluster can pull it."""
    plan, image = artifacts.plan, artifacts.spec
    assert isinstance(image, PodImage)  # noqa: S101 - for the type: `render` puts it there
    reference = None if image.is_local_build else image.reference
    if problems := tuple(image_problems(cluster_of(plan), reference)):
        raise ProfileError(f"cannot render profile `{plan.profile}` for a cluster", problems=problems)
    return image


def image_problems(cluster: KubernetesSection, image: str | None) -> Iterator[Problem]:
    """Yield a problem if the nodes cannot pull the image; None is an image built on this host."""
    pushed = "`deploy build PROFILE --tag registry.example/served:1 --push` prints its name; pass that with `--image`"
    on_node = "`--set kubernetes.image_pull_policy=Never` if the nodes have the image"
    if cluster.image_pull_policy == "Never":
        return
    if image is None:
        yield Problem("the image that `deploy` builds is in no registry", "--image", f"{pushed}; or {on_node}")
    elif "@sha256:" not in image:
        message = f"`{image}` has no registry digest; a cluster needs the image by digest"
        yield Problem(message, "--image", f"{pushed}; or {on_node}")


def _head(plan: Plan, name: str) -> Iterator[str]:
    yield f"{plan.profile}: {plan.description}"
    yield "`kubectl apply --server-side -f kubernetes.yaml` starts it"
    if any(replica_plan.layout.nodes > 1 for replica_plan in plan.servers.values()):
        yield "the cluster needs LeaderWorkerSet 0.6 or newer (lws.sigs.k8s.io/docs/installation)"
    yield from autoscaling_notes(plan)
    level, reason = required_level(plan)
    yield f"the namespace must admit the Pod Security Standard {level}: {reason}"
    if limits := ", ".join(limit.name for limit in plan.hardware.container.ulimits):
        yield f"limits ({limits}): a pod has the limits of its node's container runtime and cannot request others"
    cluster = cluster_of(plan)
    if cluster.weights.pvc:
        yield f"once, before the first start: fill claim `{cluster.weights.pvc}`: {copy_to_claim(plan)}"
    if variable := plan.server.api_key_env:
        argv = ["kubectl", "create", "secret", "generic", secret_name(plan, name), "--namespace", cluster.namespace]
        argv += [f"--from-file={CONFIG}=/dev/stdin", *(["--context", cluster.context] if cluster.context else [])]
        yield f"once, before the first start: store the API key of ${variable}, without a file or an argument"
        yield f"""  printf '{{"{Meaning.API_KEY}": "%s"}}\\n' "${variable}" | {quote(argv)}"""
