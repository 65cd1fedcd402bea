"""Forecast of Quark's output from the headers of the source: dtype, shape and size of each tensor.

The rules are Quark 0.13's (quark/torch/quantization/file2file_quantization.py: `_is_linear_weight_tensor`,
`_get_layer_quant_config_by_tensor_name`): a matrix named `weight` is quantized unless its module's name ends with
`norm`, contains `embed`, or matches an excluded pattern. MXFP4 stores two values per byte, with a scale byte for each
32 values; FP8 has a float scale for each row. Each shard that Quark writes is compared with the forecast.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from math import prod
from typing import Final

from orchestrator.checkpoints.config import CONFIG, CheckpointConfig
from orchestrator.checkpoints.mismatch import require_loadable
from orchestrator.checkpoints.quantize.recipe import Recipe
from orchestrator.checkpoints.quantize.source import Source
from orchestrator.checkpoints.safetensors import StoredTensor
from orchestrator.checkpoints.summary import CheckpointSummary
from orchestrator.checkpoints.verify import compare_with_config
from orchestrator.core.errors import UsageError
from orchestrator.core.safe_paths import CheckpointFile

_GROUP: Final = 32  # values with a common scale in MXFP4 (OCP Microscaling Formats 1.0)
_MXFP4: Final = "mxfp4"
# Quark's form of a scheme in config.json, reduced to the storage of tensors.
_QUARK_CONFIG: Final[Mapping[str, Mapping[str, object]]] = {
    "mxfp4": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": _GROUP}},
    "ptpc_fp8": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}},
}


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The output of a recipe for a checkpoint: the tensors of each shard, and the excluded modules."""

    shards: Mapping[CheckpointFile, Mapping[str, StoredTensor]]
    exclude: tuple[str, ...]

    @property
    def size(self) -> int:
        """The bytes of all tensors, without headers."""
        return sum(map(self.size_of, self.shards))

    def size_of(self, shard: CheckpointFile) -> int:
        """Return the bytes of a shard's tensors."""
        return sum(tensor.size for tensor in self.shards[shard].values())


def forecast(source: Source, recipe: Recipe) -> Forecast:
    """Predict the output of a recipe.

    Raises UsageError if the recipe is for other models or a matrix cannot be packed, CheckpointMismatchError if sglang
    would not load the output correctly.
    """
    model_type = source.summary.config.model_type
    if model_type not in recipe.model_types:
        supported = " and ".join(f"`{name}`" for name in recipe.model_types)
        raise UsageError(
            f"the recipe is for {supported}, this model is `{model_type}`",
            location=str(source.directory / CONFIG),
            hint="`--recipe FILE` takes your own recipe",
        )
    scheme_of = _schemes(recipe, source.layers)
    shards: dict[CheckpointFile, dict[str, StoredTensor]] = {}
    excluded: list[str] = []
    for shard, tensors in source.shards.items():
        output = shards.setdefault(shard, {})
        for name, tensor in tensors.items():
            module = name.removesuffix(".weight")
            scheme = scheme_of(module) if _is_linear(name, tensor) else ""
            if scheme is None:
                excluded.append(module)
            if scheme == _MXFP4 and tensor.shape[-1] % _GROUP:
                raise UsageError(
                    f"MXFP4 needs column counts divisible by {_GROUP}: `{name}` has {tensor.shape[-1]} columns",
                    location=str(source.directory),
                    hint="exclude it in your own recipe: `deploy quantize SOURCE TARGET --recipe FILE`",
                )
            output |= _stored(name, tensor, scheme or "")
    result = Forecast(shards=shards, exclude=tuple(sorted(excluded)))
    _require_loadable(source, recipe, result)
    return result


def _is_linear(name: str, tensor: StoredTensor) -> bool:
    module, _, leaf = name.rpartition(".")
    linear = leaf == "weight" and module and not module.endswith("norm") and "embed" not in module
    return bool(linear) and len(tensor.shape) > 1


def _schemes(recipe: Recipe, layers: int) -> Callable[[str], str | None]:
    """Return a function from a module's name to its scheme, None if excluded."""
    excluded = re.compile("|".join(map(translate, recipe.excluded(layers))) or r"(?!)")
    patterns = [(re.compile(translate(key)), scheme) for key, scheme in recipe.schemes(layers).items()]

    def scheme_of(module: str) -> str | None:
        if excluded.match(module):
            return None
        return next((scheme for pattern, scheme in patterns if pattern.match(module)), recipe.scheme)

    return scheme_of


def _stored(name: str, tensor: StoredTensor, scheme: str) -> Iterator[tuple[str, StoredTensor]]:
    """Yield a tensor as Quark stores it, and its scale."""
    *rows, columns = tensor.shape or (0,)
    if scheme == _MXFP4:
        yield name, _tensor("U8", (*rows, columns // 2), 1)
        yield f"{name}_scale", _tensor("U8", (*rows, columns // _GROUP), 1)
    elif scheme:
        yield name, _tensor("F8_E4M3", tensor.shape, 1)
        yield f"{name}_scale", _tensor("F32", tuple(rows), 4)
    else:
        yield name, tensor


def _tensor(dtype: str, shape: tuple[int, ...], element_bytes: int) -> StoredTensor:
    return StoredTensor(dtype=dtype, shape=shape, size=element_bytes * prod(shape))


def _require_loadable(source: Source, recipe: Recipe, result: Forecast) -> None:
    """Raise CheckpointMismatchError if no version of sglang loads the output, or if it silently loads wrongly."""
    quantization = {
        "quant_method": "quark",
        "global_quant_config": _QUARK_CONFIG[recipe.scheme],
        "layer_quant_config": {key: _QUARK_CONFIG[scheme] for key, scheme in recipe.schemes(source.layers).items()},
        "exclude": list(result.exclude),
    }
    summary = CheckpointSummary(
        location=source.summary.location,
        config=CheckpointConfig({**source.summary.config.data, "quantization_config": quantization}),
        quantized=None,
        shards=len(result.shards),
        weight_bytes=result.size,
    )
    for tensors in result.shards.values():
        summary.add_header(tensors)
    require_loadable(
        compare_with_config(summary, drafts=source.drafts),
        "sglang cannot load the output of this recipe correctly",
        location=str(source.directory),
    )
