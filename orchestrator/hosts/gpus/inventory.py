"""Vendor-independent model of a host's GPUs and the processes that use them."""

from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, as reported by its vendor's tool. Sizes are in bytes; None means that the tool reports no value."""

    index: int
    arch: str | None  # the compiler's name: gfx950, sm90
    name: str | None  # marketing name, only for display: "AMD Radeon Graphics" on many hosts
    compute_units: int | None  # AMD only: nvidia-smi reports no number of SMs
    vram_bytes: int | None
    vram_used: int | None

    @property
    def used_share(self) -> float | None:
        """Share of the VRAM in use, 0 to 1; None if it is unknown."""
        if not self.vram_bytes or self.vram_used is None:
            return None
        return self.vram_used / self.vram_bytes


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that uses VRAM; `gpu` is None if the tool does not report the GPU of each process."""

    pid: int
    name: str
    gpu: int | None
    vram_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class GpuInventory:
    """The GPUs of one vendor on a host. `errors` are messages about tool output that could not be parsed."""

    vendor: str  # amd | nvidia
    tool: str  # program that reported the GPUs
    driver: str | None
    toolkit: str | None  # ROCm release, or the newest CUDA release that the driver supports
    gpus: tuple[Gpu, ...]
    processes: tuple[GpuProcess, ...]
    errors: tuple[str, ...]


def holders(inventory: GpuInventory, gpus: Iterable[int]) -> tuple[str, ...]:
    """Describe each process that uses VRAM of `gpus`: `python3 (pid 412, gpu 0, 40.6 GiB)`.

    A process whose GPU is unknown is included.
    """
    indices = set(gpus)
    return tuple(_describe(process) for process in inventory.processes if process.gpu is None or process.gpu in indices)


def _describe(process: GpuProcess) -> str:
    gpu = "" if process.gpu is None else f", gpu {process.gpu}"
    size = "" if process.vram_bytes is None else f", {gib(process.vram_bytes)}"
    return f"{process.name} (pid {process.pid}{gpu}{size})"


def gib(size: float) -> str:
    """Format a size in bytes as GiB with one decimal."""
    return f"{size / GIB:.1f} GiB"
