"""What a person writes: the schema of profiles and of their parts, and how layers become one document."""

from orchestrator.profile.layers import EXTENDS, PARTS, Composed, Override, compose, is_setting, part_names
from orchestrator.profile.schema import (
    FILLER,
    ContainerSection,
    EngineFile,
    HardwareFile,
    ModelFile,
    Profile,
    QuestionSection,
    Setting,
)

__all__ = [
    "EXTENDS",
    "FILLER",
    "PARTS",
    "Composed",
    "ContainerSection",
    "EngineFile",
    "HardwareFile",
    "ModelFile",
    "Override",
    "Profile",
    "QuestionSection",
    "Setting",
    "compose",
    "is_setting",
    "part_names",
]
