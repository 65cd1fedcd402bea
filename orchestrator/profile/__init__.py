"""What a person writes: the schema of profiles and of their parts, and how layers become one document."""

from orchestrator.profile.layers import EXTENDS, PARTS, Composed, Override, compose, is_setting, part_names
from orchestrator.profile.schema import ContainerSection, EngineFile, HardwareFile, ModelFile, Profile, Setting

__all__ = [
    "EXTENDS",
    "PARTS",
    "Composed",
    "ContainerSection",
    "EngineFile",
    "HardwareFile",
    "ModelFile",
    "Override",
    "Profile",
    "Setting",
    "compose",
    "is_setting",
    "part_names",
]
