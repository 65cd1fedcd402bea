"""Names, labels and annotations of a server's objects. Labels and annotations are the record of the server."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.plan.plan import Plan
from orchestrator.plan.units import Role
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.labels import GATEWAY, NAME, UNIT, record_of
from orchestrator.runtimes.replicas import in_order, role_of

ROLE: Final = "deploy.role"
REPLICA: Final = "replica"  # the role of equal servers behind a gateway
OURS: Final = "app.kubernetes.io/managed-by=deploy"
_MANAGER: Final = "app.kubernetes.io/managed-by"
# A DNS label has at most 63 characters, and a replica adds its part.
_LONGEST: Final = 48


@dataclass(frozen=True)
class ReplicaRef:
    """A server or a replica in a cluster; `unit_name` is "" for a server without replicas."""

    cluster: Cluster
    unit_name: str


def replica_of(item: Mapping[str, Any]) -> str:
    """Return the replica that an object belongs to, "" for a server without replicas."""
    return str(item["metadata"]["labels"].get(UNIT, ""))


def object_name(name: str, unit_name: str = "") -> str:
    """Return the name of the objects of the server `name`: its own, if that is a DNS label (a Service's: RFC 1035).

    Another name, or a long one, is cut and gets a digest to keep it unique. A replica adds its part after two dashes,
    which no server name contains. The gateway has the name of a server without replicas.
    """
    if unit_name and unit_name != GATEWAY:
        return f"{object_name(name)}--{unit_name}"
    plain = re.sub(r"[._]", "-", name)
    if plain == name and name[0].isalpha() and len(name) <= _LONGEST:
        return name
    return f"deploy-{plain[:30].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def deployment_name(name: str, unit_name: str = "") -> str:
    """Return the name of the Deployment of a server or of a replica.

    The first Deployment of a start has the server's own name, with replicas too: the API server accepts that name from
    one start only.
    """
    if unit_name == GATEWAY:
        return f"{object_name(name)}--{GATEWAY}"
    is_first = in_order(unit_name) == (False, 1)  # of replicas, or of prefill before decode
    return object_name(name) if is_first else object_name(name, unit_name)


def labels(name: str, unit_name: str = "") -> dict[str, str]:
    """Return the labels of every object of a server or of a replica."""
    return {NAME: name, _MANAGER: "deploy"} | ({UNIT: unit_name, ROLE: role_label(unit_name)} if unit_name else {})


def role_label(unit_name: str) -> str:
    """Return the role in the labels of the gateway, a replica, or a prefill or decode server."""
    return (
        GATEWAY if unit_name == GATEWAY else REPLICA if role_of(unit_name) is Role.SERVER else role_of(unit_name).value
    )


def selected(name: str, unit_name: str = "") -> dict[str, str]:
    """Return the labels that select the pod of a server."""
    return {NAME: name} | ({UNIT: unit_name} if unit_name else {})


def selector(name: str, unit_name: str = "") -> str:
    """Return the kubectl selector of a server's objects, with the label that all objects of this tool have."""
    return ",".join((*(f"{label}={value}" for label, value in selected(name, unit_name).items()), OURS))


def annotations(plan: Plan, name: str, namespace: str, unit_name: str = "") -> dict[str, str]:
    """Return the annotations of the record. Labels are limited to 63 characters, and a digest is longer."""
    return record_of(plan, f"http://{object_name(name, unit_name)}.{namespace}.svc:{plan.server.port}")


def pairs(written: tuple[str, ...]) -> Mapping[str, str]:
    """Return labels that are written as `key=value` as a mapping."""
    return dict(label.split("=", 1) for label in written)
