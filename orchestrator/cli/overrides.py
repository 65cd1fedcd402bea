"""Options that stand for `--set`."""

from collections.abc import Sequence


def overridden(
    overrides: Sequence[str] | None, *, revision: str | None = None, runtime: str | None = None
) -> tuple[str, ...]:
    """`--set` options, and those that `--revision` and `--runtime` stand for."""
    stand_ins = {"model.checkpoint.revision": revision, "runtime": runtime}
    return (*(overrides or ()), *(f"{key}={value}" for key, value in stand_ins.items() if value))
