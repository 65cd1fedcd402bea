"""Facts about checkpoint, kernel tables and image that a plan needs besides its profile."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from orchestrator.plan.plan import Moe


@dataclass(frozen=True, kw_only=True)
class MoeCheckpoint:
    """The layout of the experts in a checkpoint, for the rule of `orchestrator.plan.fusion`.

    The dtypes come from the safetensors headers of the first layer where they differ, else of the first layer with
    routed experts; None if the headers were not read.
    """

    moe: Moe
    layers: int
    draft_layers: int  # MTP layers, numbered after the others
    exclude: tuple[str, ...]
    shared_dtype: str | None
    routed_dtype: str | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts known so far; an empty field is unknown."""

    experts: MoeCheckpoint | None = None  # how the checkpoint stores its experts
    inputs: Mapping[str, str] = field(default_factory=dict)  # input files of patches, such as a table: name -> sha256
    image: str | None = None  # reference of a prebuilt image; None: an image is built


NO_FACTS: Final = Facts()
