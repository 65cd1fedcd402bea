"""The section `layout` of a profile: how the model is spread over GPUs, nodes and roles."""

from typing import Literal

from pydantic import Field

from orchestrator.core.origin import Origin
from orchestrator.core.validation import StrictModel, Text, Word
from orchestrator.profiles.settings import CountField, CountSetting, FlagField, SwitchField, SwitchSetting


class RoleSection(StrictModel):
    """The servers of one role. Keys that are not set here have the profile's values."""

    replicas: int = Field(default=1, ge=1, le=32, description="servers of this role")
    tp: CountField | None = Field(default=None, description="`layout.tp` of this role")
    dp: CountField | None = Field(default=None, description="`layout.dp` of this role")
    ep: CountField | None = Field(default=None, description="`layout.ep` of this role")
    dp_attention: SwitchField | None = Field(default=None, description="`layout.dp_attention` of this role")
    nodes: CountField | None = Field(default=None, description="`layout.nodes` of this role")
    flags: dict[Text, FlagField] = Field(default={}, description="flags of this role")


class TransferSection(StrictModel):
    """How the KV cache crosses from prefill to decode servers."""

    backend: Literal["mooncake", "nixl", "mori"] = Field(default="mooncake", description="mooncake, nixl or mori")
    network: Word = Field(description="tcp, or an RDMA NIC: ainic, thor2, connectx")


class LayoutSection(StrictModel):
    """How the model is spread over the GPUs."""

    tp: CountField = Field(description="GPUs that share the weights, over all nodes")
    dp: CountField = Field(default=CountSetting(value=1, origin=Origin.INFERRED), description="data-parallel ranks")
    ep: CountField = Field(default=CountSetting(value=1, origin=Origin.INFERRED), description="expert-parallel ranks")
    dp_attention: SwitchField = Field(
        default=SwitchSetting(value=False, origin=Origin.INFERRED), description="`dp` ranks split the `tp` GPUs"
    )
    nodes: CountField = Field(default=CountSetting(value=1, origin=Origin.INFERRED), description="nodes of one replica")
    prefill: RoleSection | None = Field(default=None, description="servers that only read prompts; needs `decode`")
    decode: RoleSection | None = Field(default=None, description="servers that only generate; needs `prefill`")
    transfer: TransferSection | None = Field(default=None, description="how the KV cache crosses between the roles")
