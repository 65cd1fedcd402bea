"""Transforms of a checkpoint's config.json, by name. A further one is a function, and a line in `TRANSFORMS`.

`mtp-exclude`: the exclude list of a Quark checkpoint, repeated under the names sglang gives to the MTP layer.

The checkpoint calls its MTP layer `model.layers.<num_hidden_layers>`; sglang builds it as `model` and `model.decoder`
and asks the exclude list under those names. The mapping is the one sglang does itself from 0.5.16 on
(srt/models/glm4_moe.py, `GlmMoeDsaForCausalLMNextN`, sgl-project/sglang#30265), with one difference: whether the routed
experts of that layer are left unquantised is read from the checkpoint's tensors. Copying every entry under
`model.decoder.` alone does not load: `eh_proj` is asked for as `model.eh_proj`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

_OWN_NAMES: Final = ("shared_head.norm", "eh_proj", "enorm", "hnorm")  # held by the draft model, not by its decoder
_EXPERTS: Final = "model.decoder.mlp.experts"  # the fused module; entries of single experts do not match it
_UNQUANTISED: Final = frozenset({"BF16", "F16", "F32"})  # dtypes as safetensors headers write them


@dataclass(frozen=True, kw_only=True)
class Transformed:
    """What a transform made of a config."""

    config: Mapping[str, object]  # the config given where there was nothing to do
    reason: str


def expand_exclude(config: Mapping[str, object], dtypes: Mapping[str, str]) -> Transformed:
    """A copy of `config` (a parsed config.json) whose exclude list also has the runtime names; idempotent.

    `dtypes` maps tensor names to dtypes as the safetensors headers give them; those of the MTP layer are enough.
    """
    quantisation = cast("Mapping[str, object]", config.get("quantization_config") or {})
    if quantisation.get("quant_method") != "quark":
        return Transformed(config=config, reason="the checkpoint is not quantised by Quark")
    layer = f"model.layers.{config['num_hidden_layers']}"
    exclude = [str(entry) for entry in cast("Iterable[object]", quantisation.get("exclude") or ())]
    own = [entry for entry in exclude if entry.startswith(f"{layer}.")]
    if not own:
        return Transformed(config=config, reason=f"the exclude list has no entry of `{layer}`")
    wanted = [_runtime_name(entry, layer) for entry in own]
    if _experts_unquantised(dtypes, layer):
        wanted.append(_EXPERTS)
    schemes = _expand_schemes(quantisation.get("layer_quant_config"), layer)
    new = [name for name in dict.fromkeys(wanted) if name not in set(exclude)]
    if not new and not schemes:
        return Transformed(config=config, reason="the exclude list has the runtime names already")
    changed = {**quantisation, "exclude": [*exclude, *new]}
    if schemes:
        changed["layer_quant_config"] = schemes
    return Transformed(
        config={**config, "quantization_config": changed},
        reason=f"{len(own)} entries of `{layer}` repeated under the names sglang builds that layer with",
    )


def _runtime_name(name: str, layer: str) -> str:
    own = any(part in name for part in _OWN_NAMES)
    return name.replace(layer, "model" if own else "model.decoder", 1)


def _experts_unquantised(dtypes: Mapping[str, str], layer: str) -> bool:
    experts = [dtype for name, dtype in dtypes.items() if name.startswith(f"{layer}.mlp.experts.")]
    return bool(experts) and all(dtype in _UNQUANTISED for dtype in experts)


def _expand_schemes(schemes: object, layer: str) -> dict[str, object] | None:
    """`layer_quant_config` (pattern -> scheme) with the same renaming; None where there is nothing to add."""
    known = dict(cast("Mapping[str, object]", schemes or {}))
    renamed = {_runtime_name(key, layer): value for key, value in known.items() if key.startswith(f"{layer}.")}
    return (
        {**known, **{key: value for key, value in renamed.items() if key not in known}}
        if renamed.keys() - known.keys()
        else None
    )


# A config.json as parsed, and the dtypes of its tensors as the safetensors headers give them, by name.
Transform: TypeAlias = Callable[[Mapping[str, object], Mapping[str, str]], Transformed]
TRANSFORMS: Final[Mapping[str, Transform]] = {"mtp-exclude": expand_exclude}
