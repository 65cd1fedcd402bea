"""The forecast of Quark's output, from headers before it runs: dtype and shape of each tensor, and so the size.

The rules are Quark 0.13's (quark/torch/quantization/file2file_quantization.py: `_is_linear_weight_tensor`,
`_get_layer_quant_config_by_tensor_name`): a matrix named `weight` is quantized unless its module's name ends with
`norm`, contains `embed`, or matches an excluded pattern. MXFP4 stores two values per byte, with a scale byte for each
32 values; FP8 has a float scale for each row. Each shard that Quark writes is compared with the forecast.
"""

import re
from collections.abc import Iterator, Mapping
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

_GROUP: Final = 32  # values that share a scale in MXFP4 (OCP Microscaling Formats 1.0)
_MXFP4: Final = "mxfp4"
_MAX_SHOWN: Final = 3
# Quark's form of a scheme in config.json, as far as it determines how tensors are stored.
_QUARK_CONFIG: Final[Mapping[str, Mapping[str, object]]] = {
    "mxfp4": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": _GROUP}},
    "ptpc_fp8": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}},
}


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The result of a recipe for a checkpoint: the tensors of each file, and the excluded modules."""

    shards: Mapping[CheckpointFile, Mapping[str, StoredTensor]]
    exclude: tuple[str, ...]

    @property
    def size(self) -> int:
        """Return the bytes of all tensors, without the headers of their files."""
        return sum(map(self.size_of, self.shards))

    def size_of(self, shard: CheckpointFile) -> int:
        """Return the bytes of a file's tensors."""
        return sum(tensor.size for tensor in self.shards[shard].values())


def forecast(source: Source, recipe: Recipe) -> Forecast:
    """Predict the result of a recipe.

    Raises UsageError if the recipe is for other models or a matrix cannot be packed, CheckpointMismatchError if sglang
    would not load the result.
    """
    kind = source.summary.config.model_type
    if kind not in recipe.model_types:
        raise UsageError(
            f"the recipe is for {' and '.join(f'`{each}`' for each in recipe.model_types)}, this model is `{kind}`",
            location=str(source.directory / CONFIG),
            hint="a recipe of your own is a file below `$DEPLOY_HOME/profiles/recipes`",
        )
    scheme_of = _Schemes(recipe, source.layers)
    shards: dict[CheckpointFile, dict[str, StoredTensor]] = {}
    left: list[str] = []
    for shard, tensors in source.shards.items():
        made = shards.setdefault(shard, {})
        for name, tensor in tensors.items():
            module = name.removesuffix(".weight")
            scheme = scheme_of(module) if _is_linear(name, tensor) else ""
            if scheme is None:
                left.append(module)
            made |= _stored(name, tensor, scheme or "")
    _require_groups(source, shards)
    found = Forecast(shards=shards, exclude=tuple(sorted(left)))
    _require_loadable(source, recipe, found)
    return found


def _is_linear(name: str, tensor: StoredTensor) -> bool:
    module, _, leaf = name.rpartition(".")
    named = leaf == "weight" and module and not module.endswith("norm") and "embed" not in module
    return bool(named) and len(tensor.shape) > 1


class _Schemes:
    """The scheme of a module by its name; None for an excluded module."""

    def __init__(self, recipe: Recipe, layers: int) -> None:
        self._excluded = re.compile("|".join(map(translate, recipe.excluded(layers))) or r"(?!)")
        self._named = [(re.compile(translate(key)), scheme) for key, scheme in recipe.schemes(layers).items()]
        self._other = recipe.scheme

    def __call__(self, module: str) -> str | None:
        if self._excluded.match(module):
            return None
        return next((scheme for pattern, scheme in self._named if pattern.match(module)), self._other)


def _stored(name: str, tensor: StoredTensor, scheme: str) -> Iterator[tuple[str, StoredTensor]]:
    """Yield a tensor as Quark stores it, and its scale."""
    *rows, columns = tensor.shape or (0,)
    if scheme == _MXFP4:
        yield name, _bytes("U8", (*rows, columns // 2), 1)
        yield f"{name}_scale", _bytes("U8", (*rows, columns // _GROUP), 1)
    elif scheme:
        yield name, _bytes("F8_E4M3", tensor.shape, 1)
        yield f"{name}_scale", _bytes("F32", tuple(rows), 4)
    else:
        yield name, tensor


def _bytes(dtype: str, shape: tuple[int, ...], each: int) -> StoredTensor:
    return StoredTensor(dtype=dtype, shape=shape, size=each * prod(shape))


def _require_groups(source: Source, made: Mapping[CheckpointFile, Mapping[str, StoredTensor]]) -> None:
    """Raise UsageError for matrices with rows that are not a multiple of the group size."""
    odd = [
        f"`{name}` has {tensor.shape[-1]} columns"
        for shard, tensors in source.shards.items()
        for name, tensor in tensors.items()
        if made[shard][name].dtype == "U8" and tensor.shape[-1] % _GROUP
    ]
    if odd:
        more = f", and {len(odd) - _MAX_SHOWN} more" if len(odd) > _MAX_SHOWN else ""
        raise UsageError(
            f"MXFP4 has groups of {_GROUP} columns: {', '.join(odd[:_MAX_SHOWN])}{more}",
            location=str(source.directory),
            hint="exclude them in a recipe of your own, below `$DEPLOY_HOME/profiles/recipes`",
        )


def _require_loadable(source: Source, recipe: Recipe, found: Forecast) -> None:
    """Raise CheckpointMismatchError for parts that no sglang loads, or that it loads wrongly without error."""
    given = {
        "quant_method": "quark",
        "global_quant_config": _QUARK_CONFIG[recipe.scheme],
        "layer_quant_config": {key: _QUARK_CONFIG[scheme] for key, scheme in recipe.schemes(source.layers).items()},
        "exclude": list(found.exclude),
    }
    outline = CheckpointSummary(
        location=source.summary.location,
        config=CheckpointConfig({**source.summary.config.data, "quantization_config": given}),
        quantized=None,
        shards=len(found.shards),
        weight_bytes=found.size,
    )
    for tensors in found.shards.values():
        outline.add_header(tensors)
    require_loadable(
        compare_with_config(outline, drafts=source.drafts),
        "sglang cannot load the output of this recipe correctly",
        location=str(source.directory),
    )
