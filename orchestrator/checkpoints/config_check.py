"""Does a checkpoint hold what its config says? Its headers against its quantization config; no tensor is read.

What sglang would not load, or load wrongly without a word, is fatal; so is nothing of which it is not known how it is
built: modules and architectures that are unknown here are told and not refused.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from orchestrator.checkpoints.config import DRAFTS
from orchestrator.checkpoints.safetensors import StoredTensor
from orchestrator.checkpoints.schemes import FLOATS, Schemes, StorageScheme, fused_siblings, read_schemes
from orchestrator.checkpoints.summary import LAYER, CheckpointSummary
from orchestrator.engine.architectures import ARCHITECTURES, Architecture
from orchestrator.engine.options import Meaning

CONFIG_SAYS: Final = "`quantization_config`"
_MATRICES: Final = frozenset({"weight", "qweight", "weight_packed"})
_EXPERT: Final = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)")
_ALL_EXPERTS: Final = re.compile(r".+\.experts\.(?:gate_up_proj|down_proj)(?:\.weight)?")
_KEYS_VALUES: Final = ".self_attn.kv_b_proj.weight"
_SHOWN: Final = 3  # kinds of tensors in a message
# Linear modules of a decoder layer that sglang builds by the quantization config.
_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_LINEAR: Final = frozenset(
    {*_ATTENTION, "wk", "wq_b", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "eh_proj"}
)
# Built without the config: routers, and the weights of the indexer's heads (sglang 0.5.14 to 0.5.23, deepseek_v2.py,
# dsa_indexer.py, qwen2_moe.py).
_UNQUANTIZED: Final = frozenset({"gate", "router", "shared_expert_gate", "weights_proj"})
_MTP_MODULES: Final = ("eh_proj", "enorm", "hnorm", "shared_head.norm")  # of the layer that drafts (deepseek_nextn.py)
_RENAMED_FROM: Final = ">=0.5.16"  # sglang renames a scheme of the MTP layer by its beginning (glm4_moe.py)
_BLOCKS_ASKED: Final = "<0.5.17"  # sglang 0.5.14, deepseek_v2.py:767, `QuarkLinearMethod` without `quant_config`
_FLAT_SCALES: Final = "<0.5.18"  # sglang 0.5.14 to 0.5.17, fp8_utils.py, channel_quant_to_tensor_quant


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """What a checkpoint holds otherwise than its config says."""

    message: str
    hint: str = ""
    fatal: bool = False  # it does not load, or answers wrongly without a word
    sglang: str = ""  # the versions in which it is fatal, a PEP 440 range; empty for every one


@dataclass(kw_only=True)
class _Checkpoint:
    """What is compared: the outline of all headers, the schemes, and whether the MTP layer will be loaded."""

    summary: CheckpointSummary
    schemes: Schemes
    drafts: bool
    experts: dict[int, dict[str, Counter[str]]] = field(default_factory=dict)  # layer -> projection -> how it is stored

    @cached_property
    def layers(self) -> int:
        """Layers of the model, those that draft not counted; 0 for not known."""
        found = self.summary.config.count("layers")
        return found.number if found else 0

    @cached_property
    def architecture(self) -> Architecture | None:
        """What is known of the architecture."""
        return ARCHITECTURES.get(next(iter(self.summary.config.architectures), ""))

    def loads(self, layer: int) -> bool:
        """Whether the server loads that layer."""
        return layer < self.layers or self.drafts

    def is_certain(self, module: str) -> bool:
        """Whether it is known that sglang builds this module by the config."""
        match = LAYER.fullmatch(module)
        known = self.architecture is not None and match is not None and module.startswith("model.layers.")
        return known and match is not None and self.loads(int(match[1])) and _last(module) in _LINEAR


def find_mismatches(summary: CheckpointSummary, *, drafts: bool) -> tuple[Mismatch, ...]:
    """Everything in which the tensors differ from the config, those that are fatal first.

    `outline` has every header; `drafts` is whether the server will load the MTP layer. Tensors that are alike are
    named once, with their number.
    """
    schemes = read_schemes(summary.config, summary.quantized)
    if isinstance(schemes, str):
        return (Mismatch(message=f"how its tensors are stored is not checked: `{schemes}` is not known here"),)
    checkpoint = _Checkpoint(summary=summary, schemes=schemes, drafts=drafts)
    found = [
        *_stored_otherwise(checkpoint),
        *_split_modules(checkpoint),
        *_experts_lacking(checkpoint),
        *_experts_named_singly(checkpoint),
        *_draft_layer(checkpoint),
        *_draft_schemes(checkpoint),
        *_flat_scales(checkpoint),
        *_shared_of_fp8(checkpoint),
        *_shared_unlike_routed(checkpoint),
    ]
    return tuple(sorted(found, key=lambda difference: not difference.fatal))


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _format_names(names: Iterable[str]) -> str:
    """Names of tensors, those that differ in their numbers only as one."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for name in names:
        kind = re.sub(r"\d+", "#", name)
        first.setdefault(kind, name)
        counts[kind] += 1
    words = [
        f"`{first[kind]}`" + (f" and {count - 1:,} like it" if count > 1 else "") for kind, count in counts.items()
    ]
    more = f", and {len(words) - _SHOWN} more kinds" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def _count(names: list[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names):,} tensors are"


