"""What the API server says of pods, as the state of a server. The shapes are those of Kubernetes 1.20."""

import json
from typing import Any

import pytest

from orchestrator.runtimes.base import ServerState, Status
from orchestrator.runtimes.kubernetes.state import PodView, newest, pod_view, scheduling_problem, server_state
from orchestrator.runtimes.labels import is_record

DEPLOYMENT: dict[str, Any] = {"kind": "Deployment", "spec": {"replicas": 1}, "status": {}}
BEGAN, ENDED = "2026-11-22T10:00:00Z", "2026-11-22T10:05:00Z"


def pod(name: str = "a", *, created: str = BEGAN, node: str = "node-a", **status: object) -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"nodeName": node}, "status": status}


def server(**state: object) -> list[dict[str, object]]:
    return [{"name": "sidecar", "state": {}}, {"name": "server", "restartCount": 0, **state}]


def state_of(seen: dict[str, Any], *events: dict[str, str]) -> ServerState:
    return server_state(DEPLOYMENT, PodView(pod=seen, events=events))


def test_running_pod_has_start_time() -> None:
    found = state_of(pod(containerStatuses=server(state={"running": {"startedAt": BEGAN}})))
    assert (found.status, found.started_at, found.detail) == (Status.RUNNING, "2026-11-22T10:00:00+00:00", "")


def test_restarted_pod_names_cause_of_last_exit() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    again = server(state={"running": {"startedAt": ENDED}}, lastState=last, restartCount=2)
    found = state_of(pod(containerStatuses=again))
    assert (found.status, found.restarts) == (Status.RUNNING, 2)
    assert found.detail == "restarted 2 times; before the last restart it was killed: its pod exceeded its memory limit"


def test_pod_killed_by_probe_shows_probe_message() -> None:
    def event(message: str, at: str) -> dict[str, str]:
        return {"reason": "Unhealthy", "message": message, "lastTimestamp": at}

    events = (
        event("Liveness probe failed: rank 1 makes no progress: no response within 20 s\n", "2026-11-22T10:04:50Z"),
        event("Readiness probe failed: 503", ENDED),
        event("Liveness probe failed: of a run before", "2026-11-22T09:00:00Z"),
    )
    last = {"terminated": {"exitCode": 137, "startedAt": BEGAN, "finishedAt": ENDED}}
    text = "exited with code 137 (its livenessProbe failed: rank 1 makes no progress: no response within 20 s)"
    runs = pod(containerStatuses=server(state={"running": {"startedAt": ENDED}}, lastState=last, restartCount=1))
    assert state_of(runs, *events).detail == f"restarted 1 times; before the last restart it {text}"
    assert "livenessProbe" not in state_of(runs, *events[1:]).detail
    waits = pod(containerStatuses=server(state={"waiting": {}}, lastState=last, restartCount=1))
    assert state_of(waits, *events).detail == f"it {text}, restart pending"
    late = event("Container server failed startup probe, will be restarted", "2026-11-22T10:04:55Z")
    assert "because it was not ready in time; raise `timeouts.progress_deadline`" in state_of(waits, late).detail


def test_crash_looping_pod_is_exited() -> None:
    last = {"terminated": {"exitCode": 3, "startedAt": BEGAN, "finishedAt": ENDED}}
    waits = server(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=last, restartCount=4)
    found = state_of(pod(containerStatuses=waits))
    assert (found.status, found.exit_code, found.restarts) == (Status.EXITED, 3, 4)
    assert found.ended_at == "2026-11-22T10:05:00+00:00"
    assert "exited with code 3" in found.detail
    assert "CrashLoopBackOff" in found.detail


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ErrImagePull", "cannot pull its image: why"),
        ("ErrImageNeverPull", "the node does not have its image"),
        ("CreateContainerConfigError", "cannot create its container: why"),
    ],
)
@pytest.mark.parametrize("which", ["containerStatuses", "initContainerStatuses"])
def test_waiting_container_is_pending_with_reason(reason: str, words: str, which: str) -> None:
    held = server(state={"waiting": {"reason": reason, "message": "why"}})
    found = state_of(pod(**{which: held}))
    assert found.status is Status.PENDING
    assert found.detail.startswith(words)


