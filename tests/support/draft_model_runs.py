"""Run `draft_model.py` with the engine's Python, to load checkpoints with sglang's classes."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_forks import Program, run_forked

from orchestrator.hosts.venvs.venv import Venv

SCRIPT = Path(__file__).with_name("draft_model.py")


def run_lines(environment: Venv, *arguments: str, sources: Path | None = None) -> dict[str, dict[str, Any]]:
    """Run `draft_model.py` once; return its results by the folder name of the checkpoint."""
    return run_orders(environment, arguments, sources=sources)[0]


def run_orders(
    environment: Venv, *orders: Sequence[str], sources: Path | None = None
) -> list[dict[str, dict[str, Any]]]:
    """Run several orders in one process, which imports sglang once; return the results of each."""
    arguments = [word for order in orders for word in (*order, "--")][:-1]
    lines = run(environment, *arguments, sources=sources).splitlines()
    results = [json.loads(line) for line in lines if line.startswith('{"checkpoint"')]
    return [{result["checkpoint"]: result for result in results if result["order"] == at} for at in range(len(orders))]


def run(environment: Venv, *arguments: str, sources: Path | None = None) -> str:
    variables = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"} | ({"PYTHONPATH": str(sources)} if sources else {})
    done = run_forked(environment.python, {"": Program(program=str(SCRIPT), argv=arguments)}, variables)[""]
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
