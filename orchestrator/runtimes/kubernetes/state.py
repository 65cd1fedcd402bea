"""The state of a server, from its objects at the API server. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from orchestrator.engine.server_args import ArgumentRejection, first_rejection
from orchestrator.runtimes.base import NOT_FOUND, ServerState, Status
from orchestrator.runtimes.kubernetes.record import ARGUMENTS, CHECKPOINT, CONTAINER

Seen: TypeAlias = Mapping[str, Any]  # Any: JSON of the API

# The kubelet's reasons for a container that cannot start until a person changes something (kubelet, images/types.go,
# kuberuntime_container.go); it gives the same reasons for its own retries.
_WAIT_REASONS: Final[Mapping[str, str]] = {
    "ErrImagePull": "cannot pull its image",
    "ImagePullBackOff": "cannot pull its image",
    "RegistryUnavailable": "cannot pull its image",
    "InvalidImageName": "invalid image name",
    "ErrImageNeverPull": "the node does not have its image, and `image_pull_policy` is Never",
    "CreateContainerConfigError": "cannot create its container",
    "CreateContainerError": "cannot create its container",
    "RunContainerError": "cannot start its container",
    "StartError": "cannot start its container",
}
_REJECTED: Final = 3  # exit code of the program that validates the arguments
_CRASH_LOOP: Final = "CrashLoopBackOff"
_MOUNTS: Final = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_SANDBOX: Final = ("FailedCreatePodSandBox",)
_LIVENESS: Final = "Liveness probe failed: "  # the prefix of a probe's message (kubelet, prober.go)
_NOT_STARTED: Final = "failed startup probe, will be restarted"  # of a container (kuberuntime_container.go)


@dataclass(frozen=True, kw_only=True)
class PodView:
    """A server's pod (during a replacement, the newest one) and the warnings about it."""

    pod: Seen
    events: Sequence[Seen] = ()
    lost: Seen | None = None  # the pod that it replaced, if that pod failed or was evicted

    @property
    def name(self) -> str:
        """The name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def container(self) -> Seen:
        """The status of the server's container; empty before a node has accepted the pod."""
        statuses = self.pod.get("status", {}).get("containerStatuses", ())
        return next((status for status in statuses if status["name"] == CONTAINER), {})

    @property
    def runs_since(self) -> str | None:
        """The start time of the server's process, None if it is not running."""
        started = self.container.get("state", {}).get("running", {}).get("startedAt")
        return str(started) if started else None

    @property
    def restarts(self) -> int:
        """The number of restarts of the container."""
        return int(self.container.get("restartCount", 0))

    @property
    def is_starting(self) -> bool:
        """Whether the pod has a node, but its container is not running."""
        return bool(self.pod.get("spec", {}).get("nodeName")) and self.runs_since is None

    @property
    def warns(self) -> bool:
        """Whether to request warnings: before the first container starts, and after a restart."""
        steps = self.pod.get("status", {}).get("initContainerStatuses", ())
        return self.restarts > 0 or (self.is_starting and not any(map(_has_run, steps)))


def is_over(pod: Seen) -> bool:
    """Return whether all containers of a deleted pod have ended; its kubelet keeps the object for up to 10 s more."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    ended = [status for status in statuses if "running" not in status["state"] and _last_end(status) is not None]
    return bool(pod["metadata"].get("deletionTimestamp") and statuses and len(ended) == len(statuses))


def has_started(pod: Seen) -> bool:
    """Return whether any container of the pod was ever started."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return any(map(_has_run, statuses))


def _has_run(container: Seen) -> bool:
    return "running" in container["state"] or _last_end(container) is not None


def pod_view(pods: Sequence[Seen]) -> PodView | None:
    """Return the view of a server from all of its pods."""
    if (pod := newest(pods)) is None:
        return None
    return PodView(pod=pod, lost=_latest([item for item in pods if _has_failed(item) and item is not pod]))


def newest(pods: Sequence[Seen]) -> Seen | None:
    """Return the newest pod; a terminating or failed pod only if there is no other."""
    pods = [pod for pod in pods if not is_over(pod)]
    stays = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    return _latest([pod for pod in stays if not _has_failed(pod)] or stays or pods)


def _latest(pods: Sequence[Seen]) -> Seen | None:
    return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)