def test_unschedulable_pod_has_one_line_reason() -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes:\n no GPUs"}
    found = state_of(pod(node="", conditions=[unplaced]))
    assert found.detail == "no node accepts it: 0/3 nodes: no GPUs"


def test_mount_failure_is_reported_until_server_runs() -> None:
    event = {"reason": "FailedMount", "message": "not a directory"}
    creating = pod(containerStatuses=server(state={"waiting": {"reason": "ContainerCreating"}}))
    assert state_of(creating, event).detail == "cannot mount a volume: not a directory"
    running = pod(containerStatuses=server(state={"running": {"startedAt": BEGAN}}))
    assert state_of(running, event).status is Status.RUNNING


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (pod(node=""), "waiting for a node"),
        (pod(), "waiting for its image and volumes on node-a"),
        (
            pod(initContainerStatuses=[{"name": "checkpoint", "state": {"terminated": {"exitCode": 0}}}]),
            "for its image and volumes",
        ),
    ],
)
def test_normal_pending_states_are_no_scheduling_problem(seen: dict[str, Any], words: str) -> None:
    found = state_of(seen)
    assert found.status is Status.PENDING
    assert words in found.detail
    assert not scheduling_problem(DEPLOYMENT, PodView(pod=seen))


REFUSED = {
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
    ended = {"exitCode": 3, "message": json.dumps({"sglang": "0.5.14", "verdicts": [{"refused": REFUSED}]})}
    reported = {key: {"terminated": ended} if "terminated" in state else state for key, state in states.items()}
    found = state_of(pod(initContainerStatuses=[{"name": "arguments", **reported}]))
    assert (found.status, found.unschedulable) == (Status.PENDING, True)
    assert found.rejection is not None
    assert found.rejection.options == ("enable-eplb",)
    assert found.detail == "sglang rejected its arguments: `assert self.ep_size > 1` (server_args.py:5383)"


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({"exitCode": 137, "message": ""}, "waiting for its image and volumes on node-a"),
        ({"exitCode": 3, "message": "not what the program writes"}, "waiting for its image and volumes on node-a"),
    ],
)
def test_other_init_container_failures_are_not_refusals(ended: dict[str, Any], words: str) -> None:
    found = state_of(pod(initContainerStatuses=[{"name": "arguments", "state": {"terminated": ended}}]))
    assert (found.rejection, found.unschedulable, found.detail) == (None, False, words)


def test_running_argument_check_is_pending() -> None:
    found = state_of(pod(initContainerStatuses=[{"name": "arguments", "state": {"running": {}}}]))
    assert found.detail == "sglang is checking its arguments on node-a"


def test_missing_checkpoint_is_pending_with_hint() -> None:
    ended = {"terminated": {"exitCode": 1, "message": "claim `m` has no `glm`; `kubectl run`\n"}}
    for states in ({"state": ended}, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}):
        waits = pod(initContainerStatuses=[{"name": "checkpoint", **states}])
        found = state_of(waits)
        assert (found.status, found.unschedulable) == (Status.PENDING, False)
        assert found.detail == "its checkpoint is missing: claim `m` has no `glm`; `kubectl run`"
        assert scheduling_problem(DEPLOYMENT, PodView(pod=waits))


def test_exceeded_quota_is_pending_with_reason() -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    found = server_state({**DEPLOYMENT, "status": {"conditions": [condition]}}, None)
    assert (found.status, found.detail) == (Status.PENDING, "the cluster creates no pod: exceeded quota: gpus")
    assert scheduling_problem({**DEPLOYMENT, "status": {"conditions": [condition]}}, None) == found.detail
    assert "its pod" in server_state(DEPLOYMENT, None).detail
    assert server_state({**DEPLOYMENT, "spec": {"replicas": 0}}, None).status is Status.EXITED


