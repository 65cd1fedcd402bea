"""The storage scheme of each module according to a checkpoint's quantization config.

Rules of sglang 0.5.16 (srt/layers/quantization): quark/quark.py and quark/utils.py, fp8.py with `is_layer_skipped` of
utils.py, compressed_tensors/utils.py.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final, TypeAlias, cast

from orchestrator.checkpoints.config import CheckpointConfig

FLOATS: Final = frozenset({"BF16", "F16", "F32", "F64"})  # names in safetensors headers
_FP8: Final = frozenset({"F8_E4M3"})
_INT4: Final = frozenset({"I32"})  # eight per value
SCALES: Final = FLOATS | {"F8_E8M0", "U8"}

Config: TypeAlias = Mapping[str, object]
ScaleShape: TypeAlias = Callable[[int, int], tuple[int, ...]]  # from the rows and columns of the stored matrix


@dataclass(frozen=True, kw_only=True)
class StorageScheme:
    """Storage of a quantized matrix: the last part of its tensor's name, its dtypes, and its scale.

    A scheme without `dtypes` is unknown and not checked.
    """

    label: str
    dtypes: frozenset[str] = frozenset()
    leaf: str = "weight"
    scale: str = "weight_scale"
    scale_shape: ScaleShape | None = None  # None: any


SchemeOf: TypeAlias = Callable[[str], StorageScheme | None]  # by module name; None: not quantized


@dataclass(frozen=True, kw_only=True)
class Schemes:
    """The storage schemes of a quantization config."""

    method: str  # `quark`, …; empty: unquantized
    storage_of: SchemeOf


def read_schemes(config: CheckpointConfig, quantized: CheckpointConfig | None) -> Schemes | str:
    """Read the schemes of a checkpoint; return the method's name if it is unknown or its config is incomplete.

    ModelOpt's NVFP4 does not run on ROCm and is not checked; `quantized` is its own config file.
    """
    section, method = config.quantized, str(config.method.value if config.method else "")
    if not method and (section.get("quant_algo") or (not section and quantized is not None)):
        method = "modelopt"
    if not section and not method:
        return Schemes(method="", storage_of=lambda _: None)
    reader = _READERS.get(method.replace("_", "-"))
    try:
        storage_of = reader(section) if reader else None
    except (KeyError, TypeError, ValueError, AttributeError, re.error):
        storage_of = None
    return Schemes(method=method, storage_of=storage_of) if storage_of else method or "without a name"


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, Iterable) and not isinstance(value, str | bytes) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _per_tensor(_rows: int, _columns: int) -> tuple[int, ...]:
    return ()


def _per_row(rows: int, _columns: int) -> tuple[int, ...]:
    return (rows,)


def _blocks(high: int, wide: int, packed: int = 1) -> ScaleShape:
    """Return the shape of scales for blocks of `high` rows and `wide` elements, `packed` per stored value."""
    return lambda rows, columns: (ceil(rows / high), ceil(columns * packed / wide))


class _ModuleNames:
    """Module names and `re:` patterns; a pattern matches the beginning of a name."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._exact = {entry for entry in entries if not entry.startswith("re:")}
        self._patterns = [re.compile(entry[3:]) for entry in entries if entry.startswith("re:")]

    def __contains__(self, module: str) -> bool:
        return module in self._exact or any(pattern.match(module) for pattern in self._patterns)


# --- Quark ------------------------------------------------------------------------------------------------------------


def _quark(section: Config) -> SchemeOf:
    excluded = _ModuleNames(_words(section.get("exclude")))
    schemes = cast("Mapping[str, Config]", section.get("layer_quant_config") or {})
    by_pattern = [(re.compile(fnmatch.translate(key)), _quark_storage(scheme)) for key, scheme in schemes.items()]
    other = _quark_storage(cast("Config", section["global_quant_config"]))

    def storage_of(module: str) -> StorageScheme | None:
        if module in excluded:
            return None
        return next((storage for pattern, storage in by_pattern if pattern.match(module)), other)

    return storage_of


