"""Assembly of a checkpoint from quantized shards: config, index, other files and model card; then verification."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
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


def assemble(
    folder: WorkDir, target: Path, *, source: Source, recipe: Recipe, recipe_name: str, forecast: Forecast
) -> CheckpointReceipt:
    """Create the target from the complete shards, atomically, with its receipt.

    `recipe_name` is shown in the model card. Raises BuildError if Quark's results for the shards disagree,
    CheckpointError if the new checkpoint is incomplete, CheckpointMismatchError if it does not match its config.
    """
    results = {shard: folder.result(shard) for shard in forecast.shards}
    config = _config(results, forecast)
    size = sum((folder.checkpoint / shard).stat().st_size for shard in forecast.shards)
    weight_map = {name: shard for shard, tensors in forecast.shards.items() for name in tensors}
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    for entry in _copied_files(source.directory):
        copy = copy_tree if entry.is_dir() else copy_file
        copy(entry, folder.checkpoint / entry.name)
    # The format of Quark's own files (file2file_quantization.py: `_export_quant_config`, `_export_safetensors_index`).
    atomic_write(folder.checkpoint / CONFIG, json.dumps(config, ensure_ascii=False, indent=4))
    atomic_write(folder.checkpoint / INDEX, json.dumps(index, ensure_ascii=False, indent=4))
    card = _model_card(source, recipe, recipe_name, forecast, results, size=size)
    atomic_write(folder.checkpoint / _CARD, card)
    layer = source.layers if source.drafts else None
    receipt = verify_created(folder.checkpoint, target, layer=layer)
    with defer_signals():
        write_receipt(target, receipt)  # first: after a kill, a target without a receipt could not be resumed
        move(folder.checkpoint, target)
        folder.remove()
    return receipt


def _config(results: Mapping[CheckpointFile, ShardResult], forecast: Forecast) -> dict[str, Any]:
    """Return the config that Quark wrote for the shards, with the union of their excluded modules."""
    exclude = sorted({name for result in results.values() for name in result.config[_QUANTIZED]["exclude"]})
    config, *other_configs = (
        {**result.config, _QUANTIZED: {**result.config[_QUANTIZED], "exclude": exclude}} for result in results.values()
    )
    if any(other != config for other in other_configs):
        raise BuildError("Quark wrote different configs for different shards", location="made/")
    if tuple(exclude) != forecast.exclude:
        different = sorted({*exclude} ^ {*forecast.exclude})
        raise BuildError(f"Quark excluded {len(different)} other modules than the recipe, e.g. `{different[0]}`")
    return config


def copied_size(source: Path) -> int:
    """Return the bytes of the files that are copied unchanged."""
    files = (file for entry in _copied_files(source) for file in ([entry] if entry.is_file() else entry.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file())


def _copied_files(source: Path) -> Iterator[Path]:
    """Yield all files except weights, index, cards and download records: tokenizer, generation config and code."""
    for entry in sorted(source.iterdir()):
        written = entry.name in {CONFIG, INDEX} or entry.name.startswith(".")
        if not (written or entry.suffix == ".safetensors" or entry.name.lower().startswith("readme")):
            yield entry


def _model_card(
    source: Source,
    recipe: Recipe,
    recipe_name: str,
    forecast: Forecast,
    results: Mapping[CheckpointFile, ShardResult],
    *,
    size: int,
) -> str:
    """Return the checkpoint's README.md: source, tools and content. `size` is the size of its shards in bytes."""
    commit = f" at `{source.commit}`" if source.commit else ", commit unknown"
    dtypes = Counter(tensor.dtype for tensors in forecast.shards.values() for tensor in tensors.values())
    devices = sorted({result.device.partition(":")[0] for result in results.values()})
    rows = {
        "recipe": f"`{recipe_name}`: {recipe.description}",
        "source of the recipe": recipe.source,
        "scheme": f"`{recipe.scheme}`",
        "excluded": ", ".join(f"`{pattern}`" for pattern in recipe.excluded(source.layers)) or "nothing",
        "other schemes": ", ".join(f"`{key}`: {scheme}" for key, scheme in recipe.schemes(source.layers).items()),
        "unquantized modules": f"{len(forecast.exclude):,}",
        "tensors": ", ".join(f"{count:,} {dtype}" for dtype, count in sorted(dtypes.items())),
        "size": f"{size:,} bytes in {len(results)} shards, from {source.size:,}",
        "made with": ", ".join(f"{name} {version}" for name, version in next(iter(results.values())).versions.items()),
        "device": ", ".join(devices),
        "time": f"{sum(result.seconds for result in results.values()):.0f} s of one worker",
    }
    lines = [
        f"# {source.directory.name}, quantized by AMD Quark",
        "",
        f"Made by `deploy quantize` from `{source.directory.name}`{commit}. Not evaluated: measure before you use it.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows.items() if value),
    ]
    return "\n".join(lines) + "\n"
