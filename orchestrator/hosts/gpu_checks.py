"""Preflight checks of the GPUs and their driver."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from orchestrator.hosts.context import CheckContext
from orchestrator.hosts.gpus import VENDORS
from orchestrator.hosts.gpus.inventory import Gpu, GpuInventory, gib, holders
from orchestrator.hosts.report import Finding, fail, info, info_if, warn
from orchestrator.plan.plan import Plan

VRAM_IN_USE = "vram in use"  # the check that may pass later without any action
DRAINED = 0.10  # maximum share of a GPU's VRAM in use before a start (InferenceX benchmark_lib.sh)

_VRAM_TOLERANCE = 0.97  # share; firmware reserves some: a B200 reports 183359 of 184320 MiB
# ROCm releases in order. A driver supports user space up to 2 releases newer ("+/- 2 releases", ROCm 6.3 user and
# kernel-space support matrix) and, since driver 30.30, 4 older (7.2 down to 6.3, amdgpu compatibility matrix).
_ROCM = ("5.7", "6.0", "6.1", "6.2", "6.3", "6.4", "7.0", "7.1", "7.2")
_NEWER, _OLDER = 2, 4
_ARCH_HINTS = {
    "amd": "update ROCm; `amd-smi static --asic` shows what it reports",
    "nvidia": "update the driver; `nvidia-smi --query-gpu=name,compute_cap --format=csv` shows what it reports",
}


def gpus_present(context: CheckContext) -> Iterator[Finding]:
    """Check that the host has as many GPUs of the vendor as the layout uses."""
    hardware, inventory = context.plan.hardware, context.inventory
    if hardware.vendor == "cpu":
        yield info("gpus", "not queried", "none")
        return
    needed = f"{len(context.plan.gpus)} x {hardware.arch}"
    if inventory is None:
        other = "; ".join(f"{len(i.gpus)} of {VENDORS[i.vendor].name}" for i in context.host_state.inventories)
        suffix = f" ({other})" if other else "; found neither `amd-smi` nor `nvidia-smi`"
        value = f"no {VENDORS[hardware.vendor].name} GPU{suffix}"
        yield fail("gpus", value, needed, "choose a profile for this host: `deploy profiles`")
        return
    module = {"amd": "amdgpu", "nvidia": "nvrm"}[inventory.vendor]
    count, hint = len(inventory.gpus), f"find the missing GPU: `sudo dmesg | grep -i {module}`"
    value = f"{_items(inventory.gpus, [gpu.name or 'GPU' for gpu in inventory.gpus])} by {inventory.tool}"
    if count <= max(context.plan.gpus, default=0):
        source = context.plan.model.checkpoint
        other = f"; or `deploy up --model {source.path}` proposes a profile for this host's GPUs"
        yield fail("gpus", value, needed, hint + other * (source.source != "generated"))
    elif count < hardware.gpus and len(context.plan.gpus) > 1:  # one-GPU servers often run on one-GPU hosts
        hint = f"{hint}; to use only these GPUs: `--set hardware.gpus={count}`"
        yield warn("gpus", f"{value} of {hardware.gpus} in the node", needed, hint)
    else:
        yield info("gpus", value, needed)
    for fault in inventory.errors:
        yield warn("gpu tool", fault, "complete output", "run the GPU tool by hand and read its output")


def gpu_arch(context: CheckContext) -> Iterator[Finding]:
    """Check that the GPUs have the architecture for which the image was compiled.

    The check compares the compiler's name (gfx950), because marketing names are unreliable.
    """
    needed = context.plan.hardware.arch
    if not context.gpus:
        return
    value = _items(context.gpus, [gpu.arch or "not reported" for gpu in context.gpus])
    archs = {gpu.arch for gpu in context.gpus}
    if archs == {needed}:
        yield info("gpu arch", value, needed)
    elif archs == {None}:
        yield warn("gpu arch", value, needed, _ARCH_HINTS[context.plan.hardware.vendor])
    else:
        yield fail("gpu arch", value, needed, "choose a profile for these GPUs: `deploy profiles`")


def compute_units(context: CheckContext) -> Iterator[Finding]:
    """Check the CU count: aiter selects tuned kernels by it, and a partitioned GPU has fewer CUs."""
    needed, reporting = context.plan.hardware.compute_units, [gpu for gpu in context.gpus if gpu.compute_units]
    if not needed or not reporting:
        return
    value = _items(reporting, [str(gpu.compute_units) for gpu in reporting])
    hint = "if the GPUs are partitioned: `sudo amd-smi set --compute-partition SPX`"
    equal = all(gpu.compute_units == needed for gpu in reporting)
    yield info_if(equal, warn, "compute units", value, str(needed), hint)


def vram_size(context: CheckContext) -> Iterator[Finding]:
    """Check that every GPU has the VRAM that the plan assumes, less a tolerance of 3%."""
    needed, reporting = context.plan.hardware.vram_bytes, [gpu for gpu in context.gpus if gpu.vram_bytes]
    if not reporting:
        return
    sizes = [gpu.vram_bytes or 0 for gpu in reporting]
    hint = "choose a profile for these GPUs, or undo their partition"
    is_enough = min(sizes) >= needed * _VRAM_TOLERANCE
    yield info_if(is_enough, fail, "vram", _items(reporting, [gib(size) for size in sizes]), gib(needed), hint)


def vram_use(context: CheckContext) -> Iterator[Finding]:
    """Check that VRAM is free before a start: leftover processes cause RCCL errors at initialization."""
    inventory, needed = context.inventory, f"at most {DRAINED:.0%} a GPU"
    if inventory is None or not context.gpus:
        return
    if any(gpu.used_share is None for gpu in context.gpus):
        hint = "check the VRAM use by hand before the start"
        yield warn(VRAM_IN_USE, f"not reported by {inventory.tool}", needed, hint)
        return
    if busy := busy_gpus(context.gpus):
        users = "; ".join(holders(inventory, (gpu.index for gpu in busy))) or "no visible process"
        value = f"{describe_use(busy)}; used by {users}"
        hint = f"{_stop(inventory, busy)}, or wait: VRAM drains for minutes after a kill"
        yield fail(VRAM_IN_USE, value, needed, hint)
    else:
        yield info(VRAM_IN_USE, f"at most {max(gpu.used_share or 0 for gpu in context.gpus):.0%} a GPU", needed)


def driver(context: CheckContext) -> Iterator[Finding]:
    """Check that the host's driver supports the image's ROCm or CUDA release."""
    inventory = context.inventory
    if inventory is None:
        return
    toolkit = VENDORS[inventory.vendor].toolkit
    value = f"{inventory.driver or 'unknown driver'}, {toolkit} {inventory.toolkit or 'of unknown version'}"
    image_version = image_toolkit(context.plan)
    if image_version is None or inventory.toolkit is None:
        yield info("driver", value)
    else:
        hint = f"install a driver for {toolkit} {image_version}, or choose an image for {toolkit} {inventory.toolkit}"
        supported = carries(inventory.vendor, inventory.toolkit, image_version)
        yield info_if(supported, warn, "driver", value, f"{toolkit} {image_version} in the image", hint)


def busy_gpus(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs with more than `DRAINED` of their VRAM in use."""
    return tuple(gpu for gpu in gpus if (gpu.used_share or 0) > DRAINED)


