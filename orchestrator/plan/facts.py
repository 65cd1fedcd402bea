"""What was learned of checkpoint, kernel tables and image: what a plan is decided from beside its profile."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from orchestrator.plan.plan import Moe


@dataclass(frozen=True, kw_only=True)
class MoeCheckpoint:
    """What the rule needs to know of a checkpoint: its shape, its exclude list, how it stores its experts.

    The dtypes are those of a layer where they differ, else of the first one with routed experts, as the safetensors
    headers give them; None where they were not read.
    """

    moe: Moe
    layers: int
    draft_layers: int  # MTP layers, numbered after the others
    exclude: tuple[str, ...]
    shared_dtype: str | None
    routed_dtype: str | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was learned so far; an empty field is not known yet."""

    experts: MoeCheckpoint | None = None  # how the checkpoint stores its experts
    inputs: Mapping[str, str] = field(default_factory=dict)  # files given to patches, such as a table: name -> sha256
    image: str | None = None  # reference of a prebuilt image; None: an image is built


NOTHING_KNOWN: Final = Facts()
