"""What objects of a server are called, and what they bear: their labels and annotations are the record of it."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from orchestrator.plan.plan import Plan
from orchestrator.runtimes.labels import GATEWAY, NAME, PART, record_of
from orchestrator.runtimes.replicas import replica_number

ROLE: Final = "deploy.role"
REPLICA: Final = "replica"  # the role of all but the gateway
OURS: Final = "app.kubernetes.io/managed-by=deploy"
_MANAGER: Final = "app.kubernetes.io/managed-by"
# A DNS label has at most 63 characters, and one of several servers adds its part.
_LONGEST: Final = 48


def object_name(name: str, part: str = "") -> str:
    """What the objects of the server `name` are called: a DNS label, as a Service wants it (RFC 1035).

    A name that is none, or too long, keeps its beginning, and a digest keeps it apart from others. One of several
    servers is told by its part, behind two dashes, which no name has; their gateway is called as a single one is.
    """
    if part and part != GATEWAY:
        return f"{object_name(name)}--{part}"
    plain = re.sub(r"[._]", "-", name)
    if plain == name and len(name) <= _LONGEST - len("deploy-"):
        return f"deploy-{name}"
    return f"deploy-{plain[:30].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def deployment_name(name: str, part: str = "") -> str:
    """What its Deployment is called, or that of one of several servers.

    The one that a start makes first has the name itself, be it of a single server or of the first of several: the API
    server takes it from one start alone.
    """
    if part == GATEWAY:
        return f"{object_name(name)}--{GATEWAY}"
    return object_name(name) if replica_number(part) == 1 else object_name(name, part)


def labels(name: str, part: str = "") -> dict[str, str]:
    """What every object of a server bears, and of one of several."""
    role = GATEWAY if part == GATEWAY else REPLICA
    return {NAME: name, _MANAGER: "deploy"} | ({PART: part, ROLE: role} if part else {})


def selected(name: str, part: str = "") -> dict[str, str]:
    """The labels that select the pod of a server."""
    return {NAME: name} | ({PART: part} if part else {})


def selector(name: str, part: str = "") -> str:
    """The same as kubectl takes them, with the label that all of our objects bear."""
    return ",".join((*(f"{label}={value}" for label, value in selected(name, part).items()), OURS))


def annotations(plan: Plan, name: str, namespace: str, part: str = "") -> dict[str, str]:
    """The record: labels have at most 63 characters, and a digest has more."""
    return record_of(plan, f"http://{object_name(name, part)}.{namespace}.svc:{plan.server.port}")


def pairs(written: tuple[str, ...]) -> Mapping[str, str]:
    """Labels that are written as `key=value`."""
    return dict(label.split("=", 1) for label in written)
