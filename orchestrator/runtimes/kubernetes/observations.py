"""The last listing of each server's objects: at most three seconds old, unless its cluster does not answer."""

import time
from collections.abc import Collection, Mapping, Sequence
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

_FRESH: Final = 3.0  # seconds for which a listing, or a failed request to a cluster, is current
_REQUEST_TIMEOUT: Final = 4.0  # timeout of a request, in seconds; short, since callers poll
# Seconds without an answer for which callers get the last listing: pods keep running meanwhile, and replacing a
# control plane takes minutes.
MAX_STALENESS: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class ObjectListing:
    """The Deployments and pods of servers and their replicas, and the warnings about the pods."""

    at: float = -inf  # monotonic time
    items: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[Mapping[str, Any]] = ()
    runs: Sequence[tuple[str, str | None]] = ()  # of the pods with warnings: name, and start of the current run

    def of(self, unit: Unit, replica: ReplicaRef) -> tuple[Mapping[str, Any] | None, PodView | None]:
        """Return the Deployment and the pod of a unit; each is None if it does not exist."""
        identity = (unit.name, replica.unit_name)
        own_items = [item for item in self.items if (item["metadata"]["labels"][NAME], replica_of(item)) == identity]
        deployment = next((item for item in own_items if item["metadata"]["uid"] == unit.runtime_id), None)
        view = pod_view([item for item in own_items if item["kind"] == "Pod"])
        return deployment, view and replace(view, events=self._events(view.name))

    def _events(self, pod: str) -> tuple[Mapping[str, Any], ...]:
        events = [event for event in self.warnings if event["involvedObject"].get("name") == pod]
        return tuple(sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")))


class ObservationCache:
    """The last listing of each server, with its replicas."""

    def __init__(self) -> None:
        self._listings: dict[tuple[Cluster, str], ObjectListing] = {}  # by the name of the server
        self._failed: dict[Cluster, tuple[float, HostError]] = {}  # of silent clusters: the time and error

    def current(self, name: str, cluster: Cluster) -> ObjectListing:
        """Return the current listing of a server, or the last one while the cluster does not answer.

        Raises HostError once the last one is older than `MAX_STALENESS`.
        """
        listing = self._listings.get((cluster, name), ObjectListing())
        failed, reason = self._failed.get(cluster, (-inf, None))
        if reason is not None and time.monotonic() - failed < _FRESH:
            if listing.at == -inf:
                raise reason
            return listing
        if time.monotonic() - listing.at < _FRESH:
            return listing
        try:
            words = ("deployments,pods", "--selector", selector(name))
            new = self.keep(cluster, {name}, cluster.json("get", *words, timeout=_REQUEST_TIMEOUT)["items"])
        except HostError as error:
            if time.monotonic() - listing.at > MAX_STALENESS:
                raise
            if reason is None:
                warn(f"{error.message}: retrying for {MAX_STALENESS / 60:.0f} min", hint=error.hint)
            self._failed[cluster] = time.monotonic(), error
            return listing
        if self._failed.pop(cluster, None) is not None:
            note("the cluster answers again")
        return new

    def keep(self, cluster: Cluster, names: Collection[str], items: Sequence[Mapping[str, Any]]) -> ObjectListing:
        """Store the listed objects of these servers, and request the warnings about their pods. Raises HostError.

        The warnings about a pod that is running again are requested once per restart.
        """
        pods = [view for item in items if item["kind"] == "Pod" and (view := PodView(pod=item)).warns]
        runs = [(view.name, view.runs_since) for view in pods]
        last = next((self._listings[cluster, name] for name in names if (cluster, name) in self._listings), None)
        if last is not None and last.runs == runs and all(view.runs_since for view in pods):
            warnings = last.warnings
        else:
            warnings = _warnings_of(cluster, pods[0].name if len(pods) == 1 else "") if pods else ()
        listing = ObjectListing(at=time.monotonic(), items=items, warnings=warnings, runs=runs)
        self._listings.update({(cluster, name): listing for name in names})
        return listing

    def answers(self, cluster: Cluster) -> bool:
        """Return whether the cluster answered the last request."""
        return cluster not in self._failed

    def forget(self) -> None:
        """Discard all listings, so that the next call requests a new one."""
        self._listings.clear()


def _warnings_of(cluster: Cluster, pod: str) -> Sequence[Mapping[str, Any]]:
    """Return the warnings about a pod, or, if it is "", about all objects of the namespace. Raises HostError."""
    field_selector = ",".join(("type=Warning", *([f"involvedObject.name={pod}"] if pod else [])))
    events: Sequence[Mapping[str, Any]] = cluster.json("get", "events", "--field-selector", field_selector)["items"]
    return events
