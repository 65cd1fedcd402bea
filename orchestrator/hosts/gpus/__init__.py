"""The GPUs of a host, read with their vendor's tools. To add a vendor, add a module and an entry in VENDORS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.hosts.gpus import amd, nvidia
from orchestrator.hosts.gpus.inventory import GpuInventory
from orchestrator.hosts.survey import Runner, Survey, local, survey


@dataclass(frozen=True, kw_only=True)
class Vendor:
    """A GPU vendor: its survey sections and their parser."""

    name: str
    toolkit: str  # name of the user space: ROCm or CUDA
    sections: Mapping[str, str]  # shell commands of a survey, by section name
    read: Callable[[Survey], GpuInventory | None]  # returns None if the host has no such GPU


VENDORS: Final[Mapping[str, Vendor]] = {
    "amd": Vendor(name="AMD", toolkit="ROCm", sections=amd.SECTIONS, read=amd.read_amd),
    "nvidia": Vendor(name="NVIDIA", toolkit="CUDA", sections=nvidia.SECTIONS, read=nvidia.read_nvidia),
}
ALL_SECTIONS: Final = {name: command for vendor in VENDORS.values() for name, command in vendor.sections.items()}


def read_gpus(vendor: str, runner: Runner = local) -> GpuInventory | None:
    """Read the GPUs of one vendor once; return None if the host has none. Raises HostError if the survey fails."""
    return VENDORS[vendor].read(survey(runner, VENDORS[vendor].sections))


def inventories(survey: Survey) -> tuple[GpuInventory, ...]:
    """Return the GPUs in a survey, one inventory for each vendor that was found."""
    return tuple(inventory for vendor in VENDORS.values() if (inventory := vendor.read(survey)))
