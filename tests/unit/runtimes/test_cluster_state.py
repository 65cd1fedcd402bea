"""The state of a server from pods of the API server, in the format of Kubernetes 1.20."""

import json
from typing import Any

import pytest

from orchestrator.runtimes.base import ServerState, Status
from orchestrator.runtimes.kubernetes.state import PodView, newest, pod_view, scheduling_problem, server_state
from orchestrator.runtimes.labels import is_record

DEPLOYMENT: dict[str, Any] = {"kind": "Deployment", "spec": {"replicas": 1}, "status": {}}
STARTED, ENDED = "2026-11-22T10:00:00Z", "2026-11-22T10:05:00Z"


def pod(name: str = "a", *, created: str = STARTED, node: str = "node-a", **status: object) -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"nodeName": node}, "status": status}


def server(**state: object) -> list[dict[str, object]]:
    return [{"name": "sidecar", "state": {}}, {"name": "server", "restartCount": 0, **state}]


def state_of(pod_object: dict[str, Any], *events: dict[str, str]) -> ServerState:
    return server_state(DEPLOYMENT, PodView(pod=pod_object, events=events))


def test_running_pod_has_start_time() -> None:
    result = state_of(pod(containerStatuses=server(state={"running": {"startedAt": STARTED}})))
    assert (result.status, result.started_at, result.detail) == (Status.RUNNING, "2026-11-22T10:00:00+00:00", "")


def test_restarted_pod_names_cause_of_last_exit() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    restarted = server(state={"running": {"startedAt": ENDED}}, lastState=last, restartCount=2)
    result = state_of(pod(containerStatuses=restarted))
    assert (result.status, result.restarts) == (Status.RUNNING, 2)
    assert (
        result.detail == "restarted 2 times; before the last restart it was killed: its pod exceeded its memory limit"
    )


def test_pod_killed_by_probe_shows_probe_message() -> None:
    def event(message: str, at: str) -> dict[str, str]:
        return {"reason": "Unhealthy", "message": message, "lastTimestamp": at}

    events = (
        event("Liveness probe failed: rank 1 makes no progress: no response within 20 s\n", "2026-11-22T10:04:50Z"),
        event("Readiness probe failed: 503", ENDED),
        event("Liveness probe failed: of a run before", "2026-11-22T09:00:00Z"),
    )
    last = {"terminated": {"exitCode": 137, "startedAt": STARTED, "finishedAt": ENDED}}
    text = "exited with code 137 (its livenessProbe failed: rank 1 makes no progress: no response within 20 s)"
    running = pod(containerStatuses=server(state={"running": {"startedAt": ENDED}}, lastState=last, restartCount=1))
    assert state_of(running, *events).detail == f"restarted 1 times; before the last restart it {text}"
    assert "livenessProbe" not in state_of(running, *events[1:]).detail
    waiting = pod(containerStatuses=server(state={"waiting": {}}, lastState=last, restartCount=1))
    assert state_of(waiting, *events).detail == f"it {text}, restart pending"
    startup_failure = event("Container server failed startup probe, will be restarted", "2026-11-22T10:04:55Z")
    assert (
        "because it was not ready in time; raise `timeouts.progress_deadline`"
        in state_of(waiting, startup_failure).detail
    )


def test_crash_looping_pod_is_exited() -> None:
    last = {"terminated": {"exitCode": 3, "startedAt": STARTED, "finishedAt": ENDED}}
    waiting = server(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=last, restartCount=4)
    result = state_of(pod(containerStatuses=waiting))
    assert (result.status, result.exit_code, result.restarts) == (Status.EXITED, 3, 4)
    assert result.ended_at == "2026-11-22T10:05:00+00:00"
    assert "exited with code 3" in result.detail
    assert "CrashLoopBackOff" in result.detail


@pytest.mark.parametrize(
    ("reason", "detail"),
    [
        ("ErrImagePull", "cannot pull its image: why"),
        ("ErrImageNeverPull", "the node does not have its image"),
        ("CreateContainerConfigError", "cannot create its container: why"),
    ],
)
@pytest.mark.parametrize("statuses_key", ["containerStatuses", "initContainerStatuses"])
def test_waiting_container_is_pending_with_reason(reason: str, detail: str, statuses_key: str) -> None:
    waiting = server(state={"waiting": {"reason": reason, "message": "why"}})
    result = state_of(pod(**{statuses_key: waiting}))
    assert result.status is Status.PENDING
    assert result.detail.startswith(detail)


