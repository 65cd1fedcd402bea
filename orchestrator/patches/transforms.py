"""Transforms of a checkpoint's config.json, by name. To add one, write a function and add it to `TRANSFORMS`.

`mtp-exclude`: repeats the exclude list and the layer schemes of a Quark checkpoint under sglang's names of the MTP
layer, including shell patterns and `re:` patterns.

The checkpoint names its MTP layer `model.layers.<num_hidden_layers>`. sglang builds it as `model` and `model.decoder`
and looks up the exclude list under those names. sglang does the same mapping itself from 0.5.16 on
(srt/models/glm4_moe.py, `GlmMoeDsaForCausalLMNextN`, sgl-project/sglang#30265), with one difference: here the
checkpoint's tensors show whether the routed experts of that layer are unquantized. Copying every entry only under
`model.decoder.` would not load: `eh_proj` is looked up as `model.eh_proj`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Final, TypeAlias, cast

_OWN_NAMES: Final = ("shared_head.norm", "eh_proj", "enorm", "hnorm")  # in the draft model, outside its decoder
_EXPERTS: Final = "model.decoder.mlp.experts"  # the fused module; entries of single experts do not match it
_UNQUANTIZED: Final = frozenset({"BF16", "F16", "F32"})  # dtypes in safetensors headers


@dataclass(frozen=True, kw_only=True)
class Transformed:
    """The result of a transform."""

    config: Mapping[str, object]  # the original config if nothing changed
    reason: str


def expand_exclude(config: Mapping[str, object], dtypes: Mapping[str, str]) -> Transformed:
    """Return a copy of `config` (a parsed config.json) with runtime names in its exclude list and schemes. Idempotent.

    `dtypes` maps tensor names to dtypes from the safetensors headers; the MTP layer's suffice.
    """
    quantization = cast("Mapping[str, object]", config.get("quantization_config") or {})
    if quantization.get("quant_method") != "quark":
        return Transformed(config=config, reason="the checkpoint is not quantized by Quark")
    number = cast("int", config["num_hidden_layers"])
    layer = f"model.layers.{number}"
    exclude = [str(entry) for entry in cast("Iterable[object]", quantization.get("exclude") or ())]
    schemes = cast("Mapping[str, object]", quantization.get("layer_quant_config") or {})
    excluded = [entry for entry in exclude if _of_layer(number).search(entry)]
    keys = [key for key in schemes if _of_layer(number).search(key)]
    if not excluded and not keys:
        return Transformed(config=config, reason=f"the exclude list has no entry of `{layer}`")
    runtime_names = [name for entry in excluded for name in _runtime_names(entry, number)]
    if excluded and _experts_unquantized(dtypes, layer):
        runtime_names.append(_EXPERTS)
    new = [name for name in dict.fromkeys(runtime_names) if name not in set(exclude)]
    renamed = _expand_schemes(schemes, number)
    if not new and len(renamed) == len(schemes):
        return Transformed(config=config, reason="the exclude list has the runtime names already")
    changed = {**quantization, "exclude": [*exclude, *new]}
    if len(renamed) > len(schemes):
        changed["layer_quant_config"] = renamed
    count = len(excluded) + len(keys)
    return Transformed(
        config={**config, "quantization_config": changed},
        reason=f"{count} entries of `{layer}` repeated under the names sglang builds that layer with",
    )


def _of_layer(number: int) -> re.Pattern[str]:
    """Return a regular expression for the layer in an entry: a name, a shell pattern, or a `re:` pattern."""
    return re.compile(rf"(?:model(?:\\?\.))?\blayers\\?\.{number}(?!\d)")


def _runtime_names(entry: str, number: int) -> Iterator[str]:
    """Yield the runtime names of an entry: for the draft model's decoder and for its own modules."""
    layer, of_layer = f"model.layers.{number}", _of_layer(number)
    matching = [name for name in _OWN_NAMES if _matches(entry, f"{layer}.{name}")]
    exact = entry.startswith(f"{layer}.") and not _is_pattern(entry)
    names = [f"model.{name}" for name in matching]
    if exact:
        names = [entry.replace(layer, "model", 1)] if any(name in entry for name in _OWN_NAMES) else []
    yield from names
    if not exact or not names:
        decoder = r"model\.decoder" if entry.startswith("re:") else "model.decoder"
        match = of_layer.search(entry)
        yield of_layer.sub(lambda _: decoder if match and match[0].startswith("model") else "decoder", entry, count=1)


def _is_pattern(entry: str) -> bool:
    return entry.startswith("re:") or any(sign in entry for sign in "*?[")


def _matches(entry: str, module: str) -> bool:
    if entry.startswith("re:"):
        return re.match(entry[3:], module) is not None
    return fnmatch(module, entry)


def _experts_unquantized(dtypes: Mapping[str, str], layer: str) -> bool:
    experts = [dtype for name, dtype in dtypes.items() if name.startswith(f"{layer}.mlp.experts.")]
    return bool(experts) and all(dtype in _UNQUANTIZED for dtype in experts)


def _expand_schemes(schemes: Mapping[str, object], number: int) -> dict[str, object]:
    """Return `layer_quant_config` (pattern → scheme) with runtime names; the first key that matches a module counts.

    Each new key therefore takes the position of the key that it repeats.
    """
    expanded: dict[str, object] = {}
    for key, scheme in schemes.items():
        names = _runtime_names(key, number) if _of_layer(number).search(key) else ()
        expanded |= {name: scheme for name in (key, *names) if name == key or name not in schemes}
    return expanded


# Takes a parsed config.json, and the dtypes of its tensors by name, from the safetensors headers.
Transform: TypeAlias = Callable[[Mapping[str, object], Mapping[str, str]], Transformed]
TRANSFORMS: Final[Mapping[str, Transform]] = {"mtp-exclude": expand_exclude}
