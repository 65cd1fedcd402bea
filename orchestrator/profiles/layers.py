"""The merge of layers into one document: hardware, model, engine, profile, `--set`, lowest precedence first.

Scalars replace, mappings merge by key, lists replace, `null` removes; among the flags of a role it omits a shared one.
A setting (an entry of `flags`, `env`, `layout` or `gateway`) is replaced as a whole, so a value never keeps the origin
of the value it replaced. If `--set` changes any part of a setting, its origin is the user. Every key keeps the file and
line it came from.

A profile names a catalog entry by name or path, overrides single values of one (`use:`), or contains it inline.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, cast

from orchestrator.core.errors import Problem, ProfileError, UsageError
from orchestrator.core.origin import Origin
from orchestrator.core.yaml_document import MAX_DEPTH, Data, Document, KeyPath, read_scalar

EXTENDS: Final = "extends"  # in a profile: name or path of the profile to override
ENTRY_KEYS: Final = ("hardware", "model", "engine")
USE: Final = "use"  # in an entry inside a profile: the file to override
SHARED: Final = ("flags", "env")  # keys of an entry that belong to the whole profile
SETTINGS: Final = (*SHARED, "layout", "gateway")  # keys with settings as entries
_OPTION: Final = "--set "
_SOURCE: Final = "source"
_IMAGE: Final = ("engine", "image")
_OF_AN_IMAGE: Final = ("image_digest", "aiter_commit")  # keys of an engine that describe its image


_SECTIONS: Final[tuple[KeyPath, ...]] = (("layout", "prefill"), ("layout", "decode"), ("layout", "transfer"))


def is_setting(path: KeyPath) -> bool:
    """Return whether the value at a key path has its own origin."""
    if path[:2] in _SECTIONS:  # in `layout`, settings are its keys and the keys of its `flags`
        return len(path) == (4 if path[2:3] == ("flags",) else 3) and path[1] != "transfer" and path[2] != "replicas"
    return len(path) == 2 and path[0] in SETTINGS


@dataclass(frozen=True)
class MergedProfile:
    """The merged document, the location of each key path, and the names and files of its catalog entries."""

    data: dict[str, Data]
    locations: Mapping[KeyPath, str]
    names: Mapping[str, str]
    files: Mapping[str, str]  # files of entries

    def location(self, path: KeyPath) -> str:
        """Return the location of a key path, else of its nearest parent, else of a key inside it."""
        requested = path
        while path and path not in self.locations:
            path = path[:-1]
        if path in self.locations:
            return self.locations[path]
        return next(
            (location for known, location in self.locations.items() if known[: len(requested)] == requested), ""
        )

    def from_command_line(self, path: KeyPath) -> bool:
        """Return whether a command-line option sets the key path."""
        return self.location(path).startswith(_OPTION)


@dataclass(frozen=True)
class Override:
    """One `--set key.path=value`."""

    path: tuple[str, ...]
    value: Data

    @classmethod
    def parse(cls, text: str) -> "Override":
        """Parse `key.path=value`, or `key=[a,b]` for a list. Raises UsageError with the expected form."""
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise UsageError(f"`--set {text}` has no key and value", hint="write it as `--set layout.tp=4`")
        if len(path) > MAX_DEPTH:
            raise ProfileError(f"`--set {key[:60]}…` names no key of a profile", hint="write it as `--set layout.tp=4`")
        if value.startswith("[") and value.endswith("]"):
            return cls(path, [read_scalar(item.strip()) for item in value[1:-1].split(",") if item.strip()])
        return cls(path, read_scalar(value))


@dataclass(frozen=True)
class EntryChoice:
    """The file of one catalog entry, and the profiles that override it or replace it inline.

    `by` is the profile that names the file; None: a command-line option.
    """

    file: str | None
    by: Document | None
    over: tuple[Document, ...]


def select_entries(profiles: Sequence[Document], overrides: Sequence[Override]) -> dict[str, EntryChoice]:
    """Return the choice of hardware, model and engine, from the profile, its base, or a `--set`.

    `profiles` are the layers of the profile, base first. Raises ProfileError with every entry that is missing, or
    neither a name nor a mapping.
    """
    choices: dict[str, EntryChoice] = {}
    problems: list[Problem] = []
    for entry_key in ENTRY_KEYS:
        try:
            choices[entry_key] = _choice(entry_key, profiles, overrides)
        except ProfileError as error:
            problems += error.problems_or_self()
    if problems:
        raise ProfileError(f"`{profiles[-1].name}` does not name hardware, model and engine", problems=problems)
    return choices


def _choice(entry_key: str, profiles: Sequence[Document], overrides: Sequence[Override]) -> EntryChoice:
    choice = EntryChoice(None, None, ())
    for profile in profiles:
        if entry_key in profile.data:
            choice = _chosen(entry_key, profile, choice)
    for override in overrides:
        if override.path == (entry_key,):
            choice = EntryChoice(_file(entry_key, override.value, _OPTION + entry_key), None, ())
        elif override.path == (entry_key, USE):
            choice = replace(choice, file=_file(entry_key, override.value, f"{_OPTION}{entry_key}.{USE}"), by=None)
    if choice.file is None and not choice.over:
        _file(entry_key, None, _naming(entry_key, profiles).location((entry_key,)))
    return choice


def _chosen(entry_key: str, profile: Document, below: EntryChoice) -> EntryChoice:
    """Return the choice after one more layer: a name replaces it, a mapping overrides the lower layers."""
    section = profile.data[entry_key]
    if not isinstance(section, dict):
        return EntryChoice(_file(entry_key, section, profile.location((entry_key,))), profile, ())
    if USE in section:
        return EntryChoice(_file(entry_key, section[USE], profile.location((entry_key, USE))), profile, (profile,))
    return replace(below, over=(*below.over, profile))


def _file(entry_key: str, chosen: Data, location: str) -> str:
    if isinstance(chosen, str):
        return chosen
    hint = f"`{entry_key}: NAME`, `{entry_key}: ./FILE.yaml`, or `{entry_key}: {{{USE}: NAME, KEY: VALUE}}`"
    actual = "nothing" if chosen is None else f"`{chosen}`"
    raise ProfileError(f"`{entry_key}` must name a file, found {actual}", location=location, hint=hint)


def merge_layers(
    choices: Mapping[str, EntryChoice],
    *,
    entries: Mapping[str, Document],
    names: Mapping[str, str],
    profiles: Sequence[Document],
    overrides: Sequence[Override],
) -> MergedProfile:
    """Merge the layers. `choices` and `names` cover each catalog entry, `entries` the documents of named files.

    `profiles` are the layers of the profile, base first.
    """
    data: dict[str, Data] = {}
    locations: dict[KeyPath, str] = {}
    names = dict(names)
    for entry_key, choice in choices.items():
        if entry_key in entries:
            _layer(data, locations, _entries(entry_key, entries[entry_key], entries[entry_key].data))
        for profile in choice.over:
            with _image_replaced(data, locations, names):
                left_out = {USE, _SOURCE} if entry_key in entries else {USE}  # a file has its own source
                section = {key: value for key, value in _mapping(entry_key, profile).items() if key not in left_out}
                _layer(data, locations, _entries(entry_key, profile, section, entry_key))
    for profile in profiles:
        profile_data = {key: value for key, value in profile.data.items() if key not in {*ENTRY_KEYS, EXTENDS}}
        _layer(data, locations, [((key,), value, profile, (key,)) for key, value in profile_data.items()])
    with _image_replaced(data, locations, names):
        for override in overrides:
            _apply_override(data, locations, override)
    for entry_key in ENTRY_KEYS:
        locations.setdefault((entry_key,), _naming(entry_key, profiles).location((entry_key,)))
    return MergedProfile(data, locations, names, {entry_key: document.name for entry_key, document in entries.items()})


@contextmanager
def _image_replaced(data: dict[str, Data], locations: dict[KeyPath, str], names: dict[str, str]) -> Iterator[None]:
    """Remove the engine's name and the facts about its image if the block replaces the image.

    Facts that the block sets again are kept.
    """
    paths = [(_IMAGE[0], key) for key in _OF_AN_IMAGE]
    before, section = _value(data, _IMAGE), {path: locations.get(path) for path in paths}
    yield
    image = _value(data, _IMAGE)
    if before is None or image == before:
        return
    names["engine"] = str(image)
    for path in paths:
        if locations.get(path) == section[path]:
            _forget(locations, path, parent_of(data, path).pop(path[-1], None))


def _value(data: Mapping[str, Data], path: tuple[str, str]) -> Data:
    holder = data.get(path[0])
    return holder.get(path[1]) if isinstance(holder, dict) else None


def _naming(entry_key: str, profiles: Sequence[Document]) -> Document:
    """Return the last layer that names a catalog entry, else the profile itself."""
    return next((profile for profile in reversed(profiles) if entry_key in profile.data), profiles[-1])


Entry = tuple[KeyPath, Data, Document, KeyPath]


def _entries(entry_key: str, document: Document, text: Mapping[str, Data], *inside: str) -> list[Entry]:
    """Return the items of a catalog entry: facts go below the entry's key, shared keys to the top level.

    `inside` is the key of the entry in the document, if the document is a profile.
    """
    return [
        ((key,) if key in SHARED else (entry_key, key), value, document, (*inside, key)) for key, value in text.items()
    ]


def _mapping(entry_key: str, profile: Document) -> Mapping[str, Data]:
    section = profile.data[entry_key]
    return section if isinstance(section, dict) else {}


def _layer(data: dict[str, Data], locations: dict[KeyPath, str], entries: Iterable[Entry]) -> None:
    for target, value, document, source in entries:
        _merge(data, locations, target, value, _Placer(document, len(target), source))


@dataclass(frozen=True)
class _Placer:
    document: Document
    cut: int
    source: KeyPath

    def __call__(self, path: KeyPath) -> str:
        return self.document.location((*self.source, *path[self.cut :]))


def _merge(
    data: dict[str, Data], locations: dict[KeyPath, str], path: KeyPath, value: Data, location: "_Placer"
) -> None:
    parent = parent_of(data, path)
    key = str(path[-1])
    if isinstance(value, dict) and not is_setting(path):
        if not isinstance(parent.get(key), dict):
            _forget(locations, path, parent.get(key))
            parent[key] = {}
        locations.setdefault(path, location(path))
        for name, item in value.items():
            _merge(data, locations, (*path, name), item, location)
        return
    _forget(locations, path, parent.pop(key, None))
    of_role = path[2:3] == ("flags",) and is_setting(path)  # without the null, the role would inherit the shared flag
    if value is not None or of_role:
        parent[key] = value
        _record_locations(locations, path, value, location)


def parent_of(data: dict[str, Data], path: KeyPath) -> dict[str, Data]:
    """Return the section that contains the last key of a path; add missing sections."""
    for key in path[:-1]:
        inner = data.setdefault(str(key), {})
        if not isinstance(inner, dict):
            inner = data[str(key)] = {}
        data = inner
    return data


def _record_locations(locations: dict[KeyPath, str], path: KeyPath, value: Data, location: "_Placer") -> None:
    locations[path] = location(path)
    for step, item in _items(value):
        _record_locations(locations, (*path, step), item, location)


def _forget(locations: dict[KeyPath, str], path: KeyPath, value: Data) -> None:
    """Remove the locations of `value` at `path` and of everything inside it."""
    locations.pop(path, None)
    for step, item in _items(value):
        _forget(locations, (*path, step), item)


def _items(value: Data) -> Iterable[tuple[str | int, Data]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _apply_override(data: dict[str, Data], locations: dict[KeyPath, str], override: Override) -> None:
    path: KeyPath = override.path
    if path[0] in ENTRY_KEYS and path[1:] in {(), (USE,)}:
        return  # the override selected the file, see `select_entries`
    location = f"{_OPTION}{'.'.join(override.path)}"
    if path[0] in ENTRY_KEYS and path[1:] == (_SOURCE,):
        hint = "set it in a file; `deploy` records `--set` as the source of the values that it sets"
        raise ProfileError("`--set` cannot set the source of a file's facts", location=location, hint=hint)
    value = override.value
    depth = next((depth for depth in range(2, len(path) + 1) if is_setting(path[:depth])), None)
    if depth is not None and (value is not None or len(path) > depth):
        path = path[:depth]
        value = _of_user(data, override, path)
    _merge(data, locations, path, value, _Placer(Document(location, {}, {}), len(path), ()))


def _of_user(data: Mapping[str, Data], override: Override, path: KeyPath) -> Data:
    """Return the setting at `path` that contains an override's key, with the user as its only origin."""
    leaf, old = override.path[len(path) :], cast("Data", data)
    for key in path:
        old = old.get(str(key)) if isinstance(old, dict) else None
    setting: dict[str, Data] = dict(old) if isinstance(old, dict) else {} if old is None else {"value": old}
    for name in ("source", "note"):
        setting.pop(name, None)
    setting[".".join(leaf) or "value"] = override.value
    return {**setting, "origin": Origin.USER.value, "source": f"{_OPTION}{'.'.join(map(str, path))}"}