def _has_failed(pod: Seen) -> bool:
    """Return whether the pod has ended for good; its Deployment creates another."""
    return pod.get("status", {}).get("phase") in {"Failed", "Succeeded"}


def server_state(deployment: Seen | None, view: PodView | None) -> ServerState:
    """Return the state of a server from its Deployment and its pod.

    PENDING means that the server has never run in this pod; the detail has the reason. A deleted Deployment may leave
    a pod that never started: the cluster sometimes creates one more while it deletes the others.
    """
    if deployment is None:
        return NOT_FOUND if view is None or not has_started(view.pod) else _ending(view)
    if view is None:
        if deployment["spec"].get("replicas") == 0:
            return _exited("the Deployment was scaled to 0")
        return _pending(_pod_creation_error(deployment) or "waiting for its pod")
    state = _ending(view) if view.pod["metadata"].get("deletionTimestamp") else _of_pod(view)
    if view.lost is None:
        return state
    return replace(state, detail="; ".join(filter(None, [state.detail, f"its previous pod {_failed(view.lost)}"])))


def _of_pod(view: PodView) -> ServerState:
    if _has_failed(view.pod):
        return _exited(f"its pod {_failed(view.pod)}; a replacement is pending")
    if (since := view.runs_since) is not None:
        return _running(view, since)
    if view.restarts or _last_end(view.container) is not None:
        return _between(view)
    rejection = rejection_in(view.pod)
    return replace(
        _pending(scheduling_problem(None, view) or _waits_for(view)),
        rejection=rejection,
        unschedulable=rejection is not None,
    )


def rejection_in(pod: Seen) -> ArgumentRejection | None:
    """Return the arguments that the engine of a pod rejects; None if it accepts them or has not finished."""
    for status in pod.get("status", {}).get("initContainerStatuses", ()):
        ended = _last_end(status) or {}
        if status["name"] == ARGUMENTS and ended.get("exitCode") == _REJECTED:
            with suppress(ValueError):
                return first_rejection(str(ended.get("message", "")))
    return None


def scheduling_problem(deployment: Seen | None, view: PodView | None) -> str:
    """Return why no pod can start without intervention; "" if no problem is known."""
    if view is None:
        return _pod_creation_error(deployment) if deployment is not None else ""
    return next(_troubles(view), "")


def _troubles(view: PodView) -> Iterator[str]:
    yield from _wait_reasons(view.pod)
    for reasons, message in ((_MOUNTS, "cannot mount a volume"), (_SANDBOX, "the node cannot create its pod")):
        messages = [str(event.get("message", "")) for event in view.events if event.get("reason") in reasons]
        if messages and view.is_starting:
            yield f"{message}: {messages[-1]}"


def _wait_reasons(pod: Seen) -> Iterator[str]:
    """Yield the reasons that keep a pod from a node, or its containers from starting."""
    status = pod.get("status", {})
    if (rejection := rejection_in(pod)) is not None:
        yield rejection.summary
    for item in status.get("initContainerStatuses", ()):
        ended = _last_end(item) if item["name"] == CHECKPOINT else None
        if ended is not None and ended.get("exitCode"):
            yield f"its checkpoint is missing: {ended.get('message', '')}"
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"no node accepts it: {condition.get('message', condition.get('reason', ''))}"
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        if message := _WAIT_REASONS.get(waiting.get("reason", "")):
            yield f"{message}: {waiting.get('message') or waiting['reason']}"


def _pod_creation_error(deployment: Seen) -> str:
    """Return why no pod was created: a quota, a policy, a limit of the namespace."""
    for condition in deployment.get("status", {}).get("conditions", ()):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return f"the cluster creates no pod: {condition.get('message', '')}"
    return ""


def _waits_for(view: PodView) -> str:
    if not view.is_starting:
        return "waiting for a node"
    node = view.pod["spec"]["nodeName"]
    steps = view.pod.get("status", {}).get("initContainerStatuses", ())
    if any(step["name"] == ARGUMENTS and "running" in step.get("state", {}) for step in steps):
        return f"sglang is checking its arguments on {node}"
    return f"waiting for its image and volumes on {node}"


def _pending(detail: str) -> ServerState:
    return ServerState(status=Status.PENDING, detail=_one_line(detail))


