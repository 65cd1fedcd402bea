"""What a person writes: the schema of profiles and of their parts, and how layers become one document."""

from orchestrator.profile.json_schema import KINDS, json_schema
from orchestrator.profile.layers import EXTENDS, PARTS, Composed, Override, compose, is_setting, part_names
from orchestrator.profile.schema import (
    FILLER,
    ContainerSection,
    EngineFile,
    HardwareFile,
    ModelFile,
    Profile,
)

__all__ = [
    "EXTENDS",
    "FILLER",
    "KINDS",
    "PARTS",
    "Composed",
    "ContainerSection",
    "EngineFile",
    "HardwareFile",
    "ModelFile",
    "Override",
    "Profile",
    "compose",
    "is_setting",
    "json_schema",
    "part_names",
]
