"""What a person writes: the schema of profiles and of their parts, and how layers become one document."""

from orchestrator.profile.json_schema import KINDS, json_schema
from orchestrator.profile.layers import (
    EXTENDS,
    PARTS,
    USE,
    Composed,
    Override,
    PartChoice,
    choose_parts,
    compose,
    is_setting,
)
from orchestrator.profile.schema import (
    FILLER,
    ContainerSection,
    EngineFile,
    HardwareFile,
    ModelFile,
    Profile,
    Scalar,
)
from orchestrator.profile.writing import YamlLine, flow, yaml_text

__all__ = [
    "EXTENDS",
    "FILLER",
    "KINDS",
    "PARTS",
    "USE",
    "Composed",
    "ContainerSection",
    "EngineFile",
    "HardwareFile",
    "ModelFile",
    "Override",
    "PartChoice",
    "Profile",
    "Scalar",
    "YamlLine",
    "choose_parts",
    "compose",
    "flow",
    "is_setting",
    "json_schema",
    "yaml_text",
]
