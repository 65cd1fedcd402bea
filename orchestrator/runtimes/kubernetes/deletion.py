"""The end of servers in a cluster: their objects are deleted, and their pods awaited."""

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from orchestrator.core.errors import HostError
from orchestrator.core.polling import poll_until
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.namespaces import replica_of
from orchestrator.runtimes.kubernetes.record import object_name, selector
from orchestrator.runtimes.kubernetes.state import has_started, is_over

# What a start makes beside the Deployment; a claim is none of it: nobody's weights are deleted.
_KINDS: Final = "services,networkpolicies,poddisruptionbudgets,configmaps,secrets"
_OF_SEVERAL: Final = f"{_KINDS},serviceaccounts,roles,rolebindings"
_PAUSE: Final = 0.5
_ASKED, _BRIEFLY = 10.0, 4.0  # seconds for an answer; of an API server that hangs kubectl takes up to three times that
_UNSTARTED: Final = 5.0  # seconds after which a kubelet starts nothing of a deleted pod any more, and ends what does
LATE: Final = 60.0  # seconds beyond its grace after which a pod's end is not waited for


def kinds_of(part: str) -> str:
    """The kinds of all objects of a server, or of several."""
    return f"deployments,{_OF_SEVERAL if part else _KINDS}"


class Removal:
    """What is deleted: the Deployments of those uids, all of a name or all of a `part` of several, and their objects.

    `several` says whether they are several servers or one of them, `silent` that the cluster has just not answered.
    """

    def __init__(
        self, cluster: Cluster, name: str, meant: Collection[str], *, part: str, several: bool, silent: bool
    ) -> None:
        self._cluster, self._name, self._meant, self._part = cluster, name, meant, part
        self._within = _BRIEFLY if silent else _ASKED
        self._kinds = _OF_SEVERAL if several else _KINDS
        self._told: dict[str, float] = {}  # when the pods were given their grace, on the monotonic clock
        self._grace = 1

    def carry_out(self, grace: float, *, late: float = LATE) -> None:
        """Delete every object, and await the pods' end, which have `grace` seconds and `late` more. Raises HostError.

        Deployments go last, and of several the one that has the name itself: the name is free from then on. What has
        another's by now is left alone. What several servers share goes with the last of them.
        """
        self._grace = max(int(grace), 1)
        deployments, pods = self._seen()
        if not self._is_anothers(deployments):
            alone = all(each["metadata"]["uid"] in self._meant for each in deployments)
            self._delete(self._kinds, "--selector", selector(self._name, "" if alone else self._part))
            own = [each["metadata"]["name"] for each in deployments if self._is_of(each)]
            own.sort(key=lambda called: called == object_name(self._name))
            self._end(*(f"deployment/{called}" for called in own), *(_named(pod) for pod in pods if self._is_of(pod)))

        def running() -> list[Mapping[str, Any]]:
            deployments, pods = self._seen()
            theirs = self._is_anothers(deployments)
            pods = [pod for pod in pods if self._is_of(pod) and (not theirs or _named(pod) in self._told)]
            if new := {_named(pod) for pod in pods} - self._told.keys():
                self._end(*sorted(new))
            return [pod for pod in pods if not (is_over(pod) or self._never_starts(pod))]

        left = poll_until(lambda found: not found, running, within=grace + late, pause=_PAUSE)
        if left:
            names, node = [pod["metadata"]["name"] for pod in left], left[0]["spec"].get("nodeName", "no node")
            force = self._cluster.shown("delete", "pod", *names, "--force", "--grace-period=0")
            which = " and ".join(f"pod `{pod}`" for pod in names)
            raise HostError(
                f"{which}: deleted, and {node} does not say that it has ended",
                hint=f"where that node is gone for good: {force}",
            )

    def _seen(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """The Deployments and the pods of that name."""
        items = self._cluster.json("get", "deployments,pods", "--selector", selector(self._name), within=self._within)[
            "items"
        ]
        deployments = [each for each in items if each["kind"] == "Deployment"]
        return deployments, [each for each in items if each["kind"] == "Pod"]

    def _is_of(self, each: Mapping[str, Any]) -> bool:
        return not self._part or replica_of(each) == self._part

    def _is_anothers(self, deployments: Collection[Mapping[str, Any]]) -> bool:
        return any(self._is_of(each) and each["metadata"]["uid"] not in self._meant for each in deployments)

    def _never_starts(self, pod: Mapping[str, Any]) -> bool:
        return not has_started(pod) and time.monotonic() - self._told[_named(pod)] > _UNSTARTED

    def _delete(self, *words: str) -> None:
        if not (done := self._cluster.ask("delete", *words, "--ignore-not-found", "--wait=false")).ok:
            raise self._cluster.refused(done)

    def _end(self, *objects: str) -> None:
        """With what is to go in its grace: whoever else deletes a pod gives it the time that it asks for."""
        if objects:
            self._delete(*objects, f"--grace-period={self._grace}")
        self._told.update(dict.fromkeys(objects, time.monotonic()))


def _named(pod: Mapping[str, Any]) -> str:
    """A pod as kubectl takes it among other objects."""
    return f"pod/{pod['metadata']['name']}"
