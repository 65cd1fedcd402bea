"""The input of a preflight check: the plan, the survey of the host, and access to the host."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.hosts.gpus.inventory import Gpu, GpuInventory
from orchestrator.hosts.host_state import HostState
from orchestrator.hosts.report import Finding
from orchestrator.hosts.survey import Runner
from orchestrator.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """Disk space that a plan needs under `directory`; `size` is in bytes."""

    purpose: str
    directory: str
    size: int


@dataclass(frozen=True, kw_only=True)
class HostAccess:
    """Access to a host, and facts that a survey cannot collect.

    `checkpoint` verifies the plan's checkpoint and returns its description and its size in bytes, or raises
    CheckpointError; None if there is no checkpoint to verify. With `in_container`, the limits of the container apply
    to the server, not those of this shell. `interpreter` is a Python with the engine; None if `deploy up` builds its
    environment, or if the engine is in an image. `server_on` returns the name of the `deploy` server on a port, or
    None. `freed` holds the ports of the server that is stopped before this start. `rank` is the rank of the host.
    """

    runner: Runner
    environ: Mapping[str, str]
    spaces: Sequence[DiskNeed]
    checkpoint: Callable[[], tuple[str, int]] | None
    in_container: bool
    interpreter: str | None = None
    server_on: Callable[[int], str | None] = lambda _port: None
    freed: frozenset[int] = frozenset()
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """The plan, the surveyed host, and access to the host for further commands."""

    plan: Plan
    host_state: HostState
    access: HostAccess

    @property
    def inventory(self) -> GpuInventory | None:
        """The GPUs of the plan's vendor; None if the host has none."""
        return next(
            (inventory for inventory in self.host_state.inventories if inventory.vendor == self.plan.hardware.vendor),
            None,
        )

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the plan uses, without indices that the host lacks."""
        gpus = self.inventory.gpus if self.inventory else ()
        return tuple(gpus[index] for index in self.plan.gpus if index < len(gpus))


Check = Callable[[CheckContext], Iterator[Finding]]
