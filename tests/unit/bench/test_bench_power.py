"""Energy: what the counters say, and when they cannot be trusted."""

import json

import pytest

from orchestrator.bench.power import EnergyUnavailableError, Reading, energy_between, parse_amd_smi
from orchestrator.core.shell import ProgramResult


def reading(*joules: float, at: float) -> Reading:
    return Reading(source="amd-smi", joules=joules, at_s=at)


def printed(data: object) -> ProgramResult:
    return ProgramResult(argv=("amd-smi",), code=0, stdout=json.dumps(data), stderr="")


def gpu(value: object, unit: str = "J") -> dict[str, object]:
    return {"gpu": 0, "energy": {"total_energy_consumption": {"value": value, "unit": unit}}}


def test_joules_per_token_and_tokens_per_joule() -> None:
    energy = energy_between(reading(100.0, 200.0, at=0.0), reading(1100.0, 1200.0, at=10.0), output_tokens=500)
    assert energy.valid
    assert (energy.joules, energy.seconds, energy.mean_watts) == (2000.0, 10.0, 200.0)
    assert energy.joules_per_output_token == 4.0
    assert energy.output_tok_per_s_per_watt == 0.25  # 50 tok/s at 200 W


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (reading(50.0, 300.0, at=1.0), "went backwards"),
        (reading(100.0, 300.0, at=1.0), "did not move"),
        (reading(200.0, at=1.0), "not of the same GPUs"),
    ],
)
def test_a_counter_that_cannot_be_trusted_gives_no_figure(after: Reading, reason: str) -> None:
    energy = energy_between(reading(100.0, 200.0, at=0.0), after, output_tokens=500)
    assert not energy.valid
    assert reason in energy.reason
    assert energy.joules is None


def test_both_shapes_of_amd_smi() -> None:
    assert parse_amd_smi(printed([gpu(1.5), gpu(2.5)])) == (1.5, 2.5)
    assert parse_amd_smi(printed({"gpu_data": [gpu(1.5)]})) == (1.5,)


@pytest.mark.parametrize("data", [[gpu("N/A")], [gpu(1.0, "kWh")], [], [{"gpu": 0, "energy": "N/A"}], "no"])
def test_no_counter_is_said_and_is_not_zero(data: object) -> None:
    with pytest.raises(EnergyUnavailableError):
        parse_amd_smi(printed(data))
