"""Assembly of a checkpoint from quantized shards: config, index, other files and model card; then verification."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.checkpoints.checkpoint import INDEX
from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.quantize.forecast import Forecast
from orchestrator.checkpoints.quantize.recipe import Recipe
from orchestrator.checkpoints.quantize.source import Source
from orchestrator.checkpoints.quantize.work_dir import ShardResult, WorkDir
from orchestrator.checkpoints.receipt import CheckpointReceipt, write_receipt
from orchestrator.checkpoints.verify import verify_created
from orchestrator.core.errors import BuildError
from orchestrator.core.files import atomic_write, copy_file, copy_tree, move
from orchestrator.core.safe_paths import CheckpointFile
from orchestrator.core.signals import defer_signals

_QUANTIZED: Final = "quantization_config"
_CARD: Final = "README.md"


@dataclass(frozen=True, kw_only=True)
class QuantizationInputs:
    """The inputs of a quantization, for the model card."""

    source: Source
    recipe_name: str
    recipe: Recipe
    forecast: Forecast


def assemble(folder: WorkDir, target: Path, inputs: QuantizationInputs) -> CheckpointReceipt:
    """Create the target from the complete shards. It appears atomically, with its receipt beside it.

    Raises BuildError if Quark's results for the shards disagree, CheckpointError if the new checkpoint is incomplete,
    CheckpointMismatchError if it does not match its config.
    """
    notes = {shard: folder.result(shard) for shard in inputs.forecast.shards}
    config = _config(notes, inputs.forecast)
    _copy_others(inputs.source.directory, folder.checkpoint)
    # The format of Quark's own files (file2file_quantization.py: `_export_quant_config`, `_export_safetensors_index`).
    atomic_write(folder.checkpoint / CONFIG, json.dumps(config, ensure_ascii=False, indent=4))
    atomic_write(folder.checkpoint / INDEX, json.dumps(_index(folder, inputs.forecast), ensure_ascii=False, indent=4))
    atomic_write(folder.checkpoint / _CARD, card(inputs, notes, size=_size(folder, inputs.forecast)))
    layer = inputs.source.layers if inputs.source.drafts else None
    receipt = verify_created(folder.checkpoint, target, layer=layer)
    with defer_signals():
        write_receipt(target, receipt)  # first: a target without a receipt, as after a kill, could not be resumed
        move(folder.checkpoint, target)
        folder.remove()
    return receipt


def _config(notes: Mapping[CheckpointFile, ShardResult], foreseen: Forecast) -> dict[str, Any]:
    """Return the config that Quark wrote for each shard, with the union of their excluded modules."""
    first, *others = (_without_exclude(note.config) for note in notes.values())
    if any(other != first for other in others):
        raise BuildError("Quark wrote different configs for different shards", location="made/")
    exclude = sorted({name for note in notes.values() for name in note.config[_QUANTIZED]["exclude"]})
    if tuple(exclude) != foreseen.exclude:
        odd = sorted({*exclude} ^ {*foreseen.exclude})
        raise BuildError(f"Quark excluded {len(odd)} other modules than the recipe, e.g. `{odd[0]}`")
    config: dict[str, Any] = json.loads(json.dumps(next(iter(notes.values())).config))
    config[_QUANTIZED]["exclude"] = exclude
    return config


def _without_exclude(config: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in config[_QUANTIZED].items() if key != "exclude"}
    return {**config, _QUANTIZED: rest}


def _index(folder: WorkDir, foreseen: Forecast) -> dict[str, Any]:
    places = {name: shard for shard, tensors in foreseen.shards.items() for name in tensors}
    return {"metadata": {"total_size": _size(folder, foreseen)}, "weight_map": places}


def _size(folder: WorkDir, foreseen: Forecast) -> int:
    return sum((folder.checkpoint / shard).stat().st_size for shard in foreseen.shards)


def copied_size(source: Path) -> int:
    """Return the bytes of the files that are copied unchanged."""
    files = (file for entry in _others(source) for file in ([entry] if entry.is_file() else entry.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file())


def _others(source: Path) -> Iterator[Path]:
    """Yield tokenizer, generation config and code: all but weights, index, cards, and a download's own records."""
    for entry in sorted(source.iterdir()):
        own = entry.name in {CONFIG, INDEX} or entry.name.startswith(".")
        if not (own or entry.suffix == ".safetensors" or entry.name.lower().startswith("readme")):
            yield entry


def _copy_others(source: Path, made: Path) -> None:
    for entry in _others(source):
        if entry.is_dir():
            copy_tree(entry, made / entry.name)
        else:
            copy_file(entry, made / entry.name)


def card(inputs: QuantizationInputs, notes: Mapping[CheckpointFile, ShardResult], *, size: int) -> str:
    """Return the checkpoint's README.md: source, tools and content. `size` is the bytes of its shards."""
    return "\n".join(_card_lines(inputs, notes, size)) + "\n"


def _card_lines(of: QuantizationInputs, notes: Mapping[CheckpointFile, ShardResult], size: int) -> Iterator[str]:
    source, first = of.source, next(iter(notes.values()))
    commit = f" at `{source.commit}`" if source.commit else ", its commit not known"
    yield f"# {source.directory.name}, quantized by AMD Quark"
    yield ""
    yield f"Made by `deploy quantize` from `{source.directory.name}`{commit}. Not evaluated: measure before you use it."
    yield ""
    yield "| | |"
    yield "| --- | --- |"
    rows = {
        "recipe": f"`{of.recipe_name}`: {of.recipe.description}",
        "of": of.recipe.source,
        "scheme": f"`{of.recipe.scheme}`",
        "excluded": ", ".join(f"`{pattern}`" for pattern in of.recipe.excluded(source.layers)) or "nothing",
        "other schemes": ", ".join(f"`{key}`: {word}" for key, word in of.recipe.schemes(source.layers).items()),
        "modules left as they were": f"{len(of.forecast.exclude):,}",
        "tensors": _dtypes(of.forecast),
        "size": f"{size:,} bytes in {len(notes)} shards, from {source.size:,}",
        "made with": ", ".join(f"{name} {version}" for name, version in first.versions.items()),
        "on": f"{', '.join(sorted({note.device.partition(':')[0] for note in notes.values()}))}, "
        f"{sum(note.seconds for note in notes.values()):.0f} s of one worker",
    }
    yield from (f"| {name} | {value} |" for name, value in rows.items() if value)


def _dtypes(foreseen: Forecast) -> str:
    counts = Counter(tensor.dtype for tensors in foreseen.shards.values() for tensor in tensors.values())
    return ", ".join(f"{count:,} {dtype}" for dtype, count in sorted(counts.items()))
