"""Waiting until the VRAM of a server that is gone has been given back: the driver takes minutes for it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.core.errors import HostError
from orchestrator.core.waiting import look_until
from orchestrator.host.amd import read_amd
from orchestrator.host.gpu_checks import DRAINED, busy_gpus, describe_use
from orchestrator.host.gpus import Gpu, GpuInventory, holders
from orchestrator.host.nvidia import read_nvidia
from orchestrator.host.survey import Runner, local, survey

LIMIT = 900.0  # seconds (InferenceX benchmark_lib.sh waits as long)
_PAUSE = 5.0


def read_gpus(vendor: str, runner: Runner = local) -> GpuInventory | None:
    """One look at the GPUs of a vendor (`amd`, `nvidia`); None where there are none."""
    look = survey(runner, machine=False)
    return read_amd(look) if vendor == "amd" else read_nvidia(look)


def wait_for_vram(
    read: Callable[[], GpuInventory | None],
    *,
    gpus: int,
    limit: float = LIMIT,
    share: float = DRAINED,
    progress: Callable[[str, float], None] = lambda _text, _seconds: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until each of the first `gpus` GPUs has at most `share` of its VRAM in use, and return the seconds it took.

    `read` looks once (`read_gpus`); `progress` is told what is still in use and the seconds waited. Raises HostError
    after `limit` seconds with who holds it, or at once where VRAM use cannot be read.
    """
    start = clock()
    use = look_until(
        lambda use: not use.busy,
        lambda: _vram_in_use(read(), gpus, share),
        within=limit,
        pause=_PAUSE,
        meanwhile=lambda use: progress(
            f"waiting for VRAM to drain to {share:.0%}: {describe_use(use.busy)}", clock() - start
        ),
        clock=clock,
        sleep=sleep,
    )
    waited = clock() - start
    if use.busy:
        who = "; ".join(holders(use.inventory, (gpu.index for gpu in use.busy))) or "no process that the tool can see"
        raise HostError(
            f"VRAM is still in use after {waited:.0f} s: {describe_use(use.busy)}; held by {who}",
            hint="stop the processes that hold it, or reset the GPUs if there is none",
        )
    return waited


@dataclass(frozen=True)
class _VramInUse:
    """One look: the GPUs that have not drained."""

    inventory: GpuInventory
    busy: Sequence[Gpu]


def _vram_in_use(inventory: GpuInventory | None, gpus: int, share: float) -> _VramInUse:
    """Raises HostError where VRAM use cannot be read."""
    taken = inventory.gpus[:gpus] if inventory else ()
    if inventory is None or len(taken) < gpus or any(gpu.used_share is None for gpu in taken):
        faults = "; ".join(inventory.faults) if inventory else ""
        raise HostError(
            f"the VRAM in use of {gpus} GPUs cannot be read ({faults or f'{len(taken)} GPUs found'})",
            hint="`deploy preflight` says what is missing",
        )
    return _VramInUse(inventory, busy_gpus(taken, share))
