"""Waiting for the VRAM of a stopped server: the driver takes minutes to release it."""

import time
from collections.abc import Callable, Sequence

from orchestrator.core.errors import HostError
from orchestrator.core.polling import poll_until
from orchestrator.hosts.gpu_checks import DRAINED, busy_gpus, describe_use
from orchestrator.hosts.gpus.inventory import Gpu, GpuInventory, holders

LIMIT = 900.0  # seconds, as in InferenceX benchmark_lib.sh
_INTERVAL = 5.0  # seconds between two readings


def wait_for_vram_release(
    read: Callable[[], GpuInventory | None],
    *,
    gpus: Sequence[int],
    progress: Callable[[str, float], None] = lambda _text, _seconds: None,
) -> None:
    """Wait until each of the `gpus` (indices) has at most `DRAINED` of its VRAM in use.

    `read` reads the GPUs once (`gpus.read_gpus`). `progress` gets the VRAM still in use, as text, and the seconds
    waited. Raises HostError with the processes that hold VRAM after `LIMIT` seconds, or at once if VRAM use cannot be
    read.
    """
    start = time.monotonic()
    inventory, busy = poll_until(
        lambda use: not use[1],
        lambda: _vram_in_use(read(), gpus),
        timeout=LIMIT,
        interval=_INTERVAL,
        on_tick=lambda use: progress(
            f"waiting for VRAM to drain to {DRAINED:.0%}: {describe_use(use[1])}", time.monotonic() - start
        ),
    )
    if busy:
        waited = time.monotonic() - start
        users = "; ".join(holders(inventory, (gpu.index for gpu in busy))) or "no visible process"
        hint = "`deploy preflight PROFILE` names the processes that use it; if there are none, reset the GPUs"
        raise HostError(f"VRAM is still in use after {waited:.0f} s: {describe_use(busy)}; used by {users}", hint=hint)


def _vram_in_use(inventory: GpuInventory | None, gpus: Sequence[int]) -> tuple[GpuInventory, Sequence[Gpu]]:
    """Return the requested GPUs, and those still busy. Raises HostError if VRAM use cannot be read."""
    found = inventory.gpus if inventory else ()
    requested = [found[index] for index in gpus if index < len(found)]
    if inventory is None or len(requested) < len(gpus) or any(gpu.used_share is None for gpu in requested):
        faults = "; ".join(inventory.errors) if inventory else ""
        message = f"cannot read the VRAM use of {len(gpus)} GPUs ({faults or f'{len(found)} GPUs found'})"
        hint = "`deploy preflight PROFILE` shows what is missing"
        raise HostError(message, hint=hint)
    return inventory, busy_gpus(requested)
