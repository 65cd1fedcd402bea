"""Clusters and namespaces of this home's servers, and the labels that identify replicas there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.files import read_private
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.plan.plan import NAME as SERVER_NAME
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
    found = set()
    if name is not None and not SERVER_NAME.match(name):
        return ()
    own = home.runs / FileName(name) if name else home.runs
    folders = [own] if name and own.is_dir() else home.runs.glob("*") if home.runs.is_dir() else ()
    for folder in folders:
        newest_run = max((path for path in folder.glob("*-*") if path.is_dir()), default=None)
        if newest_run is None or newest_run.is_symlink() or (name is None and (newest_run / EXIT_FILE).is_file()):
            continue
        try:
            said = json.loads(read_private(newest_run / "plan.json"))["kubernetes"]
            found.add(Cluster(said["context"] or "", said["namespace"]))
        except (OSError, ValueError, KeyError, TypeError):  # no plan, or a plan of another runtime
            continue
    return tuple(sorted(found))


def replica_of(each: Mapping[str, Any]) -> str:
    """Return the replica that an object belongs to, "" for a server without replicas."""
    return str(each["metadata"]["labels"].get(PART, ""))