def test_unschedulable_pod_has_one_line_reason() -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes:\n no GPUs"}
    result = state_of(pod(node="", conditions=[unplaced]))
    assert result.detail == "no node accepts it: 0/3 nodes: no GPUs"


def test_mount_failure_is_reported_until_server_runs() -> None:
    event = {"reason": "FailedMount", "message": "not a directory"}
    creating = pod(containerStatuses=server(state={"waiting": {"reason": "ContainerCreating"}}))
    assert state_of(creating, event).detail == "cannot mount a volume: not a directory"
    running = pod(containerStatuses=server(state={"running": {"startedAt": STARTED}}))
    assert state_of(running, event).status is Status.RUNNING


@pytest.mark.parametrize(
    ("pod_object", "detail"),
    [
        (pod(node=""), "waiting for a node"),
        (pod(), "waiting for its image and volumes on node-a"),
        (
            pod(initContainerStatuses=[{"name": "checkpoint", "state": {"terminated": {"exitCode": 0}}}]),
            "for its image and volumes",
        ),
    ],
)
def test_normal_pending_states_are_no_scheduling_problem(pod_object: dict[str, Any], detail: str) -> None:
    result = state_of(pod_object)
    assert result.status is Status.PENDING
    assert detail in result.detail
    assert not scheduling_problem(DEPLOYMENT, PodView(pod=pod_object))


REJECTION = {
    "kind": "AssertionError",
    "message": "AssertionError",
    "location": "server_args.py:5383",
    "line": "assert self.ep_size > 1",
    "options": ["enable-eplb"],
}


@pytest.mark.parametrize(
    "states",
    [
        {"state": {"terminated": {}}},
        {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {}}},
    ],
)
def test_rejected_arguments_make_pod_unschedulable(states: dict[str, Any]) -> None:
    ended = {"exitCode": 3, "message": json.dumps({"sglang": "0.5.14", "verdicts": [{"rejected": REJECTION}]})}
    reported = {key: {"terminated": ended} if "terminated" in state else state for key, state in states.items()}
    result = state_of(pod(initContainerStatuses=[{"name": "arguments", **reported}]))
    assert (result.status, result.unschedulable) == (Status.PENDING, True)
    assert result.rejection is not None
    assert result.rejection.options == ("enable-eplb",)
    assert result.detail == "sglang rejected its arguments: `assert self.ep_size > 1` (server_args.py:5383)"


@pytest.mark.parametrize(
    ("ended", "detail"),
    [
        ({"exitCode": 137, "message": ""}, "waiting for its image and volumes on node-a"),
        ({"exitCode": 3, "message": "not what the program writes"}, "waiting for its image and volumes on node-a"),
    ],
)
def test_other_init_container_failures_are_not_rejections(ended: dict[str, Any], detail: str) -> None:
    result = state_of(pod(initContainerStatuses=[{"name": "arguments", "state": {"terminated": ended}}]))
    assert (result.rejection, result.unschedulable, result.detail) == (None, False, detail)


def test_running_argument_check_is_pending() -> None:
    result = state_of(pod(initContainerStatuses=[{"name": "arguments", "state": {"running": {}}}]))
    assert result.detail == "sglang is checking its arguments on node-a"


def test_missing_checkpoint_is_pending_with_hint() -> None:
    ended = {"terminated": {"exitCode": 1, "message": "claim `m` has no `glm`; `kubectl run`\n"}}
    for states in ({"state": ended}, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}):
        waiting = pod(initContainerStatuses=[{"name": "checkpoint", **states}])
        result = state_of(waiting)
        assert (result.status, result.unschedulable) == (Status.PENDING, False)
        assert result.detail == "its checkpoint is missing: claim `m` has no `glm`; `kubectl run`"
        assert scheduling_problem(DEPLOYMENT, PodView(pod=waiting))