def evicted(name: str = "a", *, created: str = BEGAN) -> dict[str, Any]:
    return pod(name, created=created, phase="Failed", reason="Evicted", message="The node was low on\nmemory.")


def test_eviction_is_reported_until_pod_is_removed() -> None:
    only = server_state(DEPLOYMENT, pod_view([evicted()]))
    assert (only.status, only.detail) == (
        Status.EXITED,
        "its pod was evicted from node-a: The node was low on memory.; a replacement is pending",
    )
    waits = server_state(DEPLOYMENT, pod_view([evicted(), pod("b", node="")]))
    assert (waits.status, waits.detail) == (
        Status.PENDING,
        "waiting for a node; its previous pod was evicted from node-a: The node was low on memory.",
    )
    runs = pod("b", containerStatuses=server(state={"running": {"startedAt": BEGAN}}))
    again = server_state(DEPLOYMENT, pod_view([runs, evicted(created=ENDED), evicted("c")]))
    assert (again.status, again.detail.count("was evicted from node-a")) == (Status.RUNNING, 1)


def test_server_on_unreachable_node_is_unknown() -> None:
    """The node controller says `Ready` of the pod; everything else is as the kubelet left it."""
    running = server(state={"running": {"startedAt": BEGAN}})
    left = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]
    found = state_of(pod(containerStatuses=running, conditions=left))
    assert found.status is Status.UNKNOWN
    assert "its node node-a does not answer" in found.detail
    loading = [{"type": "ContainersReady", "status": "False"}, {"type": "Ready", "status": "False"}]
    assert state_of(pod(containerStatuses=running, conditions=loading)).status is Status.RUNNING
    leaving = pod(reason="NodeLost", containerStatuses=running)
    leaving["metadata"]["deletionTimestamp"] = ENDED
    assert "being deleted on node-a, which does not answer" in state_of(leaving).detail


def test_deleted_server_is_not_found_without_pod() -> None:
    leaving = pod(containerStatuses=server(state={"running": {"startedAt": BEGAN}}))
    leaving["metadata"]["deletionTimestamp"] = ENDED
    assert server_state(None, PodView(pod=leaving)).status is Status.EXITED
    leaving["status"] = {}
    assert server_state(None, PodView(pod=leaving)).status is Status.NOT_FOUND, "it never started, and will not"
    assert server_state(None, None).status is Status.NOT_FOUND


@pytest.mark.parametrize("state", ["running", "waiting", "terminated"])
def test_deleted_pod_counts_only_while_container_runs(state: str) -> None:
    last = {"terminated": {"exitCode": 0}} if state == "waiting" else {}
    leaving = pod(containerStatuses=[{"name": "server", "state": {state: {"exitCode": 0}}, "lastState": last}])
    assert newest([leaving]) is leaving
    leaving["metadata"]["deletionTimestamp"] = ENDED
    assert newest([leaving]) is (leaving if state == "running" else None)


def test_newest_pod_is_preferred_to_terminating_pod() -> None:
    leaving, old, new = pod("c", created=ENDED), pod("a"), pod("b", created=ENDED)
    leaving["metadata"]["deletionTimestamp"] = ENDED
    assert newest([leaving, new, old]) is new
    assert newest([leaving]) is leaving
    assert newest([]) is None


@pytest.mark.parametrize("change", ["deploy.plan", "deploy.profile", "deploy.url"])
def test_foreign_objects_are_not_servers(change: str) -> None:
    annotations = {"deploy.name": "boxed", "deploy.plan": "0", "deploy.profile": "p", "deploy.url": "http://x:1"}
    assert is_record(annotations)
    assert not is_record({**annotations, change: ""})
    assert not is_record({**annotations, "deploy.url": f"http://x:{'9' * 5000}"})
    assert not is_record({"deploy.name": "boxed"})
    assert not is_record({**annotations, "deploy.name": "../x"})
