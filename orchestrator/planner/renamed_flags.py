"""Flags that sglang renamed before the version of the profile's engine.

The deprecation warning of an option names its successor; the flag tables of older versions contain these warnings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from packaging.version import Version

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import note
from orchestrator.core.errors import ProfileError
from orchestrator.core.yaml_document import Data, KeyPath
from orchestrator.engine.flags import FlagTable, read_flags
from orchestrator.profiles.layers import MergedProfile

_FLAGS = "flags"
_DP_ATTENTION = "dp_attention"


def rename_flags(composed: MergedProfile, table: FlagTable, catalog: Catalog) -> tuple[MergedProfile, FlagTable]:
    """Rename each flag that `table` lacks to its successor and print a note; keep flags without a successor.

    The returned table includes the flags that sglang removed without a successor.
    """
    _note_dp_option(composed, table)
    old_flags = composed.data.get(_FLAGS)
    unknown = [name for name in old_flags if name not in table.flags] if isinstance(old_flags, dict) else []
    if not isinstance(old_flags, dict) or not unknown:
        return composed, table
    flags, locations, removed = dict(old_flags), dict(composed.locations), {}
    older = _older_versions(table, catalog)
    for name in unknown:
        last, successor = _successor(name, older, catalog)
        new, _, value = successor.partition("=")
        if last and not new:
            removed[name] = last
        if new not in table.flags or new in flags or (value and not _is_on(flags[name])):
            continue
        flags[new] = _with_value(flags.pop(name), value)
        locations |= dict(_moved(composed, name, new))
        location = composed.location((_FLAGS, name))
        note(f"`--{name}` is `--{new}{f' {value}' if value else ''}` in sglang {table.version} ({location})")
    return replace(composed, data={**composed.data, _FLAGS: flags}, locations=locations), replace(
        table, removed=removed
    )


def _note_dp_option(composed: MergedProfile, table: FlagTable) -> None:
    """Note the option that replaces `--dp-size` for the layout's attention."""
    layout = composed.data.get("layout")
    if text := table.dp_note(attention=isinstance(layout, dict) and _is_on(layout.get(_DP_ATTENTION))):
        note(f"{text} ({composed.location(('layout', _DP_ATTENTION))})")


def _older_versions(table: FlagTable, catalog: Catalog) -> list[str]:
    """Return the versions before `table.version`, newest first."""
    older = [name for name in catalog.names(EntryKind.FLAGS) if Version(name) < Version(table.version)]
    return sorted(older, key=Version, reverse=True)


def _successor(name: str, older: Sequence[str], catalog: Catalog) -> tuple[str, str]:
    """Return the newest older version that has the option, and the successor it names, if any."""
    for version in older:
        try:
            spec = read_flags(version, catalog).flags.get(name)
        except ProfileError:
            continue
        if spec is not None:
            return version, spec.successor.removeprefix("--")
    return "", ""


def _is_on(setting: Data) -> bool:
    return (setting.get("value") if isinstance(setting, dict) else setting) is True


def _with_value(setting: Data, value: str) -> Data:
    """Return the setting of a switch whose successor is an option with a value."""
    if not value:
        return setting
    return {**setting, "value": value} if isinstance(setting, dict) else value


def _moved(composed: MergedProfile, name: str, new: str) -> Iterator[tuple[KeyPath, str]]:
    for path, location in composed.locations.items():
        if path[:2] == (_FLAGS, name):
            yield (_FLAGS, new, *path[2:]), location
