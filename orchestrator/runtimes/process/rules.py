"""Rules for plans of the process runtime."""

from collections.abc import Iterator
from typing import Final

from orchestrator.core.errors import Problem
from orchestrator.plan.placement import replicas_join_no_gateway, runs_on_one_node
from orchestrator.plan.rules import RuleContext


def has_interpreter(context: RuleContext) -> Iterator[Problem]:
    """Require an interpreter with the engine, or a requirements file to install one."""
    engine = context.profile.engine
    if engine.requirements is None and engine.python is None:
        yield Problem(
            "the process runtime needs an engine with a requirement file or an interpreter",
            context.location("engine"),
            "in a container that has sglang, `--set engine.python=python3`; otherwise `--set runtime=docker`",
        )


RULES: Final = (has_interpreter, runs_on_one_node, replicas_join_no_gateway)
