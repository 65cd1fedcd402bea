"""Evaluation results on disk."""

from pathlib import Path

from orchestrator.bench.result_files import read_result_text
from orchestrator.evals.eval_result import EvalResult, outcome_from_json


def load_outcome(file: Path) -> EvalResult:
    """An evaluation, from its file. Raises BenchError for one that cannot be read."""
    return outcome_from_json(read_result_text(file, "outcome"), where=str(file))
