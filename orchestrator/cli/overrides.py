"""Options that are short forms of `--set`."""

from collections.abc import Sequence


def overridden(
    overrides: Sequence[str] | None, *, revision: str | None = None, runtime: str | None = None
) -> tuple[str, ...]:
    """Return the `--set` options, with those for `--revision` and `--runtime`."""
    stand_ins = {"model.checkpoint.revision": revision, "runtime": runtime}
    return (*(overrides or ()), *(f"{key}={value}" for key, value in stand_ins.items() if value))
