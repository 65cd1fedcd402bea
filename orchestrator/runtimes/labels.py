"""Labels that are the record of a server in containers or a cluster, and annotations on a cluster's objects."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from orchestrator import __version__
from orchestrator.hosts.ssh import is_ssh_url
from orchestrator.plan.plan import NAME as SERVER_NAME
from orchestrator.plan.plan import Plan
from orchestrator.runtimes.replicas import is_replica, rank_of

NAME: Final = "deploy.name"
UNIT: Final = "deploy.unit"  # the replica, or in a cluster the gateway
GATEWAY: Final = "gateway"
PLAN: Final = "deploy.plan"
PROFILE: Final = "deploy.profile"
URL: Final = "deploy.url"
RUN_DIR: Final = "deploy.run-dir"  # the directory on the starting host that holds plan.json and the log
STARTER: Final = "deploy.starter"  # who started the server, with a unique token of this start
RANK_HOSTS: Final = "deploy.rank-hosts"  # of rank 0: the hosts of ranks 1, 2, … of a server on several nodes
RANK: Final = "deploy.rank"  # of another rank, which has no name of its own: `NAME/1`
HEAD: Final = "deploy.head"  # of another rank: the host of rank 0
RECORD: Final = (PLAN, PROFILE, URL)  # labels that every unit has in addition to its name
_URL: Final = re.compile(r"http://[\w.:\[\]-]{1,255}:\d{1,5}")


def record_of(plan: Plan, url: str) -> dict[str, str]:
    """Return the record of a server with that plan, without its name."""
    return {PLAN: plan.digest, PROFILE: plan.profile, URL: url, "deploy.version": __version__}


def is_record(labels: Mapping[str, str]) -> bool:
    """Return whether labels are those that a start writes; users may put any labels on their own objects."""
    unit_name = labels.get(UNIT, GATEWAY)
    return (
        SERVER_NAME.match(labels.get(NAME, "")) is not None
        and (unit_name == GATEWAY or is_replica(unit_name))
        and _URL.fullmatch(labels.get(URL, "")) is not None
        and all(is_ssh_url(host) for host in labels.get(RANK_HOSTS, "").split())
        and not rank_of(Path(labels.get(RUN_DIR, "")))  # other ranks have no record
        and all(labels.get(item) and labels[item].isprintable() for item in RECORD)
    )