# --- how each tensor is stored ----------------------------------------------------------------------------------------


def _stored_otherwise(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Each matrix, and the scale beside it, against what the config says of its module."""
    wrong: dict[tuple[str, bool], list[str]] = defaultdict(list)
    unjudged: dict[str, list[str]] = defaultdict(list)
    for name, tensor in checkpoint.summary.tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf not in _MATRICES or len(tensor.shape) < 2:
            continue
        storage = _storage_of(checkpoint, module)
        _note_expert(checkpoint, module, leaf, tensor)
        if storage is not None and not storage.dtypes:
            unjudged[storage.label].append(name)
        elif LAYER.match(module) and (fault := _fault(checkpoint.summary.tensors, module, leaf, tensor, storage)):
            wrong[fault, checkpoint.is_certain(module)].append(name)
    for (fault, sure), names in wrong.items():
        yield Mismatch(
            message=f"{_count(names)} {fault}: {_format_names(names)}",
            hint="take a revision of the checkpoint whose config and tensors agree, or quantize it anew",
            fatal=sure,
        )
    for word, names in unjudged.items():
        yield Mismatch(message=f"{_count(names)} not checked, their scheme being `{word}`: {_format_names(names)}")


def _storage_of(checkpoint: _Checkpoint, module: str) -> StorageScheme | None:
    """What the config says of a module, by its name or without the part that holds the text's."""
    last, method = _last(module), checkpoint.schemes.method
    if last in _UNQUANTIZED or (last == "eh_proj" and method != "quark"):
        return None
    storage = checkpoint.schemes.storage_of(module)
    for inner in ("language_model.", "model.language_model."):
        if storage is not None and module.startswith(inner):
            rest = module.removeprefix(inner)
            storage = checkpoint.schemes.storage_of(rest if rest.startswith("model.") else f"model.{rest}")
    return storage


def _fault(
    tensors: Mapping[str, StoredTensor], module: str, leaf: str, tensor: StoredTensor, storage: StorageScheme | None
) -> str:
    """What is wrong with a matrix and its scale, as the rest of a sentence; nothing where both are right."""
    if storage is None:
        right = leaf == "weight" and tensor.dtype in FLOATS
        return "" if right else f"stored as {tensor.dtype}, and {CONFIG_SAYS} leaves them unquantized"
    if leaf != storage.leaf or tensor.dtype not in storage.dtypes:
        return f"stored as {tensor.dtype}, and {CONFIG_SAYS} says {storage.label}"
    scale = tensors.get(f"{module}.{storage.scale}")
    if scale is None:
        return f"stored as {storage.label} without their `{storage.scale}`"
    if scale.dtype not in storage.scale_dtypes:
        return f"stored as {storage.label} with scales of {scale.dtype}"
    if storage.scale_shape is not None and len(tensor.shape) == 2:
        rows, columns = tensor.shape
        if _squeezed(scale.shape) != _squeezed(storage.scale_shape(rows, columns)):
            return f"stored as {storage.label} with scales of another shape"
    return ""


def _squeezed(shape: Iterable[int]) -> tuple[int, ...]:
    """A shape without the dimensions that are 1: they are written or left out."""
    return tuple(length for length in shape if length != 1)


def _split_modules(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Projections that are built as one module, and are stored in two ways."""
    names = [
        f"{module}.{after}"
        for module, last in _linear_modules(checkpoint)
        for after in fused_siblings(last)
        if _label(checkpoint, f"{module}.{last}") != _label(checkpoint, f"{module}.{after}")
        and f"{module}.{after}.weight" in checkpoint.summary.tensors
    ]
    if names:
        yield Mismatch(
            message=f"{_count(names)} quantized otherwise than the one they are built as one module with: "
            f"{_format_names(names)}",
            fatal=all(map(checkpoint.is_certain, names)),
        )


def _linear_modules(checkpoint: _Checkpoint) -> Iterator[tuple[str, str]]:
    """The linear modules that are no routed expert's: what holds them, and their last name."""
    for name in checkpoint.summary.tensors:
        module, _, leaf = name.rpartition(".")
        if leaf in _MATRICES and ".experts." not in module:
            holder, _, last = module.rpartition(".")
            yield holder, last


def _label(checkpoint: _Checkpoint, module: str) -> str:
    storage = _storage_of(checkpoint, module)
    return storage.label if storage else ""


# --- experts ----------------------------------------------------------------------------------------------------------


def _note_expert(checkpoint: _Checkpoint, module: str, leaf: str, tensor: StoredTensor) -> None:
    match = _EXPERT.fullmatch(module)
    place = LAYER.fullmatch(module) if match else None
    if match and place:
        of_layer = checkpoint.experts.setdefault(int(place[1]), {})
        of_layer.setdefault(match[3], Counter())[_stored_as(leaf, tensor)] += 1


def _stored_as(leaf: str, tensor: StoredTensor) -> str:
    return tensor.dtype if leaf == "weight" else f"{tensor.dtype} ({leaf})"


def _experts_lacking(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Layers whose experts are not all there: what is not loaded is what the memory held."""
    wanted = checkpoint.summary.config.count("moe.routed_experts")
    if wanted is None or wanted.number < 1:
        return
    sure = bool(checkpoint.architecture and checkpoint.architecture.each_expert)
    whole = [name for name in checkpoint.summary.tensors if _ALL_EXPERTS.fullmatch(name)]
    if not sure:
        return
    if not checkpoint.experts and whole:
        yield Mismatch(
            message=f"{_count(whole)} of all routed experts together, of which sglang loads none and says nothing: "
            f"{_format_names(whole)}",
            hint="save each expert by its own name, `…mlp.experts.0.gate_proj.weight`",
            fatal=True,
        )
        return
    short = {
        layer: {projection: counts.total() for projection, counts in of_layer.items()}
        for layer, of_layer in sorted(checkpoint.experts.items())
        if any(counts.total() != wanted.number for counts in of_layer.values())
    }
    short |= {layer: {} for layer in _with_router(checkpoint) if layer not in checkpoint.experts}
    for layer, counted in sorted(short.items())[:1]:
        has = ", ".join(f"{count} of `{projection}`" for projection, count in counted.items()) or "none"
        others = f", and {len(short) - 1} more layers lack some" if len(short) > 1 else ""
        yield Mismatch(
            message=f"layer {layer} has not the {wanted.number} experts of `{wanted.source}`: {has}{others}",
            hint="`deploy stage PROFILE` fetches what is missing; else the checkpoint was not written whole",
            fatal=any(map(checkpoint.loads, short)),
        )


def _with_router(checkpoint: _Checkpoint) -> Iterator[int]:
    for name in checkpoint.summary.tensors:
        match = LAYER.fullmatch(name)
        if match and match[2] == "mlp.gate.weight":
            yield int(match[1])


def _experts_named_singly(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Quark: sglang asks for a layer's experts under one name, which entries of single ones do not match.

    The MTP layer's are named by the overlay, or by newer versions themselves (`patches/transforms.py`).
    """
    if checkpoint.schemes.method != "quark":
        return
    layers = []
    for layer, of_layer in checkpoint.experts.items():
        stored = {how for counts in of_layer.values() for how in counts}
        asked = checkpoint.schemes.storage_of(f"model.layers.{layer}.mlp.experts")
        single = checkpoint.schemes.storage_of(f"model.layers.{layer}.mlp.experts.0.{next(iter(of_layer))}")
        if layer < checkpoint.layers and single is None and asked is not None and stored <= FLOATS:
            layers.append(layer)
    if layers:
        yield Mismatch(
            message=f"the experts of {len(layers)} layers, {layers[0]} among them, are excluded one by one: sglang "
            f"asks for `model.layers.{layers[0]}.mlp.experts`, and builds them as quantized",
            hint="add that name to `exclude` in a copy of config.json",
            fatal=bool(checkpoint.architecture and checkpoint.architecture.each_expert),
        )


def _shared_unlike_routed(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Shared experts that are stored otherwise than the routed ones: a server that fuses them cannot load them."""
    shared: dict[int, str] = {}
    for name, tensor in checkpoint.summary.tensors.items():
        match = LAYER.fullmatch(name)
        if match and match[2].startswith("mlp.shared_experts.") and _last(name) in _MATRICES and len(tensor.shape) == 2:
            shared[int(match[1])] = _stored_as(_last(name), tensor)
    for layer, how in shared.items():
        routed = {one for counts in checkpoint.experts.get(layer, {}).values() for one in counts}
        if layer < checkpoint.layers and routed and routed != {how}:
            yield Mismatch(
                message=f"shared experts are stored as {how}, routed ones as {', '.join(sorted(routed))} "
                f"(layer {layer}): they are served side by side, not fused",
                hint=f"`deploy up` sets `{Meaning.NO_EXPERT_FUSION}` where the engine would fuse them anyway",
            )
            return


# --- the layer that drafts --------------------------------------------------------------------------------------------


def _draft_layer(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """The MTP layer has all that the last layer has, but for its indexer, and the modules that are its own."""
    if not (checkpoint.summary.config.mtp_layers and checkpoint.architecture and checkpoint.architecture.each_expert):
        return
    last, own = _modules_of(checkpoint, checkpoint.layers - 1), _modules_of(checkpoint, checkpoint.layers)
    if not own:
        yield Mismatch(
            message=f"`{DRAFTS}` is {checkpoint.summary.config.mtp_layers}, and no tensor is of the MTP layer "
            f"(`model.layers.{checkpoint.layers}.`): nothing can be drafted with it"
        )
        return
    wanted = {module for module in last if not module.startswith("self_attn.indexer.")} | set(_MTP_MODULES)
    if lost := sorted(wanted - own):
        names = [f"model.layers.{checkpoint.layers}.{module}" for module in lost]
        yield Mismatch(
            message=f"the MTP layer lacks {len(names):,} modules: {_format_names(names)}",
            hint="take a revision that has them, or serve without the `speculative-…` flags",
            fatal=checkpoint.drafts,
        )


def _modules_of(checkpoint: _Checkpoint, layer: int) -> set[str]:
    matches = (LAYER.fullmatch(name) for name in checkpoint.summary.tensors)
    return {match[2].rpartition(".")[0] for match in matches if match and int(match[1]) == layer}


def _draft_schemes(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Quark: a scheme of the MTP layer by a pattern, which sglang does not ask under the layer's name."""
    given = checkpoint.summary.config.quantized.get("layer_quant_config")
    layer = f"model.layers.{checkpoint.layers}."
    keys = [key for key in given if f"layers.{checkpoint.layers}" in key] if isinstance(given, dict) else []
    if checkpoint.schemes.method == "quark" and (keys := [key for key in keys if not key.startswith(layer)]):
        yield Mismatch(
            message=f"`layer_quant_config` names the MTP layer as {', '.join(f'`{key}`' for key in keys)}: sglang "
            "builds it under other names",
            hint="before sglang 0.5.16 the overlay of `up` mends it; else name its modules, or serve without drafts",
            fatal=checkpoint.drafts,
            sglang=_RENAMED_FROM,
        )


def _shared_of_fp8(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Quark's FP8 for shared experts: built by themselves, they are asked for blocks that this method does not know."""
    names = [
        name
        for name, tensor in checkpoint.summary.tensors.items()
        if tensor.dtype == "F8_E4M3"
        and (match := LAYER.fullmatch(name))
        and checkpoint.loads(int(match[1]))
        and match[2].startswith("mlp.shared_experts.")
    ]
    if (
        names
        and checkpoint.schemes.method == "quark"
        and checkpoint.architecture
        and checkpoint.architecture.attention == "latent"
    ):
        yield Mismatch(
            message=f"{_count(names)} of shared experts that Quark made FP8, for which sglang before 0.5.17 builds no "
            f"model: {_format_names(names)}",
            hint="use sglang 0.5.17 or newer",
            fatal=True,
            sglang=_BLOCKS_ASKED,
        )


def _flat_scales(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Quark's FP8 by rows in latent attention: the scales have one dimension, and sglang multiplied by columns."""
    if (
        checkpoint.schemes.method != "quark"
        or checkpoint.architecture is None
        or checkpoint.architecture.attention != "latent"
    ):
        return
    tensors = checkpoint.summary.tensors
    fp8 = (name for name, tensor in tensors.items() if name.endswith(_KEYS_VALUES) and tensor.dtype == "F8_E4M3")
    scales = ((name, tensors.get(f"{name}_scale")) for name in fp8)
    if names := [name for name, scale in scales if scale is not None and len(scale.shape) == 1 and scale.shape[0] > 1]:
        yield Mismatch(
            message=f"{_count(names)} stored as FP8 with a flat scale of each row, which sglang before 0.5.18 does not "
            f"load: {_format_names(names)}",
            hint="use sglang 0.5.18 or newer, or a checkpoint that keeps attention in bf16",
            fatal=True,
            sglang=_FLAT_SCALES,
        )
