"""Deletion of servers in a cluster: delete their objects and wait for the end of their pods."""

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from orchestrator.core.errors import HostError
from orchestrator.core.polling import poll_until
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.record import object_name, replica_of, selector
from orchestrator.runtimes.kubernetes.state import has_started, is_over

# Objects of a start in addition to the Deployment. Claims are not among them: checkpoints are never deleted.
_KINDS: Final = "services,networkpolicies,poddisruptionbudgets,configmaps,secrets"
OF_SEVERAL: Final = f"{_KINDS},serviceaccounts,roles,rolebindings"
_INTERVAL: Final = 0.5
_ASKED: Final = 5.0  # seconds for an answer; kubectl takes up to three times as long if the API server hangs
_UNSTARTED: Final = 5.0  # seconds after which a kubelet starts no container of a deleted pod
_LATE: Final = 60.0  # seconds after the grace period for a pod to end


class Removal:
    """The deletion of units of one name. `meant` maps the uid of each unit's Deployment to its part."""

    def __init__(self, cluster: Cluster, name: str, meant: Mapping[str, str]) -> None:
        self._cluster, self._name, self._meant = cluster, name, meant
        self._report: dict[str, float] = {}  # monotonic time at which each pod's deletion was requested
        self._grace = 1

    def carry_out(self, grace: float) -> None:
        """Delete every object and wait for the pods, at most `grace` seconds and a minute. Raises HostError.

        Deployments go last, and among replicas the one with the server's own name: after it the name is free. Objects
        that another start owns by now are kept, and objects that units share are kept until the last unit is deleted.
        """
        self._grace = max(int(grace), 1)
        deployments, pods = self._seen()
        kinds = OF_SEVERAL if any(self._meant.values()) else _KINDS
        parts = self._parts(deployments)
        if parts and all(deployment["metadata"]["uid"] in self._meant for deployment in deployments):
            self._delete(kinds, "--selector", selector(self._name))
        else:
            for part in sorted(parts):
                self._delete(kinds, "--selector", selector(self._name, part))
        own = [
            deployment["metadata"]["name"] for deployment in deployments if deployment["metadata"]["uid"] in self._meant
        ]
        own.sort(key=lambda called: called == object_name(self._name))
        running = [_named(pod) for pod in pods if replica_of(pod) in parts]
        self._end(*(f"deployment/{called}" for called in own), *running)
        left = poll_until(lambda found: not found, self._running, timeout=grace + _LATE, interval=_INTERVAL)
        if left:
            names, node = [pod["metadata"]["name"] for pod in left], left[0]["spec"].get("nodeName", "no node")
            force = self._cluster.shown("delete", "pod", *names, "--force", "--grace-period=0")
            which = " and ".join(f"pod `{pod}`" for pod in names)
            raise HostError(
                f"{which}: deleted, but {node} has not confirmed that it exited",
                hint=f"if that node is lost for good: {force}",
            )

    def _seen(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """Return the Deployments and the pods of that name."""
        words = ("deployments,pods", "--selector", selector(self._name))
        items = self._cluster.json("get", *words, within=_ASKED)["items"]
        deployments = [item for item in items if item["kind"] == "Deployment"]
        return deployments, [item for item in items if item["kind"] == "Pod"]

    def _parts(self, deployments: Collection[Mapping[str, Any]]) -> set[str]:
        """Return the parts that this start still owns.

        The part "" selects all objects of the name: it is omitted if another start owns any of them."""
        others = {
            replica_of(deployment) for deployment in deployments if deployment["metadata"]["uid"] not in self._meant
        }
        return {part for part in self._meant.values() if part not in others and (part or not others)}

    def _running(self) -> list[Mapping[str, Any]]:
        """Return the pods of this start that may be running. A Deployment may still create one during its deletion."""
        deployments, pods = self._seen()
        parts = self._parts(deployments)
        ours = [pod for pod in pods if replica_of(pod) in parts or _named(pod) in self._report]
        self._end(*sorted({_named(pod) for pod in ours} - self._report.keys()))
        now = time.monotonic()
        unstarted = [pod for pod in ours if not has_started(pod) and now - self._report[_named(pod)] > _UNSTARTED]
        return [pod for pod in ours if not is_over(pod) and pod not in unstarted]

    def _delete(self, *words: str) -> None:
        if not (done := self._cluster.ask("delete", *words, "--ignore-not-found", "--wait=false")).ok:
            raise self._cluster.refused(done)

    def _end(self, *objects: str) -> None:
        """Delete objects with an explicit grace period: without it, a pod gets the grace period of its own spec."""
        if objects:
            self._delete(*objects, f"--grace-period={self._grace}")
        self._report.update(dict.fromkeys(objects, time.monotonic()))


def _named(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod with its kind, as kubectl needs it among other objects."""
    return f"pod/{pod['metadata']['name']}"
