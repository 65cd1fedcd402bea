"""Layers become one document: hardware, model, engine, profile, `--set`; nothing else has precedence.

Scalars replace, mappings merge by key, lists replace, `null` removes. A setting (an entry of `flags`, `env` or
`layout`) replaces as a whole, so a value never keeps the origin of the value it replaced; and whatever of it `--set`
names, it is the user's from then on. Every key remembers the file and line it came from.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.document import DEEPEST, Data, Document, KeyPath, read_scalar
from orchestrator.core.errors import Problem, ProfileError, UsageError
from orchestrator.core.origin import Origin

EXTENDS: Final = "extends"  # in a profile: the name of another, of which it says what differs
PARTS: Final = ("hardware", "model", "engine")
SHARED: Final = ("flags", "env")  # keys of a part that speak for the whole profile
SETTINGS: Final = (*SHARED, "layout")  # keys whose entries are settings
_OPTION: Final = "--set "


def is_setting(path: KeyPath) -> bool:
    """Whether a key path is that of a value with an origin of its own."""
    return len(path) == 2 and path[0] in SETTINGS


@dataclass(frozen=True)
class Composed:
    """The one document, `file:line` for each key path, and the names of the parts it was put together from."""

    data: dict[str, Data]
    places: Mapping[KeyPath, str]
    names: Mapping[str, str]

    def place(self, path: KeyPath) -> str:
        """Where a key path, or the nearest thing that holds it, was written."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "")

    def given(self, path: KeyPath) -> bool:
        """Whether an option of the command line says so, and no file."""
        return self.place(path).startswith(_OPTION)


@dataclass(frozen=True)
class Override:
    """One `--set key.path=value`."""

    path: tuple[str, ...]
    value: Data

    @classmethod
    def parse(cls, text: str) -> "Override":
        """Read `key.path=value`, a list as `key=[a,b]`. Raises UsageError with the form that was expected."""
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise UsageError(f"`--set {text}` has no key and value", hint="write it as `--set layout.tp=4`")
        if len(path) > DEEPEST:
            raise ProfileError(f"`--set {key[:60]}…` names no key of a profile")
        if value.startswith("[") and value.endswith("]"):
            return cls(path, [read_scalar(item.strip()) for item in value[1:-1].split(",") if item.strip()])
        return cls(path, read_scalar(value))


def part_names(profiles: Sequence[Document], overrides: Sequence[Override]) -> dict[str, str]:
    """Which hardware, model and engine file the profile names: itself, the one it extends, or a `--set`.

    `profiles` are the layers of the profile, its own last. Raises ProfileError with every name that is missing or is
    not text.
    """
    names, problems = {}, []
    for part in PARTS:
        document = _naming(part, profiles)
        chosen = document.data.get(part)
        for override in overrides:
            if override.path == (part,):
                chosen = override.value
        if isinstance(chosen, str):
            names[part] = chosen
        else:
            problems.append(
                Problem(f"`{part}` must name a file, found {_show(chosen)}", document.place((part,)), f"`{part}: NAME`")
            )
    if problems:
        raise ProfileError(f"`{profiles[-1].name}` does not name its parts", problems=problems)
    return names


def compose(
    parts: Mapping[str, Document],
    *,
    names: Mapping[str, str],
    profiles: Sequence[Document],
    overrides: Sequence[Override],
) -> Composed:
    """Put the layers together. `parts` and `names` hold one entry for each of `hardware`, `model` and `engine`.

    `profiles` are the layers of the profile itself, the one that is extended before the one that extends it.
    """
    data: dict[str, Data] = {}
    places: dict[KeyPath, str] = {}
    for part in PARTS:
        _layer(data, places, _as_layer(part, parts[part]))
    for profile in profiles:
        own = {key: value for key, value in profile.data.items() if key not in {*PARTS, EXTENDS}}
        _layer(data, places, [((key,), value, profile, (key,)) for key, value in own.items()])
    for override in overrides:
        _apply_override(data, places, override)
    for part in PARTS:
        places.setdefault((part,), _naming(part, profiles).place((part,)))
    return Composed(data, places, names)


