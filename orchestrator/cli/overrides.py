"""Options that stand for `--set`."""

from collections.abc import Sequence


def overridden(
    overrides: Sequence[str] | None, *, revision: str | None = None, on: str | None = None
) -> tuple[str, ...]:
    """`--set` options, and those that `--revision` and `--on` stand for."""
    stand_ins = {"model.checkpoint.revision": revision, "runtime": on}
    return (*(overrides or ()), *(f"{key}={value}" for key, value in stand_ins.items() if value))