def describe_use(gpus: Sequence[Gpu]) -> str:
    """Format the used VRAM of GPUs: `gpu 0 29%, gpu 3 41%`."""
    return ", ".join(f"gpu {gpu.index} {gpu.used_share or 0:.0%}" for gpu in gpus)


def image_toolkit(plan: Plan) -> str | None:
    """Return the ROCm or CUDA release in the tag of the plan's image; None if the tag has none.

    `rocm720` is 7.2 and `cu130` is 13.0 (the tags of lmsysorg/sglang).
    """
    match = re.search(r"rocm(\d)(\d)\d|cu(\d\d)(\d)\b", plan.engine.image or "")
    return ".".join(part for part in match.groups() if part) if match else None


def carries(vendor: str, host: str, image: str) -> bool:
    """Return whether a driver of release `host` supports the user space of release `image`.

    A CUDA driver supports every release up to its own major version (CUDA compatibility, minor version compatibility).
    A ROCm release that is missing from the support matrices counts as supported.
    """
    if vendor == "nvidia":
        return int(host.partition(".")[0]) >= int(image.partition(".")[0])
    release = ".".join(host.split(".")[:2])
    if release not in _ROCM or image not in _ROCM:
        return True
    return -_OLDER <= _ROCM.index(image) - _ROCM.index(release) <= _NEWER


def _stop(inventory: GpuInventory, busy: Sequence[Gpu]) -> str:
    indices = {gpu.index for gpu in busy}
    pids = sorted({process.pid for process in inventory.processes if process.gpu is None or process.gpu in indices})
    return f"stop them: `kill {' '.join(map(str, pids))}`" if pids else "stop the server that used it"


def _items(gpus: Sequence[Gpu], values: Sequence[str]) -> str:
    """Format one value per GPU: `8 x 288.0 GiB` if all are equal, otherwise each value with its GPU indices."""
    pairs = sorted(zip(values, [gpu.index for gpu in gpus], strict=True))
    if not pairs:
        return "none"
    groups = [(value, [index for _, index in group]) for value, group in groupby(pairs, key=lambda pair: pair[0])]
    if len(groups) == 1:
        return f"{len(gpus)} x {groups[0][0]}"
    return ", ".join(f"{value} (gpu {' '.join(map(str, indices))})" for value, indices in groups)
