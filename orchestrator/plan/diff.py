"""Differences between plans or other flat data. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SAME_VALUES: Final = "no value differs; only origins or descriptions do"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key whose values differ; "" for a side without the key."""

    key: str
    values: tuple[str, ...]


def differences(sides: Sequence[Mapping[str, str]]) -> tuple[Difference, ...]:
    """Return the differing keys of the sides, sorted."""
    keys = sorted({key for side in sides for key in side})
    return tuple(
        Difference(key=key, values=tuple(side.get(key, "") for side in sides))
        for key in keys
        if len({side.get(key) for side in sides}) > 1
    )


def render_diff(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """Render the differences between two plans, one line per value: `- key: old`, `+ key: new`."""
    sides = (flatten(old), flatten(new))
    lines = "\n".join(
        f"{sign} {difference.key}: {side[difference.key]}"
        for difference in differences(sides)
        for sign, side in zip("-+", sides, strict=True)
        if difference.key in side
    )
    return lines or (_SAME_VALUES if old != new else "")


def flatten(data: Mapping[str, object]) -> dict[str, str]:
    """Flatten plan data to dotted keys, as in `--set`."""
    return dict(_flat(data, ""))


def _flat(value: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for index, item in enumerate(value, start=1):
            yield from _flat({str(item.get("name") or item.get("id") or index): _item_value(item)}, key)
    else:
        yield key, _format_value(value)


def _format_value(value: object) -> str:
    """Format a value as in a profile."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _item_value(item: Mapping[str, object]) -> object:
    """Return the value of a flag or variable; any other item without its id."""
    if "values" in item:
        return item["values"] or True  # a bare switch
    if "value" in item:
        return item["value"]
    return {key: inner for key, inner in item.items() if key != "id"}
