"""`deploy add model`: a model's catalog entry from a checkpoint's files, each fact with its source."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.describe import Description, describe
from orchestrator.checkpoints.staging import hub_of
from orchestrator.checkpoints.summary import hub_summary, local_summary
from orchestrator.checkpoints.verify import compare_with_config
from orchestrator.core.catalog import EntryKind
from orchestrator.core.console import warn
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.core.yaml_document import Data
from orchestrator.planner.add.file import EntryOutput, entry_lines, free_name, require_complete, write_entry
from orchestrator.profiles.layers import Override
from orchestrator.profiles.schema import ModelFile
from orchestrator.profiles.yaml_writer import YamlLine

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def add_model(
    checkpoint: str,
    home: Home,
    *,
    name: str | None = None,
    revision: str | None = None,
    overrides: Sequence[str] = (),
    replace: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> EntryOutput:
    """Write a model's catalog entry from a checkpoint in a directory or in a repository on the hub.

    A note lists the differences between a directory's tensors and its config. From a repository, `deploy` reads too few
    headers for that.

    Raises UsageError for a used or invalid name, CheckpointError for an incomplete or inconsistent checkpoint,
    ProfileError with every missing fact and the option that sets it. Writes nothing on an error.
    """
    directory = _directory(checkpoint)
    if directory is not None and revision is not None:
        raise UsageError("`--revision` needs a repository on the hub, not a directory", hint="omit `--revision`")
    parsed = [Override.parse(text) for text in overrides]
    name = name or (directory.name if directory else checkpoint.partition("/")[2]).lower()
    free_name(EntryKind.MODEL, name, home, replace=replace)
    keys = [".".join(item.path) for item in parsed]
    if directory is not None:
        summary, section = local_summary(directory, config_only=True), {"source": "local", "path": str(directory)}
        description, gated = describe(summary, keys), False
        drafts = bool(summary.config.mtp_layers)
        for difference in compare_with_config(summary, drafts=drafts) if summary.has_shards else ():
            warn(difference.message, hint=difference.hint)
    else:
        summary, listing = hub_summary(checkpoint, revision, hub_of(environ))
        description, gated = describe(summary, keys), listing.gated
        section = {"source": "hub", "path": checkpoint, "revision": listing.commit}
    lines = _lines(name, section, description, parsed, gated=gated, has_shards=summary.has_shards)
    require_complete(lines, description.missing, checkpoint, ModelFile)
    added = EntryOutput.of(EntryKind.MODEL, name, home, lines, description.notes)
    comment = f"{name}, as `deploy add model` read its checkpoint. The comment after each fact is its source."
    write_entry(added, lines, [comment, *description.notes], ModelFile)
    return added


def _directory(checkpoint: str) -> Path | None:
    """Return the checkpoint's directory; None for a repository on the hub."""
    path = Path(checkpoint).expanduser()
    if checkpoint and path.is_dir():
        return path.absolute()
    if not checkpoint or path.exists() or not _REPOSITORY.fullmatch(checkpoint):
        hint = "pass the directory of a checkpoint, or a repository as `OWNER/NAME`"
        raise UsageError(f"`{checkpoint}` is neither a directory nor the name of a repository", hint=hint)
    return None


def _lines(
    name: str,
    checkpoint: Mapping[str, Data],
    description: Description,
    overrides: Sequence[Override],
    *,
    gated: bool,
    has_shards: bool,
) -> list[YamlLine]:
    """Return the lines in schema order; the user's values replace detected values."""
    source = f"config.json and {'safetensors headers' if has_shards else 'index'} of the checkpoint"
    lines: dict[tuple[str, ...], YamlLine] = {
        ("source",): YamlLine(path=("source",), value=source),
        ("checkpoint",): YamlLine(path=("checkpoint",), value=dict(checkpoint)),
        ("served_name",): YamlLine(
            path=("served_name",), value=name, comment="the name of this file; change it with `--set`"
        ),
    }
    if gated:
        lines["gated",] = YamlLine(path=("gated",), value=True, comment="from the hub")
    for key, fact in description.facts.items():
        path = tuple(key.split(".", 1))
        if path[0] == "flags":
            setting: Data = {"value": str(fact.value), "origin": "recipe", "source": fact.source}
            lines[path] = YamlLine(path=path, value=setting)
        elif isinstance(fact.value, bool | int | str | dict):
            lines[path] = YamlLine(path=path, value=fact.value, comment=fact.source)
    return entry_lines(lines, overrides, ModelFile)