def _naming(part: str, profiles: Sequence[Document]) -> Document:
    """The last layer that names a part, or the profile's own."""
    return next((profile for profile in reversed(profiles) if part in profile.data), profiles[-1])


Entry = tuple[KeyPath, Data, Document, KeyPath]


def _as_layer(part: str, document: Document) -> list[Entry]:
    """The entries of one part file: its facts go below the part's name, what it shares goes to the top."""
    return [((key,) if key in SHARED else (part, key), value, document, (key,)) for key, value in document.data.items()]


def _layer(data: dict[str, Data], places: dict[KeyPath, str], entries: Iterable[Entry]) -> None:
    for target, value, document, source in entries:
        _merge(data, places, target, value, _placer(document, target, source))


def _placer(document: Document, target: KeyPath, source: KeyPath) -> "_Placer":
    return _Placer(document, len(target), source)


@dataclass(frozen=True)
class _Placer:
    document: Document
    cut: int
    source: KeyPath

    def __call__(self, path: KeyPath) -> str:
        return self.document.place((*self.source, *path[self.cut :]))


def _merge(data: dict[str, Data], places: dict[KeyPath, str], path: KeyPath, value: Data, place: "_Placer") -> None:
    parent = _parent(data, path)
    key = str(path[-1])
    if isinstance(value, dict) and not is_setting(path):
        if not isinstance(parent.get(key), dict):
            _forget(places, path, parent.get(key))
            parent[key] = {}
        places.setdefault(path, place(path))
        for name, item in value.items():
            _merge(data, places, (*path, name), item, place)
        return
    _forget(places, path, parent.pop(key, None))
    if value is not None:
        parent[key] = value
        _remember(places, path, value, place)


def _parent(data: dict[str, Data], path: KeyPath) -> dict[str, Data]:
    for key in path[:-1]:
        inner = data.setdefault(str(key), {})
        if not isinstance(inner, dict):
            inner = data[str(key)] = {}
        data = inner
    return data


def _remember(places: dict[KeyPath, str], path: KeyPath, value: Data, place: "_Placer") -> None:
    places[path] = place(path)
    for step, item in _items(value):
        _remember(places, (*path, step), item, place)


def _forget(places: dict[KeyPath, str], path: KeyPath, value: Data) -> None:
    """Drop the places of `value`, which stood at `path`, and of all it held."""
    places.pop(path, None)
    for step, item in _items(value):
        _forget(places, (*path, step), item)


def _items(value: Data) -> Iterable[tuple[str | int, Data]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _apply_override(data: dict[str, Data], places: dict[KeyPath, str], override: Override) -> None:
    path: KeyPath = override.path
    if path[0] in PARTS and len(path) == 1:
        return  # it chose the file, see part_names
    place = f"{_OPTION}{'.'.join(override.path)}"
    if path[0] in PARTS and path[1:] == ("source",):
        hint = "what `--set` says is yours, and is shown as yours"
        raise ProfileError("the source of a file's facts is not set", where=place, hint=hint)
    value = override.value
    if is_setting(path[:2]) and (value is not None or len(path) > 2):
        value = _of_user(data, override)
        path = path[:2]
    _merge(data, places, path, value, _Placer(Document(place, {}, {}), len(path), ()))


def _of_user(data: Mapping[str, Data], override: Override) -> Data:
    """The setting that an override names or reaches into, as the user's own: nobody else stands behind it any more."""
    section, key, *leaf = override.path
    holder = data.get(section)
    old = holder.get(key) if isinstance(holder, dict) else None
    setting: dict[str, Data] = dict(old) if isinstance(old, dict) else {} if old is None else {"value": old}
    for name in ("source", "note"):
        setting.pop(name, None)
    setting[".".join(leaf) or "value"] = override.value
    return {**setting, "origin": Origin.USER.value, "source": f"{_OPTION}{section}.{key}"}


def _show(value: Data) -> str:
    return "nothing" if value is None else f"`{value}`"
