"""A node's GPUs, whatever tool tells of them: one module a vendor, and a line below."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.hosts.gpus import amd, nvidia
from orchestrator.hosts.gpus.inventory import GIB, MIB, Gpu, GpuInventory, gib, holders
from orchestrator.hosts.survey import Runner, Survey, local, survey


@dataclass(frozen=True, kw_only=True)
class Vendor:
    """How the GPUs of one vendor are looked at."""

    name: str
    toolkit: str  # what its user space is called
    sections: Mapping[str, str]  # of a survey
    read: Callable[[Survey], GpuInventory | None]  # None where there are none


VENDORS: Final[Mapping[str, Vendor]] = {
    "amd": Vendor(name="AMD", toolkit="ROCm", sections=amd.SECTIONS, read=amd.read_amd),
    "nvidia": Vendor(name="NVIDIA", toolkit="CUDA", sections=nvidia.SECTIONS, read=nvidia.read_nvidia),
}
ALL_SECTIONS: Final = {name: command for vendor in VENDORS.values() for name, command in vendor.sections.items()}


def read_gpus(vendor: str, runner: Runner = local) -> GpuInventory | None:
    """One look at the GPUs of a vendor; None where there are none."""
    return VENDORS[vendor].read(survey(runner, VENDORS[vendor].sections))


def inventories(look: Survey) -> tuple[GpuInventory, ...]:
    """The GPUs of every vendor in a survey."""
    return tuple(found for vendor in VENDORS.values() if (found := vendor.read(look)))


__all__ = [
    "ALL_SECTIONS",
    "GIB",
    "MIB",
    "VENDORS",
    "Gpu",
    "GpuInventory",
    "gib",
    "holders",
    "inventories",
    "read_gpus",
]
