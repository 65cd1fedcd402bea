"""What objects of a server are called, and what they bear: their labels and annotations are the record of it."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from orchestrator import __version__
from orchestrator.plan import Plan

NAME: Final = "deploy.name"  # the label that selects all objects of a server
STAGES: Final = "deploy.stages"  # the label of what brings a server's checkpoint: a Service sends nothing there
RUN_DIR: Final = "deploy.run-dir"  # annotation: the directory on the starting machine that holds plan.json and the log
STARTER: Final = "deploy.starter"  # annotation: the starting machine, and what tells this start from all others
PLAN: Final = "deploy.plan"
PROFILE: Final = "deploy.profile"
URL: Final = "deploy.url"
_VERSION: Final = "deploy.version"
_MANAGER: Final = "app.kubernetes.io/managed-by"
# A Job's name has at most 63 characters and ends with what tells it from the next one (validation of `job-name`).
_LONGEST: Final = 48


def object_name(name: str) -> str:
    """What the objects of the server `name` are called: a DNS label, as a Service wants it (RFC 1035).

    A name that is none, or too long, keeps its beginning, and a digest keeps it apart from others.
    """
    plain = re.sub(r"[._]", "-", name)
    if plain == name and len(name) <= _LONGEST - len("deploy-"):
        return f"deploy-{name}"
    return f"deploy-{plain[:30].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def labels(name: str) -> dict[str, str]:
    """What every object of a server bears."""
    return {NAME: name, _MANAGER: "deploy"}


def annotations(plan: Plan, name: str, namespace: str) -> dict[str, str]:
    """The record: labels have at most 63 characters, and a digest has more."""
    return {
        PLAN: plan.digest,
        PROFILE: plan.profile,
        URL: f"http://{object_name(name)}.{namespace}.svc:{plan.server.port}",
        _VERSION: __version__,
    }


def pairs(written: tuple[str, ...]) -> Mapping[str, str]:
    """Labels that are written as `key=value`."""
    return dict(label.split("=", 1) for label in written)
