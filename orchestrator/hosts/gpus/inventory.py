"""What a node's GPUs are and who uses them, whatever tool told us."""

from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as its vendor's tool lists it. None where the tool does not say; sizes are bytes."""

    index: int
    arch: str | None  # gfx950, sm90: what a compiler calls it
    name: str | None  # the marketing name, for people only: it is "AMD Radeon Graphics" on many nodes
    compute_units: int | None  # AMD only: nvidia-smi does not count SMs
    vram_bytes: int | None
    vram_used: int | None

    @property
    def used_share(self) -> float | None:
        """Used VRAM as a share of all, 0 to 1."""
        if not self.vram_bytes or self.vram_used is None:
            return None
        return self.vram_used / self.vram_bytes


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process with memory on a GPU; `gpu` is None where the tool lists processes for the whole node."""

    pid: int
    name: str
    gpu: int | None
    vram_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class GpuInventory:
    """All GPUs of a node. `faults` says what a tool printed that could not be read; it never hides the rest."""

    vendor: str  # amd | nvidia
    tool: str  # the program that told us
    driver: str | None
    toolkit: str | None  # ROCm release, or the newest CUDA this driver runs
    gpus: tuple[Gpu, ...]
    processes: tuple[GpuProcess, ...]
    faults: tuple[str, ...]


def holders(inventory: GpuInventory, gpus: Iterable[int]) -> tuple[str, ...]:
    """The processes with memory on any of `gpus`, as text: `python3 (pid 412, gpu 0, 40.6 GiB)`."""
    wanted = set(gpus)
    return tuple(_describe(process) for process in inventory.processes if process.gpu is None or process.gpu in wanted)


def _describe(process: GpuProcess) -> str:
    where = "" if process.gpu is None else f", gpu {process.gpu}"
    size = "" if process.vram_bytes is None else f", {gib(process.vram_bytes)}"
    return f"{process.name} (pid {process.pid}{where}{size})"


def gib(size: float) -> str:
    """A size in bytes as GiB, one decimal."""
    return f"{size / GIB:.1f} GiB"
