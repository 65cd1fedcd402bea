"""The plan: everything that has been decided about one server, and the rules it was decided by.

What decides is imported by name: `plan.decide`, `plan.rules`, `plan.capacity`, `plan.propose`, `plan.known_bad`,
`plan.patches`, `plan.replicas`. It
needs the schema of profiles, which takes long to import; a command over servers that run needs only the plan.
`plan.lock` brings YAML along.
"""

from orchestrator.core.origin import Origin
from orchestrator.plan.changes import Difference, changes, differences, flat
from orchestrator.plan.plan import (
    GREEDY,
    NAME,
    ContainerNeeds,
    Engine,
    EnvVar,
    Flag,
    Hardware,
    Hazard,
    Healing,
    Kubernetes,
    Layout,
    Model,
    ModelSource,
    Moe,
    PatchUse,
    Plan,
    Question,
    Server,
    SlurmJob,
    Ulimit,
    Waiting,
)

__all__ = [
    "GREEDY",
    "NAME",
    "ContainerNeeds",
    "Difference",
    "Engine",
    "EnvVar",
    "Flag",
    "Hardware",
    "Hazard",
    "Healing",
    "Kubernetes",
    "Layout",
    "Model",
    "ModelSource",
    "Moe",
    "Origin",
    "PatchUse",
    "Plan",
    "Question",
    "Server",
    "SlurmJob",
    "Ulimit",
    "Waiting",
    "changes",
    "differences",
    "flat",
]
