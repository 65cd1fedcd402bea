"""The plan: everything that has been decided about one server, the rules it was decided by, and what carries it out."""

from orchestrator.core.origin import Origin
from orchestrator.plan.plan import (
    NAME,
    ContainerNeeds,
    Engine,
    EnvVar,
    Flag,
    Hardware,
    Hazard,
    Layout,
    Model,
    ModelSource,
    Moe,
    PatchUse,
    Plan,
    Question,
    Server,
    Ulimit,
    Waiting,
)

__all__ = [
    "NAME",
    "ContainerNeeds",
    "Engine",
    "EnvVar",
    "Flag",
    "Hardware",
    "Hazard",
    "Layout",
    "Model",
    "ModelSource",
    "Moe",
    "Origin",
    "PatchUse",
    "Plan",
    "Question",
    "Server",
    "Ulimit",
    "Waiting",
]