def _quark_storage(scheme: Config) -> StorageScheme | None:
    """Parse a scheme (quark/schemes): MXFP4 has two values per byte and a scale per 32 values."""
    weight = scheme.get("weight")
    if weight is None:
        return None
    if not isinstance(weight, dict):
        return StorageScheme(label="several steps")
    dtype, granularity = str(weight.get("dtype")), str(weight.get("qscheme"))
    if (dtype, granularity) == ("fp4", "per_group"):
        group = _number(weight.get("group_size")) or 32
        return StorageScheme(label="MXFP4", dtypes=frozenset({"U8"}), scale_shape=_blocks(1, group, packed=2))
    if (dtype, granularity) == ("fp8_e4m3", "per_channel"):
        return StorageScheme(label="FP8 with a scale for each row", dtypes=_FP8, scale_shape=_per_row)
    if (dtype, granularity) == ("fp8_e4m3", "per_tensor"):
        return StorageScheme(label="FP8", dtypes=_FP8, scale_shape=_per_tensor)
    return StorageScheme(label=f"{dtype} {granularity}")


# --- FP8 --------------------------------------------------------------------------------------------------------------


def _fp8(section: Config) -> SchemeOf:
    ignored = {
        name.removeprefix("model.").rstrip(".")
        for name in _words(section.get("ignored_layers") or section.get("modules_to_not_convert"))
    }
    block = section.get("weight_block_size")
    storage = StorageScheme(label="FP8", dtypes=_FP8)
    if isinstance(block, list):
        high, wide = block
        storage = StorageScheme(
            label=f"FP8 in blocks of {high} x {wide}",
            dtypes=_FP8,
            scale="weight_scale_inv",
            scale_shape=_blocks(int(high), int(wide)),
        )

    def storage_of(module: str) -> StorageScheme | None:
        # an entry is any sequence of parts of the dotted name
        return None if any(f".{entry}." in f".{module}." for entry in ignored) else storage

    return storage_of


# --- compressed-tensors -----------------------------------------------------------------------------------------------


def _compressed(section: Config) -> SchemeOf:
    ignored = _words(section.get("ignore"))
    excluded_modules, excluded_substrings = (
        _ModuleNames(ignored),
        [entry.lower() for entry in ignored if not entry.startswith("re:")],
    )
    groups = cast("Mapping[str, Config]", section["config_groups"])
    targets = [
        (
            _words(group.get("targets")),
            _compressed_storage(cast("Config", group["weights"]), str(group.get("format") or section.get("format"))),
        )
        for group in groups.values()
    ]
    by_name = [(_ModuleNames(names), storage) for names, storage in targets]
    linear = next((storage for names, storage in targets if "Linear" in names), None)

    def storage_of(module: str) -> StorageScheme | None:
        lower = module.lower()
        if module in excluded_modules or any(entry in lower for entry in excluded_substrings):
            return None
        return next((storage for names, storage in by_name if module in names), linear)

    return storage_of


def _compressed_storage(weights: Config, form: str) -> StorageScheme:
    dtype, bits, granularity = weights.get("type"), _number(weights.get("num_bits")), weights.get("strategy")
    group = _number(weights.get("group_size"))
    label = f"{form}, {bits} bits"
    if form == "pack-quantized" and dtype == "int" and bits in {4, 8}:
        scale = _blocks(1, group, packed=32 // bits) if group > 0 else _per_row
        return StorageScheme(label=label, dtypes=_INT4, leaf="weight_packed", scale_shape=scale)
    shapes: dict[object, ScaleShape] = {"tensor": _per_tensor, "channel": _per_row}
    block = weights.get("block_structure")
    if isinstance(block, list) and len(block) == 2:
        shapes["block"] = _blocks(int(block[0]), int(block[1]))
    if form not in {"float-quantized", "int-quantized", "naive-quantized"} or granularity not in shapes:
        return StorageScheme(label=label)
    dtypes = {("float", 8): _FP8, ("int", 8): frozenset({"I8"})}.get((str(dtype), bits), frozenset())
    return StorageScheme(label=label, dtypes=dtypes, scale_shape=shapes[granularity])


_READERS: Final[Mapping[str, Callable[[Config], SchemeOf | None]]] = {
    "quark": _quark,
    "fp8": _fp8,
    "compressed-tensors": _compressed,
}

# Projections that sglang fuses into one module. With different schemes they do not load (quark/utils.py,
# compressed_tensors/utils.py, utils.py: `Found different quantization schemes`).
_ONE_MODULE: Final = (("gate_proj", "up_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("q_proj", "k_proj", "v_proj"))


def fused_siblings(last: str) -> tuple[str, ...]:
    """Return the projections that follow `last` in a fused module."""
    return tuple(after for modules in _ONE_MODULE for before, after in pairwise(modules) if before == last)
