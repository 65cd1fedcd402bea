"""Energy of the GPUs, from counters that the devices keep themselves: amd-smi, or NVML (what nvidia-smi reads).

nvidia-smi 580 has no query for the counter, so NVML's C function is called; amd-smi prints it as JSON. A difference of
two counter readings needs no sampling and cannot miss a peak.
"""

import ctypes
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from orchestrator.core.shell import ProgramMissingError, ProgramResult, run
from orchestrator.results.result import Energy

_AMD_SMI: Final = ("amd-smi", "metric", "--energy", "--json")


class EnergyUnavailableError(Exception):
    """There is no counter to read; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The energy counter of each GPU in joules, at `at_s` on a monotonic clock."""

    source: str
    joules: tuple[float, ...]
    at_s: float


Reader = Callable[[], Reading]


def read_energy() -> Reading:
    """Read the counters of all GPUs of this machine. Raises EnergyUnavailableError."""
    try:
        return Reading(source="amd-smi", joules=parse_amd_smi(run(_AMD_SMI, timeout=30)), at_s=time.monotonic())
    except ProgramMissingError:
        return Reading(source="nvml", joules=tuple(_nvml()), at_s=time.monotonic())


def parse_amd_smi(done: ProgramResult) -> tuple[float, ...]:
    """The counters in amd-smi's JSON: a list of GPUs, from ROCm 6.4 on inside `gpu_data`."""
    try:
        data = json.loads(done.stdout)
        gpus = data["gpu_data"] if isinstance(data, dict) else data
        readings = tuple(gpu["energy"]["total_energy_consumption"] for gpu in gpus)
        if not readings or any(reading["unit"] != "J" for reading in readings):
            raise EnergyUnavailableError("amd-smi gives no energy in joules")
        return tuple(float(reading["value"]) for reading in readings)
    except (ValueError, KeyError, TypeError) as error:
        raise EnergyUnavailableError(
            f"amd-smi gives no energy counter: {(done.stderr or done.stdout)[:120]}"
        ) from error


def _nvml() -> Iterator[float]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise EnergyUnavailableError("neither amd-smi nor NVML is on this machine") from error
    count, device, millijoules = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_ulonglong()
    _check(nvml.nvmlInit_v2())
    try:
        _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        for index in range(count.value):
            _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)))
            _check(nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)))
            yield millijoules.value / 1000
    finally:
        nvml.nvmlShutdown()


def _check(code: int) -> None:
    if code:
        raise EnergyUnavailableError(f"NVML answers with error {code}")


def energy_between(before: Reading, after: Reading, *, output_tokens: int) -> Energy:
    """What the GPUs used between two readings, per token that was put out in between.

    Not valid where a GPU is missing from one reading, a counter went backwards (driver reset) or did not move.
    """
    seconds = after.at_s - before.at_s
    used = [b - a for a, b in zip(before.joules, after.joules, strict=False)]
    if len(before.joules) != len(after.joules) or before.source != after.source:
        return Energy(valid=False, source=after.source, reason="the readings are not of the same GPUs")
    if not used or min(used) < 0:
        return Energy(valid=False, source=after.source, reason="an energy counter went backwards")
    if min(used) == 0 or seconds <= 0:
        return Energy(valid=False, source=after.source, reason="an energy counter did not move")
    joules = sum(used)
    return Energy(
        valid=True,
        source=after.source,
        seconds=seconds,
        joules=joules,
        mean_watts=joules / seconds,
        joules_per_output_token=joules / output_tokens if output_tokens else None,
        output_tok_per_s_per_watt=output_tokens / joules if output_tokens else None,
    )
