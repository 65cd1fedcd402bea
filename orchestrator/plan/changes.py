"""What is different between two plans."""

from collections.abc import Iterator, Mapping


def changes(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """The differences of two plans as data, one line a value: `- key: old`, `+ key: new`."""
    before, after = flat(old), flat(new)
    lines = []
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            lines += [f"- {key}: {before[key]}"] if key in before else []
            lines += [f"+ {key}: {after[key]}"] if key in after else []
    return "\n".join(lines)


def flat(data: Mapping[str, object]) -> dict[str, str]:
    """Plan data by the dotted key of each value, as a profile would have it."""
    return dict(_flat(data, ""))


def _flat(value: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for item in value:
            yield from _flat({str(item.get("name") or item.get("id")): _named(item)}, key)
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