def _running(view: PodView, since: str) -> ServerState:
    if _is_out_of_sight(view):
        node = view.pod.get("spec", {}).get("nodeName", "")
        detail = f"its node {node} does not answer the cluster: the state of the server is unknown"
        return replace(_exited(detail), status=Status.UNKNOWN, restarts=view.restarts, started_at=_utc(since))
    last = view.container.get("lastState", {}).get("terminated")
    detail = (
        f"restarted {view.restarts} times; before the last restart it {_ended(last)}{_failed_probe_message(view, last)}"
        if last
        else ""
    )
    return ServerState(status=Status.RUNNING, restarts=view.restarts, started_at=_utc(since), detail=detail)


def _is_out_of_sight(view: PodView) -> bool:
    """Return whether the node controller, not the kubelet, has marked the pod not ready (MarkPodsNotReady)."""
    conditions = {item["type"]: item["status"] for item in view.pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "False" and conditions.get("ContainersReady") == "True"


def _failed(pod: Seen) -> str:
    """Return why a pod has ended (core/v1 PodStatus): `was evicted from node-a: the node was low on memory`."""
    status, node = pod.get("status", {}), pod.get("spec", {}).get("nodeName", "no node")
    reason = status.get("reason") or status.get("phase", "")
    message = f"was evicted from {node}" if reason == "Evicted" else f"exited on {node} ({reason})"
    return _one_line(": ".join(filter(None, [message, status.get("message", "")])))


def _between(view: PodView) -> ServerState:
    """Return the state between two runs: Kubernetes restarts the container with increasing delays."""
    last = _last_end(view.container) or {}
    next_start = "restart pending"
    if view.container.get("state", {}).get("waiting", {}).get("reason") == _CRASH_LOOP:
        next_start = "restarted with increasing delays (CrashLoopBackOff)"
    return ServerState(
        status=Status.EXITED,
        exit_code=last.get("exitCode"),
        restarts=view.restarts,
        started_at=_utc(last["startedAt"]) if last.get("startedAt") else None,
        ended_at=_utc(last["finishedAt"]) if last.get("finishedAt") else None,
        detail=f"it {_ended(last)}{_failed_probe_message(view, last)}, {next_start}",
    )


def _ending(view: PodView) -> ServerState:
    node_lost = ", which does not answer the cluster" if view.pod.get("status", {}).get("reason") == "NodeLost" else ""
    return _exited(f"its pod is being deleted on {view.pod.get('spec', {}).get('nodeName', 'no node')}{node_lost}")


def _exited(detail: str) -> ServerState:
    return ServerState(status=Status.EXITED, detail=detail)


def _last_end(container: Seen) -> Seen | None:
    """Return the last termination of the container, None if it never terminated."""
    for state in (container.get("state", {}), container.get("lastState", {})):
        if (ended := state.get("terminated")) is not None:
            return dict(ended)
    return None


def _ended(last: Seen) -> str:
    """Return how a run of the container ended (core/v1 ContainerStateTerminated)."""
    reason, code = last.get("reason", ""), last.get("exitCode")
    if reason == "OOMKilled":
        return "was killed: its pod exceeded its memory limit"
    return f"exited with code {code}" if code is not None else "exited"


def _failed_probe_message(view: PodView, last: Seen) -> str:
    """Return the message of the probe that ended a run of the container."""
    began, ended = str(last.get("startedAt", "")), str(last.get("finishedAt", ""))
    events = [event for event in view.events if began <= str(event.get("lastTimestamp") or "") <= ended]
    messages = [str(event.get("message", "")) for event in events]
    if failed := [message for message in messages if message.startswith(_LIVENESS)]:
        # Kubernetes 1.20 sends no text if the probe timed out.
        reason = _one_line(failed[-1].removeprefix(_LIVENESS)) or "it timed out"
        return f" (its livenessProbe failed: {reason})"
    is_late = any(_NOT_STARTED in message for message in messages)
    return " (it was stopped because it was not ready in time; raise `timeouts.progress_deadline`)" if is_late else ""


def _utc(moment: str) -> str:
    """Return a time of the API (RFC 3339, UTC) as ISO 8601 with its zone."""
    return moment.removesuffix("Z") + "+00:00" if moment.endswith("Z") else moment


def _one_line(text: str) -> str:
    return " ".join(text.split())
