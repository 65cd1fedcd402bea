"""Python environments of engines, and of the evaluation harness: built from pinned lists with uv, kept by digest."""

from orchestrator.environments.environment import Environment, built_interpreter, ensure, interpreter

__all__ = ["Environment", "built_interpreter", "ensure", "interpreter"]
