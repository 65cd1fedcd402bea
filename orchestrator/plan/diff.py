"""What is different between plans, and whatever else is flat data. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SAME_VALUES: Final = "every value is the same; what differs is where they are written, or what is said of them"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One value that is not the same on all sides: of each its own, "" where it has none."""

    key: str
    values: tuple[str, ...]


def differences(sides: Sequence[Mapping[str, str]]) -> tuple[Difference, ...]:
    """What the sides do not have in common, sorted by key."""
    keys = sorted({key for side in sides for key in side})
    return tuple(
        Difference(key=key, values=tuple(side.get(key, "") for side in sides))
        for key in keys
        if len({side.get(key) for side in sides}) > 1
    )


def render_diff(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """The differences of two plans as data, one line a value: `- key: old`, `+ key: new`; or that no value differs."""
    sides = (flatten(old), flatten(new))
    told = "\n".join(
        f"{sign} {each.key}: {side[each.key]}"
        for each in differences(sides)
        for sign, side in zip("-+", sides, strict=True)
        if each.key in side
    )
    return told or (_SAME_VALUES if old != new else "")


def flatten(data: Mapping[str, object]) -> dict[str, str]:
    """Plan data by the dotted key of each value, as a profile would have it."""
    return dict(_flat(data, ""))


def _flat(value: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for place, item in enumerate(value, start=1):
            yield from _flat({str(item.get("name") or item.get("id") or place): _named(item)}, key)
    else:
        yield key, _shown(value)


def _shown(value: object) -> str:
    """A value as a profile would have it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _named(item: Mapping[str, object]) -> object:
    """A flag or variable by its values alone; anything else whole."""
    if "values" in item:
        return item["values"] or True  # a bare switch
    if "value" in item:
        return item["value"]
    return {key: inner for key, inner in item.items() if key != "id"}
