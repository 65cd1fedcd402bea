"""How a checkpoint's quantization config says that each module is stored: excludes, globs, `re:`, schemes of layers.

As sglang 0.5.16 reads them (srt/layers/quantization): quark/quark.py and quark/utils.py, fp8.py with `is_layer_skipped`
of utils.py, compressed_tensors/utils.py, `is_layer_excluded` of modelopt_quant.py, awq/awq.py, gptq/gptq.py.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final, TypeAlias, cast

from orchestrator.checkpoints.config import CheckpointConfig

FLOATS: Final = frozenset({"BF16", "F16", "F32", "F64"})  # as safetensors headers write them
_FP8: Final = frozenset({"F8_E4M3"})
_INT4: Final = frozenset({"I32"})  # eight to a value
_SCALES: Final = FLOATS | {"F8_E8M0", "U8"}
_NVFP4_GROUP: Final = 16

Config: TypeAlias = Mapping[str, object]
ScaleShape: TypeAlias = Callable[[int, int], tuple[int, ...]]  # of the matrix as it is stored: rows, columns


@dataclass(frozen=True, kw_only=True)
class StorageScheme:
    """How the matrix of a quantized module is stored: its tensor's last name and dtypes, and the scale beside it.

    Without `dtypes` it is a kind that is not known here, and is not judged.
    """

    label: str
    dtypes: frozenset[str] = frozenset()
    leaf: str = "weight"
    scale: str = "weight_scale"
    scale_dtypes: frozenset[str] = _SCALES
    scale_shape: ScaleShape | None = None  # None: any


@dataclass(frozen=True, kw_only=True)
class Schemes:
    """What a config says of each module: `storage_of` gives None for one that is not quantized."""

    method: str  # `quark`, …; empty where nothing is quantized
    storage_of: Callable[[str], StorageScheme | None]


def read_schemes(config: CheckpointConfig, quantized: CheckpointConfig | None) -> Schemes | str:
    """The schemes of a checkpoint, `quantized` being ModelOpt's own file; else the word of a method not known here.

    A config that does not hold what its method needs is called by its method's word as well.
    """
    given, method = config.quantized, str(config.method.value if config.method else "")
    if not given and quantized is not None:
        inner = quantized.data.get("quantization")
        given, method = (inner, "modelopt") if isinstance(inner, dict) else ({}, "")
    if not method and given.get("quant_algo"):
        method = "modelopt"
    if not given and not method:
        return Schemes(method="", storage_of=lambda _: None)
    reader = _READERS.get(method.replace("_", "-"))
    try:
        storage_of = reader(given) if reader else None
    except (KeyError, TypeError, ValueError, AttributeError, re.error):
        storage_of = None
    return Schemes(method=method, storage_of=storage_of) if storage_of else method or "a method that has no name"


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, Iterable) and not isinstance(value, str | bytes) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _per_tensor(_rows: int, _columns: int) -> tuple[int, ...]:
    return ()


def _per_row(rows: int, _columns: int) -> tuple[int, ...]:
    return (rows,)


def _blocks(high: int, wide: int, packed: int = 1) -> ScaleShape:
    """A scale for each block of so many rows and elements, of which `packed` lie in one stored value."""
    return lambda rows, columns: (ceil(rows / high), ceil(columns * packed / wide))


class _ModuleNames:
    """Modules by name, and by `re:` patterns, which match the beginning."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._exact = {entry for entry in entries if not entry.startswith("re:")}
        self._patterns = [re.compile(entry[3:]) for entry in entries if entry.startswith("re:")]

    def __contains__(self, module: str) -> bool:
        return module in self._exact or any(pattern.match(module) for pattern in self._patterns)


# --- Quark ------------------------------------------------------------------------------------------------------------


def _quark(given: Config) -> Callable[[str], StorageScheme | None]:
    excluded = _ModuleNames(_words(given.get("exclude")))
    schemes = cast("Mapping[str, Config]", given.get("layer_quant_config") or {})
    by_pattern = [(re.compile(fnmatch.translate(key)), _quark_storage(scheme)) for key, scheme in schemes.items()]
    other = _quark_storage(cast("Config", given["global_quant_config"]))

    def storage_of(module: str) -> StorageScheme | None:
        if module in excluded:
            return None
        return next((storage for pattern, storage in by_pattern if pattern.match(module)), other)

    return storage_of


