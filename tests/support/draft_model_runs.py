"""What sglang's own classes make of a checkpoint: `draft_model.py`, run by the engine's Python."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.hosts.venvs.venv import Venv

SCRIPT = Path(__file__).with_name("draft_model.py")


def run_lines(environment: Venv, *arguments: str, sources: Path | None = None) -> dict[str, dict[str, Any]]:
    """What `draft_model.py` says of each checkpoint, by its folder's name."""
    return run_orders(environment, arguments, sources=sources)[0]


def run_orders(
    environment: Venv, *orders: Sequence[str], sources: Path | None = None
) -> list[dict[str, dict[str, Any]]]:
    """The same of several orders, which share what a process imports."""
    arguments = [word for order in orders for word in (*order, "--")][:-1]
    lines = run(environment, *arguments, sources=sources).splitlines()
    results = [json.loads(line) for line in lines if line.startswith('{"checkpoint"')]
    return [{each["checkpoint"]: each for each in results if each["order"] == at} for at in range(len(orders))]


def run(environment: Venv, *arguments: str, sources: Path | None = None) -> str:
    variables = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    variables |= {"PYTHONPATH": str(sources)} if sources else {}
    argv = [str(environment.python), str(SCRIPT), *arguments]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
