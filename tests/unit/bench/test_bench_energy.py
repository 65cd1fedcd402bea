"""Test energy measurement and the detection of unreliable counters."""

import json

import pynvml
import pytest

from orchestrator.bench.energy import (
    EnergyReading,
    EnergyUnavailableError,
    energy_between,
    parse_amd_smi,
    read_energy,
)
from orchestrator.core import subprocesses


def reading(*joules: float, at: float) -> EnergyReading:
    return EnergyReading(source="amd-smi", joules=joules, at_s=at)


def program_output(data: object) -> subprocesses.CompletedProgram:
    return subprocesses.CompletedProgram(argv=("amd-smi",), code=0, stdout=json.dumps(data), stderr="")


def gpu(value: object, unit: str = "J") -> dict[str, object]:
    return {"gpu": 0, "energy": {"total_energy_consumption": {"value": value, "unit": unit}}}


def test_joules_per_token_and_tokens_per_joule() -> None:
    energy = energy_between(reading(100.0, 200.0, at=0.0), reading(1100.0, 1200.0, at=10.0), output_tokens=500)
    assert energy.valid
    assert (energy.joules, energy.seconds) == (2000.0, 10.0)
    assert energy.joules_per_output_token == 4.0
    assert energy.output_tok_per_s_per_watt == 0.25  # 50 tok/s at 200 W


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (reading(50.0, 300.0, at=1.0), "counter decreased"),
        (reading(100.0, 300.0, at=1.0), "did not change"),
        (reading(200.0, at=1.0), "different GPUs"),
    ],
)
def test_unreliable_energy_counter_yields_no_measurement(after: EnergyReading, reason: str) -> None:
    energy = energy_between(reading(100.0, 200.0, at=0.0), after, output_tokens=500)
    assert not energy.valid
    assert reason in energy.reason
    assert energy.joules is None


def test_both_amd_smi_formats_are_parsed() -> None:
    assert parse_amd_smi(program_output([gpu(1.5), gpu(2.5)])) == (1.5, 2.5)
    assert parse_amd_smi(program_output({"gpu_data": [gpu(1.5)]})) == (1.5,)


@pytest.mark.parametrize("data", [[gpu("N/A")], [gpu(1.0, "kWh")], [], [{"gpu": 0, "energy": "N/A"}], "no"])
def test_missing_energy_counter_is_an_error(data: object) -> None:
    with pytest.raises(EnergyUnavailableError):
        parse_amd_smi(program_output(data))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Simulate a machine with NVML, two GPUs and no amd-smi; return the list of NVML init and shutdown calls."""

    def missing(*_: object, **__: object) -> subprocesses.CompletedProgram:
        raise subprocesses.ProgramMissingError("amd-smi")

    calls: list[str] = []
    monkeypatch.setattr(subprocesses, "run", missing)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("init"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("shutdown"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda gpu: 1_500 + 1_000 * gpu)
    return calls


def test_nvml_is_used_without_amd_smi(nvml: list[str]) -> None:
    energy = read_energy()
    assert (energy.source, energy.joules) == ("nvml", (1.5, 2.5))
    assert nvml == ["init", "shutdown"]


@pytest.mark.usefixtures("nvml")
def test_server_energy_includes_only_its_gpus() -> None:
    assert read_energy(range(1, 2)).joules == (2.5,)
    with pytest.raises(EnergyUnavailableError, match="nvml has no counter of GPU 2"):
        read_energy(range(1, 3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "neither amd-smi nor NVML"),
        ("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no energy counter: Driver Not Loaded"),
        ("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED, "no energy counter: Not Supported"),
    ],
)
def test_nvml_error_yields_no_energy_reading(
    nvml: list[str], monkeypatch: pytest.MonkeyPatch, call: str, error: int, message: str
) -> None:
    def fail(*_: object) -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, call, fail)
    with pytest.raises(EnergyUnavailableError, match=message):
        read_energy()
    assert nvml in ([], ["init", "shutdown"])
