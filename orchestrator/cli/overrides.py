"""Options that are short forms of `--set`."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.errors import DeployError


def overridden(
    overrides: Sequence[str] | None, *, revision: str | None = None, runtime: str | None = None
) -> tuple[str, ...]:
    """Return the `--set` options, including those that `--revision` and `--runtime` stand for."""
    from_options = {"model.checkpoint.revision": revision, "runtime": runtime}
    return (*(overrides or ()), *(f"{key}={value}" for key, value in from_options.items() if value))


def name_options(error: DeployError, *, revision: str | None, runtime: str | None) -> None:
    """Change the locations and hints of an error to name the options given instead of `--set`."""
    option_of = {"--set model.checkpoint.revision": revision and "--revision", "--set runtime": runtime and "--runtime"}
    error.location = option_of.get(error.location) or error.location
    error.hint = _option_of(error.hint, runtime)
    error.problems = tuple(
        replace(
            problem,
            location=option_of.get(problem.location) or problem.location,
            hint=_option_of(problem.hint, runtime),
        )
        for problem in error.problems
    )


def _option_of(hint: str, runtime: str | None) -> str:
    """Return the hint with `--runtime` if that option was given: it overrides `--set runtime`."""
    return hint.replace("--set runtime=", "--runtime ") if runtime else hint
