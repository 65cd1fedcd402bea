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
_ASKED: Final = 5.0  # seconds for an answer; of an API server that hangs kubectl takes up to three times that
_UNSTARTED: Final = 5.0  # seconds after which a kubelet starts nothing of a deleted pod any more, and ends what does
_LATE: Final = 60.0  # seconds beyond its grace after which a pod's end is not waited for


def kinds_of(part: str) -> str:
    """The kinds of all objects of a server, or of several."""
    return f"deployments,{_OF_SEVERAL if part else _KINDS}"


class Removal:
    """The end of the units of one name whose Deployments have these uids; `meant` has the part of each by its uid."""

    def __init__(self, cluster: Cluster, name: str, meant: Mapping[str, str]) -> None:
        self._cluster, self._name, self._meant = cluster, name, meant
        self._told: dict[str, float] = {}  # when the pods were given their grace, on the monotonic clock
        self._grace = 1

    def carry_out(self, grace: float) -> None:
        """Delete every object, and await the pods' end, which have `grace` seconds and a minute. Raises HostError.

        Deployments go last, and of several the one that has the name itself: the name is free from then on. What has
        another's by now is left alone, and what several units share until the last of them goes.
        """
        self._grace = max(int(grace), 1)
        deployments, pods = self._seen()
        kinds = _OF_SEVERAL if any(self._meant.values()) else _KINDS
        parts = self._parts(deployments)
        if parts and all(each["metadata"]["uid"] in self._meant for each in deployments):
            self._delete(kinds, "--selector", selector(self._name))
        else:
            for part in sorted(parts):
                self._delete(kinds, "--selector", selector(self._name, part))
        own = [each["metadata"]["name"] for each in deployments if each["metadata"]["uid"] in self._meant]
        own.sort(key=lambda called: called == object_name(self._name))
        running = [_named(pod) for pod in pods if replica_of(pod) in parts]
        self._end(*(f"deployment/{called}" for called in own), *running)
        left = poll_until(lambda found: not found, self._running, within=grace + _LATE, pause=_PAUSE)
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
        words = ("deployments,pods", "--selector", selector(self._name))
        items = self._cluster.json("get", *words, within=_ASKED)["items"]
        deployments = [each for each in items if each["kind"] == "Deployment"]
        return deployments, [each for each in items if each["kind"] == "Pod"]

    def _parts(self, deployments: Collection[Mapping[str, Any]]) -> set[str]:
        """Those that are still ours: of another start's no object is deleted. The label of "" selects all of a name."""
        others = {replica_of(each) for each in deployments if each["metadata"]["uid"] not in self._meant}
        return {part for part in self._meant.values() if part not in others and (part or not others)}

    def _running(self) -> list[Mapping[str, Any]]:
        """Our pods that run, or may; a Deployment that ends still makes one now and then."""
        deployments, pods = self._seen()
        parts = self._parts(deployments)
        ours = [pod for pod in pods if replica_of(pod) in parts or _named(pod) in self._told]
        self._end(*sorted({_named(pod) for pod in ours} - self._told.keys()))
        return [pod for pod in ours if not (is_over(pod) or self._never_starts(pod))]

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
