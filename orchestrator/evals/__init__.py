"""Quality: evaluations of a served model through lm-evaluation-harness, and through tau2-bench. None is imported."""

from orchestrator.evals import tau2
from orchestrator.evals.harness import REQUIREMENTS, EvalRequest, evaluate, require_questions
from orchestrator.evals.suites import SUITES, Suite, find_suite

__all__ = ["REQUIREMENTS", "SUITES", "EvalRequest", "Suite", "evaluate", "find_suite", "require_questions", "tau2"]
