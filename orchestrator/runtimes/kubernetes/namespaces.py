"""Where servers of this home are, and what their objects say of them."""

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
    """Where a server is: its cluster, and which of several it is there, "" for one by itself."""

    cluster: Cluster
    part: str


def known_namespaces(home: Home, name: str | None = None) -> tuple[Cluster, ...]:
    """The namespaces in which servers were started from a home, by the newest plan of each name.

    Of a name that this home knows it is its own alone: another cluster may be gone. For a list of all, those of servers
    that were stopped from here are not asked.
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
        except (OSError, ValueError, KeyError, TypeError):  # no plan, or one for another runtime
            continue
    return tuple(sorted(found))


def replica_of(each: Mapping[str, Any]) -> str:
    """Which of several servers an object belongs to, "" for a server by itself."""
    return str(each["metadata"]["labels"].get(PART, ""))
