"""Clusters and namespaces of this home's servers, and the labels that identify replicas there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.paths import Home
from orchestrator.plan.plan import NAME as SERVER_NAME
from orchestrator.runs.run_dir import runs_by_name
from orchestrator.runtimes.base import EXIT_FILE
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.labels import PART


@dataclass(frozen=True)
class ReplicaRef:
    """A server or a replica in a cluster; `part` is "" for a server without replicas."""

    cluster: Cluster
    part: str


def known_namespaces(home: Home, name: str | None = None) -> tuple[Cluster, ...]:
    """Return the namespaces in which this home started servers, from the newest plan of each name.

    For a name that this home knows, only its own namespace is returned, since another cluster may no longer exist.
    Without a name, namespaces of servers that were stopped from here are omitted.
    """
    if name is not None and not SERVER_NAME.match(name):
        return ()
    known = runs_by_name(home)
    newest = (runs[0] for runs in ([known[name]] if name in known else known.values()) if runs)
    plans = (run.read_any("plan.json") for run in newest if name is not None or not (run.path / EXIT_FILE).is_file())
    found = (plan["kubernetes"] for plan in plans if isinstance(plan.get("kubernetes"), dict))
    return tuple(
        sorted({Cluster(said.get("context") or "", said["namespace"]) for said in found if "namespace" in said})
    )


def replica_of(each: Mapping[str, Any]) -> str:
    """Return the replica that an object belongs to, "" for a server without replicas."""
    return str(each["metadata"]["labels"].get(PART, ""))
