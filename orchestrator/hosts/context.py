"""What a check may look at."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.hosts.gpus.inventory import Gpu, GpuInventory
from orchestrator.hosts.machine import Machine
from orchestrator.hosts.report import Finding
from orchestrator.hosts.survey import Runner
from orchestrator.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """Room that a plan needs below a directory, in bytes."""

    purpose: str
    directory: str
    size: int


@dataclass(frozen=True, kw_only=True)
class HostAccess:
    """How preflight reaches a machine, and what it cannot find out there.

    `checkpoint` verifies the plan's checkpoint and describes it, with its size in bytes, or raises WeightsError; None
    where there is nothing to look at. `contained` says that the server will have limits of its own, not those of this
    shell. `interpreter` has the engine; None where it is made on the way up, or comes with an image. `server_on` names
    the server of ours that has a port; `freed` are the ports of the one that is stopped first.
    """

    runner: Runner
    environ: Mapping[str, str]
    spaces: Sequence[DiskNeed]
    checkpoint: Callable[[], tuple[str, int]] | None
    contained: bool
    interpreter: str | None = None
    server_on: Callable[[int], str | None] = lambda _port: None
    freed: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """The plan, the machine it is meant for, and how to learn more."""

    plan: Plan
    machine: Machine
    access: HostAccess

    @property
    def inventory(self) -> GpuInventory | None:
        """The GPUs of the plan's vendor."""
        return next((found for found in self.machine.inventories if found.vendor == self.plan.hardware.vendor), None)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those of the GPUs the plan takes that are there."""
        found = self.inventory.gpus if self.inventory else ()
        return tuple(found[index] for index in self.plan.gpus if index < len(found))


Check = Callable[[CheckContext], Iterator[Finding]]
