"""Quality: evaluations of a served model through lm-evaluation-harness, which is run and never imported."""

from orchestrator.evals.harness import REQUIREMENTS, EvalRequest, evaluate
from orchestrator.evals.suites import Suite, find_suite

__all__ = ["REQUIREMENTS", "EvalRequest", "Suite", "evaluate", "find_suite"]
