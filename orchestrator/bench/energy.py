"""GPU energy from the hardware counters, read with amd-smi or NVML.

amd-smi prints the counter as JSON. nvidia-smi 580 has no query for it, so NVML is called through nvidia-ml-py. The
difference of two counter readings needs no sampling and cannot miss a peak.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from orchestrator.bench.result import Energy
from orchestrator.core import subprocesses
from orchestrator.core.text import parse_json

_AMD_SMI: Final = ("amd-smi", "metric", "--energy", "--json")


class EnergyUnavailableError(Exception):
    """No energy counter is available; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class EnergyReading:
    """The energy counter of each GPU in joules, at `at_s` on a monotonic clock."""

    source: str
    joules: tuple[float, ...]
    at_s: float


EnergyReader = Callable[[], EnergyReading]


def read_energy(gpus: Sequence[int] | None = None) -> EnergyReading:
    """Read the energy counters of local GPUs by index, or of all GPUs. Raises EnergyUnavailableError."""
    try:
        source, joules = "amd-smi", parse_amd_smi(subprocesses.run(_AMD_SMI, timeout=30))
    except subprocesses.ProgramMissingError:
        source, joules = "nvml", _read_nvml()
    if gpus is not None:
        if missing := [index for index in gpus if index >= len(joules)]:
            raise EnergyUnavailableError(f"{source} has no counter of GPU {missing[0]}")
        joules = tuple(joules[index] for index in gpus)
    return EnergyReading(source=source, joules=joules, at_s=time.monotonic())


def parse_amd_smi(done: subprocesses.CompletedProgram) -> tuple[float, ...]:
    """Parse the counters in joules from the JSON of amd-smi: a list of GPUs, since ROCm 6.4 inside `gpu_data`.

    Raises EnergyUnavailableError for any other output.
    """
    try:
        data = parse_json(done.stdout)
        gpus = data["gpu_data"] if isinstance(data, dict) else data
        readings = tuple(gpu["energy"]["total_energy_consumption"] for gpu in gpus)
        if not readings or any(reading["unit"] != "J" for reading in readings):
            raise EnergyUnavailableError("amd-smi reports no energy in joules")
        return tuple(float(reading["value"]) for reading in readings)
    except (ValueError, KeyError, TypeError) as error:
        raise EnergyUnavailableError(
            f"amd-smi reports no energy counter: {(done.stderr or done.stdout)[:120]}"
        ) from error


def _read_nvml() -> tuple[float, ...]:
    nvml = import_module("pynvml")  # takes 50 ms; needed only without amd-smi
    try:
        nvml.nvmlInit()
        try:
            gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return tuple(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000 for gpu in gpus)  # from millijoules
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError_LibraryNotFound as error:
        raise EnergyUnavailableError("neither amd-smi nor NVML is installed") from error
    except nvml.NVMLError as error:
        raise EnergyUnavailableError(f"NVML reports no energy counter: {error}") from error


def energy_between(before: EnergyReading, after: EnergyReading, *, output_tokens: int) -> Energy:
    """Compute the energy used between two readings, and per output token.

    Invalid if the readings cover different GPUs, or if a counter decreased (driver reset) or did not change.
    """
    seconds = after.at_s - before.at_s
    joules_used = [b - a for a, b in zip(before.joules, after.joules, strict=False)]
    if len(before.joules) != len(after.joules) or before.source != after.source:
        return Energy(valid=False, source=after.source, reason="the readings cover different GPUs")
    if not joules_used or min(joules_used) < 0:
        return Energy(valid=False, source=after.source, reason="an energy counter decreased")
    if min(joules_used) == 0 or seconds <= 0:
        return Energy(valid=False, source=after.source, reason="an energy counter did not change")
    joules = sum(joules_used)
    return Energy(
        valid=True,
        source=after.source,
        seconds=seconds,
        joules=joules,
        joules_per_output_token=joules / output_tokens if output_tokens else None,
        output_tok_per_s_per_watt=output_tokens / joules if output_tokens else None,
    )
