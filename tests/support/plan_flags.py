"""Read an engine option of a plan."""

from orchestrator.plan.plan import Plan


def flag_of(plan: Plan, name: str) -> str | None:
    """Return the option's values joined by spaces: "" for a bare switch, None if the plan does not set it."""
    return next((" ".join(flag.values) for flag in plan.flags if flag.name == name), None)
