"""Deletion of servers in a cluster: delete their objects, then wait until their pods have ended."""

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from orchestrator.core.errors import HostError
from orchestrator.core.polling import poll_until
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.record import object_name, replica_of, selector
from orchestrator.runtimes.kubernetes.state import has_started, is_over

# The objects of a start besides its Deployment. Claims are left out: checkpoints are never deleted.
_KINDS: Final = "services,networkpolicies,poddisruptionbudgets,configmaps,secrets"
OF_REPLICAS: Final = f"{_KINDS},serviceaccounts,roles,rolebindings"
_INTERVAL: Final = 2.0
_REQUEST_TIMEOUT: Final = 5.0  # seconds for an answer; kubectl takes up to three times as long if the API server hangs
_UNSTARTED: Final = 5.0  # seconds after which a kubelet no longer starts a deleted pod's containers
_LATE: Final = 60.0  # seconds that a pod may take to end after its grace period


class Removal:
    """The deletion of units of one server. `owned` maps the uid of each unit's Deployment to the unit's name."""

    def __init__(self, cluster: Cluster, name: str, owned: Mapping[str, str]) -> None:
        self._cluster, self._name, self._owned = cluster, name, owned
        self._report: dict[str, float] = {}  # monotonic time at which each pod's deletion was requested
        self._grace = 1

    def run(self, grace: float) -> None:
        """Delete all objects and wait for the pods, at most `grace` seconds plus a minute. Raises HostError.

        Deployments are deleted last, and replica 1's after all others, since it has and frees the
        server's own name. Objects that now belong to another start are kept, and shared objects until the last unit
        is deleted.
        """
        self._grace = max(int(grace), 1)
        deployments, pods = self._seen()
        kinds = OF_REPLICAS if any(self._owned.values()) else _KINDS
        unit_names = self._owned_units(deployments)
        deployment_metadata = [deployment["metadata"] for deployment in deployments]
        if unit_names and all(item["uid"] in self._owned for item in deployment_metadata):
            self._delete(kinds, "--selector", selector(self._name))
        else:
            for unit_name in sorted(unit_names):
                self._delete(kinds, "--selector", selector(self._name, unit_name))
        names_owned = [item["name"] for item in deployment_metadata if item["uid"] in self._owned]
        names_owned.sort(key=lambda name_owned: name_owned == object_name(self._name))
        running = [_pod_resource(pod) for pod in pods if replica_of(pod) in unit_names]
        self._end(*(f"deployment/{name_owned}" for name_owned in names_owned), *running)
        remaining = poll_until(lambda pods: not pods, self._running, timeout=grace + _LATE, interval=_INTERVAL)
        if remaining:
            names, node = (
                [pod["metadata"]["name"] for pod in remaining],
                remaining[0]["spec"].get("nodeName", "no node"),
            )
            force = self._cluster.command_text("delete", "pod", *names, "--force", "--grace-period=0")
            pods_text = " and ".join(f"pod `{pod}`" for pod in names)
            hint = f"if that node is lost for good: {force}"
            raise HostError(f"{pods_text}: deleted, but {node} has not confirmed that it exited", hint=hint)

    def _seen(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """Return the Deployments and pods of the server."""
        words = ("deployments,pods", "--selector", selector(self._name))
        items = self._cluster.json("get", *words, timeout=_REQUEST_TIMEOUT)["items"]
        deployments = [item for item in items if item["kind"] == "Deployment"]
        return deployments, [item for item in items if item["kind"] == "Pod"]

    def _owned_units(self, deployments: Collection[Mapping[str, Any]]) -> set[str]:
        """Return the names of the units that this start still owns.

        The name "" selects all objects of the server, so it is omitted if another start owns any of them.
        """
        other_units = {replica_of(item) for item in deployments if item["metadata"]["uid"] not in self._owned}
        return {name for name in self._owned.values() if name not in other_units and (name or not other_units)}

    def _running(self) -> list[Mapping[str, Any]]:
        """Return the pods of this start that may be running. A Deployment may create one more while it is deleted."""
        deployments, pods = self._seen()
        unit_names = self._owned_units(deployments)
        own_pods = [pod for pod in pods if replica_of(pod) in unit_names or _pod_resource(pod) in self._report]
        self._end(*sorted({_pod_resource(pod) for pod in own_pods} - self._report.keys()))
        deadline = time.monotonic() - _UNSTARTED
        unstarted = [pod for pod in own_pods if not has_started(pod) and self._report[_pod_resource(pod)] < deadline]
        return [pod for pod in own_pods if not is_over(pod) and pod not in unstarted]

    def _delete(self, *words: str) -> None:
        if not (done := self._cluster.ask("delete", *words, "--ignore-not-found", "--wait=false")).ok:
            raise self._cluster.rejection(done)

    def _end(self, *objects: str) -> None:
        """Delete objects with an explicit grace period; otherwise a pod gets the grace period in its spec."""
        if objects:
            self._delete(*objects, f"--grace-period={self._grace}")
        self._report.update(dict.fromkeys(objects, time.monotonic()))


def _pod_resource(pod: Mapping[str, Any]) -> str:
    """Return a pod's name with its kind, which kubectl needs in a list of mixed kinds."""
    return f"pod/{pod['metadata']['name']}"