def _quark_storage(scheme: Config) -> StorageScheme | None:
    """quark/schemes: MXFP4 with two values in a byte and a scale for each 32 of them; FP8 by rows or whole."""
    weight = scheme.get("weight")
    if weight is None:
        return None
    if not isinstance(weight, dict):
        return StorageScheme(label="a scheme of several steps")
    kind, how = str(weight.get("dtype")), str(weight.get("qscheme"))
    if kind == "fp4" and how == "per_group":
        group = _number(weight.get("group_size")) or 32
        return StorageScheme(label="MXFP4", dtypes=frozenset({"U8"}), scale_shape=_blocks(1, group, packed=2))
    if kind == "fp8_e4m3" and how in {"per_channel", "per_tensor"}:
        rows = how == "per_channel"
        word = "FP8 with a scale for each row" if rows else "FP8"
        return StorageScheme(label=word, dtypes=_FP8, scale_shape=_per_row if rows else _per_tensor)
    return StorageScheme(label=f"{kind} {how}")


# --- FP8 --------------------------------------------------------------------------------------------------------------


def _fp8(given: Config) -> Callable[[str], StorageScheme | None]:
    ignored = {
        name.removeprefix("model.").rstrip(".")
        for name in _words(given.get("ignored_layers") or given.get("modules_to_not_convert"))
    }
    block = given.get("weight_block_size")
    storage = StorageScheme(label="FP8", dtypes=_FP8, scale_shape=None)
    if isinstance(block, list):
        high, wide = block
        storage = StorageScheme(
            label=f"FP8 in blocks of {high} x {wide}",
            dtypes=_FP8,
            scale="weight_scale_inv",
            scale_shape=_blocks(int(high), int(wide)),
        )

    def storage_of(module: str) -> StorageScheme | None:
        return None if ignored and any(run in ignored for run in _name_spans(module)) else storage

    return storage_of


def _name_spans(module: str) -> Iterable[str]:
    """Every run of parts of a dotted name: an entry names a module by any of them."""
    parts = module.split(".")
    return (".".join(parts[begin:end]) for begin in range(len(parts)) for end in range(begin + 1, len(parts) + 1))


# --- compressed-tensors -----------------------------------------------------------------------------------------------


def _compressed(given: Config) -> Callable[[str], StorageScheme | None]:
    ignored = _words(given.get("ignore"))
    named, within = _ModuleNames(ignored), [entry.lower() for entry in ignored if not entry.startswith("re:")]
    groups = cast("Mapping[str, Config]", given["config_groups"])
    form = str(given.get("format"))
    targets = [
        (_words(group.get("targets")), _compressed_storage(cast("Config", group["weights"]), group, form))
        for group in groups.values()
    ]
    by_name = [(_ModuleNames(names), storage) for names, storage in targets]
    linear = next((storage for names, storage in targets if "Linear" in names), None)

    def storage_of(module: str) -> StorageScheme | None:
        lower = module.lower()
        if module in named or any(entry in lower for entry in within):
            return None
        return next((storage for names, storage in by_name if module in names), linear)

    return storage_of


