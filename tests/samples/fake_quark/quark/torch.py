"""`LLMTemplate` and `ModelQuantizer` of AMD Quark 0.13 for MXFP4, file to file, with numpy.

The output is byte for byte that of the real Quark: `tests/integration/test_real_quark.py` runs both, and
`quark_source.REAL_FILES` has digests of the real output. Like the real Quark, it deletes `save_path` at the start and
after a failure, writes files of mode 0600, and treats `device=None` as a GPU.

The variable `FAKE_QUARK` injects a delay or an error: `sleep SECONDS`, `fail SHARD`, `skip SHARD`.
"""

import json
import os
import shutil
import time
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

_BYTES = {"BF16": 2, "F32": 4}
_SPEC = {
    "dtype": "fp4", "is_dynamic": False, "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "block_size": None,
    "symmetric": None, "round_method": "half_even", "scale_type": "float", "zero_point_type": "int32",
    "scale_format": "e8m0", "scale_calculation_mode": "even", "mx_element_dtype": None,
    "observer_cls": "PerBlockMXObserver", "is_scale_quant": False, "enable_buffer_reuse": False,
    "max_input_numel": 4194304,
}  # fmt: skip
# Midpoints between fp4 values (0, 0.5, 1, 1.5, 2, 3, 4, 6); a value at a midpoint is rounded to even.
_HALFWAY = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)


class LLMTemplate:
    @classmethod
    def get(cls, model_type: str) -> "LLMTemplate":
        if model_type != "glm_moe_dsa":
            raise ValueError(f"There is no model template defined for the model type '{model_type}'.")
        return cls()

    def get_config(self, scheme: str, exclude_layers: list[str], layer_config: dict[str, str]) -> list[str]:
        assert scheme == "mxfp4"
        assert not layer_config
        return exclude_layers


class ModelQuantizer:
    def __init__(self, exclude: list[str]) -> None:
        self.exclude = exclude

    def direct_quantize_checkpoint(
        self, pretrained_model_path: str, save_path: str, *, device: str | None = None
    ) -> None:
        assert device is not None, "no CUDA GPUs are available"
        source, target = Path(pretrained_model_path), Path(save_path)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        files: dict[str, str] = {}
        excluded: set[str] = set()
        for shard in sorted(source.glob("*.safetensors")):
            try:
                tensors = _quantized(_read(shard), self.exclude, excluded)
                _inject_fault(shard.name, tensors)
            except Exception:
                shutil.rmtree(target)
                raise
            _write(target / shard.name, tensors)
            files.update(dict.fromkeys(tensors, shard.name))
        config = json.loads((source / "config.json").read_text())
        config["quantization_config"] = _config(sorted(excluded))
        (target / "config.json").write_text(json.dumps(config, ensure_ascii=False, indent=4))


def _inject_fault(shard: str, tensors: dict[str, Any]) -> None:
    action, _, argument = os.environ.get("FAKE_QUARK", "").partition(" ")
    if action == "sleep":
        time.sleep(float(argument))
    if action == "fail" and argument == shard:
        raise RuntimeError("the fake Quark was told to fail")
    if action == "skip" and argument == shard:
        tensors.pop(next(name for name in tensors if name.endswith("_scale")))


def _config(exclude: list[str]) -> dict[str, object]:
    return {
        "global_quant_config": {
            "input_tensors": {**_SPEC, "is_dynamic": True}, "output_tensors": None, "weight": _SPEC, "bias": None,
            "target_device": None,
        },
        "exclude": exclude, "algo_config": None, "softmax_quant_spec": None, "quant_method": "quark",
        "layer_type_quant_config": {}, "layer_quant_config": {}, "kv_cache_quant_config": {},
        "kv_cache_post_rope": False, "quant_mode": "eager_mode", "version": "0.13",
        "export": {
            "kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder", "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
    }  # fmt: skip


def _quantized(tensors: dict[str, Any], exclude: list[str], excluded: set[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, (dtype, shape, data) in tensors.items():
        module, _, leaf = name.rpartition(".")
        linear = leaf == "weight" and not module.endswith("norm") and "embed" not in module and len(shape) > 1
        if linear and any(fnmatch(module, pattern) for pattern in exclude):
            excluded.add(module)
        elif linear:
            packed, scales = mxfp4(data, shape)
            result[name] = ("U8", packed.shape, packed.tobytes())
            result[f"{name}_scale"] = ("U8", scales.shape, scales.tobytes())
            continue
        result[name] = (dtype, shape, data)
    return result


def mxfp4(data: bytes, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Quantize a BF16 matrix to packed values [rows, columns / 2] and scales [rows, columns / 32]."""
    bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
    values = bits.view(np.float32).reshape(*shape[:-1], shape[-1] // 32, 32)
    largest = np.abs(values).max(axis=-1)
    exponent = ((largest.view(np.int32) + (1 << 21)) >> 23) - 2  # biased; rounded up from 1.75, then less fp4's 2
    exponent = np.maximum(exponent, 1)
    scaled = np.abs(values) / (exponent << 23).astype(np.int32).view(np.float32)[..., None]
    above, at_or_above = (np.searchsorted(_HALFWAY, scaled, side=side) for side in ("left", "right"))
    codes = np.where(above % 2 == 0, above, at_or_above).astype(np.uint8)
    codes |= ((codes > 0) & np.signbit(values)).astype(np.uint8) << 3  # no negative zero
    packed = (codes[..., 1::2] << 4 | codes[..., 0::2]).reshape(*shape[:-1], shape[-1] // 2)
    return packed, exponent.astype(np.uint8)


def _read(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {
        name: (at["dtype"], tuple(at["shape"]), content[begin + at["data_offsets"][0] : begin + at["data_offsets"][1]])
        for name, at in header.items()
        if name != "__metadata__"
    }


_ORDER = ("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E4M3", "I8", "U8", "BOOL")


def _write(path: Path, tensors: dict[str, Any]) -> None:
    """Write like safetensors: the widest dtypes first, then by name; the header is padded to 8 bytes."""
    entries, end = {}, 0
    ordered = sorted(tensors.items(), key=lambda pair: (_ORDER.index(pair[1][0]), pair[0]))
    for name, (dtype, shape, data) in ordered:
        assert len(data) == prod(shape) * _BYTES.get(dtype, 1)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end := end + len(data)]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(data for _, (_, _, data) in ordered))
    path.chmod(0o600)
