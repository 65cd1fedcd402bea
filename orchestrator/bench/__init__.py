"""Measure a served model with the field's own definitions, on any endpoint that speaks the API.

::

    workload ──prompts──▶ requests ──drive──▶ samples ──aggregate──▶ point ──▶ result.json
              run_point: caches, counters and energy around each load       benchmark: every point, the knee, the marks
"""

from orchestrator.bench.benchmark import BenchRequest, UnwrittenError, measure
from orchestrator.bench.connection import Address
from orchestrator.bench.counters import server_counts
from orchestrator.bench.energy import EnergyReader, EnergyReading, EnergyUnavailableError, read_energy
from orchestrator.bench.steady import unjudged
from orchestrator.bench.workload import Workload, load_workload, read_text, workload_name

__all__ = [
    "Address",
    "BenchRequest",
    "EnergyReader",
    "EnergyReading",
    "EnergyUnavailableError",
    "UnwrittenError",
    "Workload",
    "load_workload",
    "measure",
    "read_energy",
    "read_text",
    "server_counts",
    "unjudged",
    "workload_name",
]