def _compressed_storage(weights: Config, group: Config, form: str) -> StorageScheme:
    form = str(group.get("format") or form)
    kind, bits, how = weights.get("type"), _number(weights.get("num_bits")), weights.get("strategy")
    size = _number(weights.get("group_size"))
    word = f"{form}, {bits} bits"
    if form == "pack-quantized" and kind == "int" and bits in {4, 8}:
        scale = _blocks(1, size, packed=32 // bits) if size > 0 else _per_row
        return StorageScheme(label=word, dtypes=_INT4, leaf="weight_packed", scale_shape=scale)
    if form == "nvfp4-pack-quantized":
        return StorageScheme(
            label="NVFP4",
            dtypes=frozenset({"U8"}),
            leaf="weight_packed",
            scale_dtypes=_FP8,
            scale_shape=_blocks(1, _NVFP4_GROUP, packed=2),
        )
    shapes: dict[object, ScaleShape] = {"tensor": _per_tensor, "channel": _per_row}
    block = weights.get("block_structure")
    if how == "block" and isinstance(block, list) and len(block) == 2:
        shapes["block"] = _blocks(int(block[0]), int(block[1]))
    dtypes = {("float", 8): _FP8, ("int", 8): frozenset({"I8"})}.get((str(kind), bits), frozenset())
    known = form in {"float-quantized", "int-quantized", "naive-quantized"} and how in shapes
    return StorageScheme(label=word, dtypes=dtypes, scale_shape=shapes[how]) if known else StorageScheme(label=word)


# --- ModelOpt ---------------------------------------------------------------------------------------------------------

_FUSED_TAILS: Final = frozenset({"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"})


def _modelopt(given: Config) -> Callable[[str], StorageScheme | None] | None:
    algorithm = str(given.get("quant_algo")).upper()
    if algorithm == "NVFP4":
        storage = StorageScheme(
            label="NVFP4",
            dtypes=frozenset({"U8"}),
            scale_dtypes=_FP8,
            scale_shape=_blocks(1, _number(given.get("group_size")) or _NVFP4_GROUP, packed=2),
        )
    elif algorithm == "FP8":
        storage = StorageScheme(label="FP8", dtypes=_FP8, scale_shape=_per_tensor)
    else:
        return None
    entries = _words(given.get("ignore") or given.get("exclude_modules"))
    exact = {entry for entry in entries if "*" not in entry}
    patterns = [entry.replace(".", r"\.").replace("*", ".*") for entry in entries if "*" in entry]
    pattern = re.compile("|".join(f"(?:{each})" for each in patterns)) if patterns else None
    tails = {entry.rpartition(".")[2] for entry in entries} & _FUSED_TAILS
    parts_excluded: dict[str, bool] = {}

    def excludes(name: str) -> bool:
        if name not in parts_excluded:
            parts_excluded[name] = name in exact or bool(pattern and pattern.fullmatch(name))
        return parts_excluded[name]

    def storage_of(module: str) -> StorageScheme | None:
        parts = module.split(".")
        whole = module in exact or bool(pattern and pattern.fullmatch(module))
        excluded = whole or any(map(excludes, parts)) or any(tail in parts[-1] for tail in tails)
        return None if excluded else storage

    return storage_of


# --- AWQ, GPTQ --------------------------------------------------------------------------------------------------------


def _awq(given: Config) -> Callable[[str], StorageScheme | None] | None:
    """Four bits, [in, out / 8]; an entry names each module that holds its text."""
    ignored = _words(given.get("modules_to_not_convert"))
    bits = _number(given.get("w_bit") or given.get("bits"))
    size = _number(given.get("q_group_size") or given.get("group_size"))
    if bits != 4 or str(given.get("version", "gemm")).lower() != "gemm":
        return None
    storage = StorageScheme(
        label="AWQ",
        dtypes=_INT4,
        leaf="qweight",
        scale="scales",
        scale_dtypes=FLOATS,
        scale_shape=lambda rows, columns: (ceil(rows / size) if size > 0 else 1, columns * 8),
    )
    return lambda module: None if any(entry in module for entry in ignored) else storage


def _gptq(given: Config) -> Callable[[str], StorageScheme | None] | None:
    """[in * bits / 32, out]; modules that `dynamic` takes out are not quantized."""
    bits, size = _number(given.get("bits")), _number(given.get("group_size"))
    if bits not in {2, 3, 4, 8}:
        return None
    storage = StorageScheme(
        label="GPTQ",
        dtypes=_INT4,
        leaf="qweight",
        scale="scales",
        scale_dtypes=FLOATS,
        scale_shape=lambda rows, columns: (ceil(rows * 32 // bits / size) if size > 0 else 1, columns),
    )
    dynamic = cast("Mapping[str, object]", given.get("dynamic") or {})
    left_out = [re.compile(key[2:]) for key in dynamic if key.startswith("-:")]
    special = [re.compile(key.removeprefix("+:")) for key in dynamic if not key.startswith("-:")]
    other = StorageScheme(label="GPTQ of its own kind")

    def storage_of(module: str) -> StorageScheme | None:
        if any(pattern.match(module) for pattern in left_out):
            return None
        return other if any(pattern.match(module) for pattern in special) else storage

    return storage_of


Reader: TypeAlias = Callable[[Config], Callable[[str], StorageScheme | None] | None]
_READERS: Final[Mapping[str, Reader]] = {
    "quark": _quark,
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "awq": _awq,
    "gptq": _gptq,
}

# Projections that sglang builds as one module: their parts have one scheme, or it does not load (quark/utils.py,
# compressed_tensors/utils.py, utils.py: `Found different quantization schemes`).
_ONE_MODULE: Final = (("gate_proj", "up_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("q_proj", "k_proj", "v_proj"))


def fused_siblings(last: str) -> tuple[str, ...]:
    """The projections that are built as one module with it, behind it."""
    return tuple(after for parts in _ONE_MODULE for before, after in pairwise(parts) if before == last)