def test_exceeded_quota_is_pending_with_reason() -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    result = server_state({**DEPLOYMENT, "status": {"conditions": [condition]}}, None)
    assert (result.status, result.detail) == (Status.PENDING, "the cluster creates no pod: exceeded quota: gpus")
    assert scheduling_problem({**DEPLOYMENT, "status": {"conditions": [condition]}}, None) == result.detail
    assert "its pod" in server_state(DEPLOYMENT, None).detail
    assert server_state({**DEPLOYMENT, "spec": {"replicas": 0}}, None).status is Status.EXITED


def evicted(name: str = "a", *, created: str = STARTED) -> dict[str, Any]:
    return pod(name, created=created, phase="Failed", reason="Evicted", message="The node was low on\nmemory.")


def test_eviction_is_reported_until_pod_is_removed() -> None:
    without_replacement = server_state(DEPLOYMENT, pod_view([evicted()]))
    assert (without_replacement.status, without_replacement.detail) == (
        Status.EXITED,
        "its pod was evicted from node-a: The node was low on memory.; a replacement is pending",
    )
    waiting = server_state(DEPLOYMENT, pod_view([evicted(), pod("b", node="")]))
    assert (waiting.status, waiting.detail) == (
        Status.PENDING,
        "waiting for a node; its previous pod was evicted from node-a: The node was low on memory.",
    )
    running = pod("b", containerStatuses=server(state={"running": {"startedAt": STARTED}}))
    replaced = server_state(DEPLOYMENT, pod_view([running, evicted(created=ENDED), evicted("c")]))
    assert (replaced.status, replaced.detail.count("was evicted from node-a")) == (Status.RUNNING, 1)


def test_server_on_unreachable_node_is_unknown() -> None:
    """The node controller changes only `Ready` of the pod; all other fields are the last ones of the kubelet."""
    running = server(state={"running": {"startedAt": STARTED}})
    node_lost = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]
    result = state_of(pod(containerStatuses=running, conditions=node_lost))
    assert result.status is Status.UNKNOWN
    assert "its node node-a does not answer" in result.detail
    loading = [{"type": "ContainersReady", "status": "False"}, {"type": "Ready", "status": "False"}]
    assert state_of(pod(containerStatuses=running, conditions=loading)).status is Status.RUNNING
    terminating = pod(reason="NodeLost", containerStatuses=running)
    terminating["metadata"]["deletionTimestamp"] = ENDED
    assert "being deleted on node-a, which does not answer" in state_of(terminating).detail


def test_deleted_server_is_not_found_without_pod() -> None:
    terminating = pod(containerStatuses=server(state={"running": {"startedAt": STARTED}}))
    terminating["metadata"]["deletionTimestamp"] = ENDED
    assert server_state(None, PodView(pod=terminating)).status is Status.EXITED
    terminating["status"] = {}
    assert server_state(None, PodView(pod=terminating)).status is Status.NOT_FOUND, "it never started and never will"
    assert server_state(None, None).status is Status.NOT_FOUND


@pytest.mark.parametrize("state", ["running", "waiting", "terminated"])
def test_deleted_pod_counts_only_while_container_runs(state: str) -> None:
    last = {"terminated": {"exitCode": 0}} if state == "waiting" else {}
    terminating = pod(containerStatuses=[{"name": "server", "state": {state: {"exitCode": 0}}, "lastState": last}])
    assert newest([terminating]) is terminating
    terminating["metadata"]["deletionTimestamp"] = ENDED
    assert newest([terminating]) is (terminating if state == "running" else None)


def test_newest_pod_is_preferred_to_terminating_pod() -> None:
    terminating, old, new = pod("c", created=ENDED), pod("a"), pod("b", created=ENDED)
    terminating["metadata"]["deletionTimestamp"] = ENDED
    assert newest([terminating, new, old]) is new
    assert newest([terminating]) is terminating
    assert newest([]) is None


@pytest.mark.parametrize("change", ["deploy.plan", "deploy.profile", "deploy.url"])
def test_unmanaged_objects_are_not_servers(change: str) -> None:
    annotations = {"deploy.name": "boxed", "deploy.plan": "0", "deploy.profile": "p", "deploy.url": "http://x:1"}
    assert is_record(annotations)
    assert not is_record({**annotations, change: ""})
    assert not is_record({**annotations, "deploy.url": f"http://x:{'9' * 5000}"})
    assert not is_record({"deploy.name": "boxed"})
    assert not is_record({**annotations, "deploy.name": "../x"})
