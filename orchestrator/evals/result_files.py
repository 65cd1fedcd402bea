"""Evaluation results on disk."""

from pathlib import Path

from orchestrator.bench.result_files import read_result_text
from orchestrator.evals.eval_result import EvalResult, eval_result_from_json


def load_eval_result(file: Path) -> EvalResult:
    """Load an eval result. Raises BenchError if the file is unreadable or invalid."""
    return eval_result_from_json(read_result_text(file, "eval result"), location=str(file))
