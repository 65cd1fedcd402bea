"""The last observation of each server: at most two seconds old, unless its cluster does not answer."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import HostError
from orchestrator.runtimes.base import Unit
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.record import ReplicaRef, replica_of, selector
from orchestrator.runtimes.kubernetes.state import PodView, pod_view
from orchestrator.runtimes.labels import NAME

_FRESH: Final = 2.0  # seconds for which an observation, or a failed request to a cluster, is current
_REQUEST_TIMEOUT: Final = 4.0  # timeout of a request, in seconds; short, since callers poll
# Seconds without an answer for which callers get the last observation: pods keep running meanwhile, and replacing a
# control plane takes minutes.
MAX_STALENESS: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class ObservedServer:
    """A server's Deployment and pod; each is None if it does not exist."""

    at: float = -inf  # monotonic time
    deployment: Mapping[str, Any] | None = None
    view: PodView | None = None


class ObservationCache:
    """The last observation of each server, by its `runtime_id`."""

    def __init__(self) -> None:
        self._seen: dict[str, ObservedServer] = {}
        self._failed: dict[Cluster, tuple[float, HostError]] = {}  # of silent clusters: the time and error

    def of(self, unit: Unit, replica: ReplicaRef) -> ObservedServer:
        """Return the current observation, or the last one while the cluster does not answer.

        Raises HostError once the last one is older than `MAX_STALENESS`.
        """
        observed, cluster = self._seen.get(unit.runtime_id, ObservedServer()), replica.cluster
        failed, reason = self._failed.get(cluster, (-inf, None))
        if reason is not None and time.monotonic() - failed < _FRESH:
            if observed.at == -inf:
                raise reason
            return observed
        if time.monotonic() - observed.at < _FRESH:
            return observed
        try:
            words = ("deployments,pods", "--selector", selector(unit.name, replica.unit_name))
            self.keep(unit, replica, cluster.json("get", *words, timeout=_REQUEST_TIMEOUT)["items"])
        except HostError as error:
            if time.monotonic() - observed.at > MAX_STALENESS:
                raise
            if reason is None:
                warn(f"{error.message}: retrying for {MAX_STALENESS / 60:.0f} min", hint=error.hint)
            self._failed[cluster] = time.monotonic(), error
            return observed
        if self._failed.pop(cluster, None) is not None:
            note("the cluster answers again")
        return self._seen[unit.runtime_id]

    def keep(
        self,
        unit: Unit,
        replica: ReplicaRef,
        items: Sequence[Mapping[str, Any]],
        warnings: Sequence[Mapping[str, Any]] | None = None,
    ) -> ObservedServer:
        """Store and return an observation of a server, made from listed objects. Raises HostError.

        If `warnings` is None, request the warnings about the server's pod.
        """
        identity, cluster = (unit.name, replica.unit_name), replica.cluster
        own_items = [item for item in items if (item["metadata"]["labels"][NAME], replica_of(item)) == identity]
        deployment = next((item for item in own_items if item["metadata"]["uid"] == unit.runtime_id), None)
        view = pod_view([item for item in own_items if item["kind"] == "Pod"])
        if view is not None and view.warns:
            view = replace(
                view, events=_pod_events(view, warnings_of(cluster, view.name) if warnings is None else warnings)
            )
        self._seen[unit.runtime_id] = observed = ObservedServer(at=time.monotonic(), deployment=deployment, view=view)
        return observed

    def answers(self, cluster: Cluster) -> bool:
        """Return whether the cluster answered the last request."""
        return cluster not in self._failed

    def forget(self, unit: Unit) -> None:
        """Discard the observation of a server, so that the next call requests a new one."""
        self._seen.pop(unit.runtime_id, None)


def warnings_of(cluster: Cluster, pod: str = "") -> Sequence[Mapping[str, Any]]:
    """Return the warnings about a pod, or about all objects of the namespace. Raises HostError."""
    field_selector = ",".join(("type=Warning", *([f"involvedObject.name={pod}"] if pod else [])))
    events: Sequence[Mapping[str, Any]] = cluster.json("get", "events", "--field-selector", field_selector)["items"]
    return events


def _pod_events(view: PodView, warnings: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    events = [event for event in warnings if event["involvedObject"].get("name") == view.name]
    return tuple(sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")))
