"""Networks between nodes: kinds of NICs and their environment variables, from profiles/networks/*.yaml."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pydantic import Field

from orchestrator.core.validation import StrictModel, Text, VariableName, Word
from orchestrator.plan.plan import EnvVar, Plan, PlanWarning
from orchestrator.profiles.settings import EnvField

if TYPE_CHECKING:  # as in `plan/replicas.py`
    from orchestrator.profiles.schema import Profile

NO_RDMA: Final = "NCCL_IB_DISABLE"  # also read by RCCL


class Sample(StrictModel):
    """A value published by another site: an order of magnitude, not a limit."""

    value: float = Field(gt=0, description="the figure")
    source: Text = Field(min_length=1, description="its publication")


class Network(StrictModel):
    """A kind of NIC; TCP has none."""

    description: Text = Field(description="the NIC or its substitute")
    pci_vendor: Word | None = Field(default=None, description="PCI vendor, such as 0x1dd8")
    firmware: list[Text] = Field(default=[], description="oldest good version of each major version")
    firmware_source: Text = Field(default="", description="source of these versions")
    write_gbits: Sample | None = Field(default=None, description="ib_write_bw of 8 MiB on one NIC (Gb/s)")
    all_reduce_gbytes: Sample | None = Field(default=None, description="bus bandwidth of 2 nodes with 8 GPUs (GB/s)")
    rccl_env: dict[VariableName, EnvField] = Field(
        default={}, description="environment of ranks on several nodes with AMD GPUs"
    )
    transfer: dict[Word, dict[VariableName, EnvField]] = Field(
        default={}, description="environment of prefill and decode servers, by transfer backend"
    )

    def is_good(self, firmware: str) -> bool:
        """Return whether a firmware is no older than the oldest good version of its major version, if known."""
        version = _version(firmware)
        good = [_version(item) for item in self.firmware]
        same = [item for item in good if item[:1] == version[:1]]
        return not good or version >= min(same or good)


def ranks_use_rdma(plan: Plan) -> bool:
    """Return whether ranks on several nodes use RDMA; NCCL_IB_DISABLE=1 selects TCP (NCCL 2.27 documentation)."""
    return len(plan.gpus) > 0 and not any(item.name == NO_RDMA and item.value == "1" for item in plan.env)


def transfer_uses_rdma(plan: Plan) -> bool:
    """Return whether prefill and decode servers transfer the KV cache by RDMA."""
    return bool(plan.transfer) and not plan.transfer.endswith("over tcp")


def needs_rdma(plan: Plan) -> bool:
    """Return whether a server uses RDMA between its ranks or to transfer its KV cache."""
    return (plan.layout.nodes > 1 and ranks_use_rdma(plan)) or transfer_uses_rdma(plan)


def network_env(profile: "Profile", networks: Mapping[str, Network]) -> Iterator[EnvVar]:
    """Yield the variables of a profile's networks: for ranks on several nodes, and for transfers."""
    layout = profile.layout
    if _on_multiple_amd_nodes(profile) and (name := _rank_network(profile)):
        yield from _variables(networks[name].rccl_env)
    if layout.transfer:
        yield from _variables(networks[layout.transfer.network].transfer.get(layout.transfer.backend, {}))


def _on_multiple_amd_nodes(profile: "Profile") -> bool:
    layout = profile.layout
    roles = (role.nodes for role in (layout.prefill, layout.decode) if role)
    nodes = max(layout.nodes.value, *(role.value for role in roles if role), 1)  # the roles share their environment
    return nodes > 1 and profile.hardware.vendor == "amd"


def _rank_network(profile: "Profile") -> str | None:
    """Return the network between the ranks of a server: `hardware.network`, or else that of the KV cache transfer."""
    transfer = profile.layout.transfer
    return profile.hardware.network or (transfer.network if transfer and transfer.network != "tcp" else None)


def network_warnings(profile: "Profile", networks: Mapping[str, Network]) -> Iterator[PlanWarning]:
    """Warn of ranks on several nodes with unknown NICs, and of a transfer backend without published settings."""
    tcp = profile.env.get(NO_RDMA)
    if _on_multiple_amd_nodes(profile) and not _rank_network(profile) and not (tcp and str(tcp.value) == "1"):
        yield PlanWarning(
            id="network-unknown",
            summary="the NICs between the nodes are not set, so RCCL starts without the variables they need",
            source="ROCm/cvs dddd9143, input/config_file/rccl",
            hint="`--set hardware.network=NAME`: ainic, thor2 or connectx; for TCP, `--set env.NCCL_IB_DISABLE=1`",
        )
    transfer = profile.layout.transfer
    if transfer and transfer.backend not in (known := networks[transfer.network].transfer):
        yield PlanWarning(
            id="transfer-unpublished",
            summary=f"no settings are published for {transfer.backend} over {transfer.network}",
            source=f"profiles/networks/{transfer.network}.yaml",
            hint=f"set `layout.transfer.backend` to {' or '.join(known)}; or set in `env` what your site uses",
        )


def _variables(settings: Mapping[str, EnvField]) -> Iterator[EnvVar]:
    for name, setting in settings.items():
        yield EnvVar(name=name, value=str(setting.value), origin=setting.origin, source=setting.source)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
