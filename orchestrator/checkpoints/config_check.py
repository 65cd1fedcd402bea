"""Check of the tensors in a checkpoint's headers against its quantization config.

A mismatch is fatal if sglang cannot load the tensors, or silently loads them wrongly. Mismatches of unknown modules and
architectures are never fatal.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from orchestrator.checkpoints.config import DRAFTS
from orchestrator.checkpoints.mismatch import Mismatch
from orchestrator.checkpoints.safetensors import StoredTensor
from orchestrator.checkpoints.schemes import FLOATS, SCALES, Schemes, StorageScheme, fused_siblings, read_schemes
from orchestrator.checkpoints.summary import LAYER, CheckpointSummary
from orchestrator.engine.architectures import ARCHITECTURES, Architecture
from orchestrator.engine.options import Meaning

CONFIG_SAYS: Final = "`quantization_config`"
_MATRICES: Final = frozenset({"weight", "weight_packed"})
_EXPERT: Final = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)")
_ALL_EXPERTS: Final = re.compile(r".+\.experts\.(?:gate_up_proj|down_proj)(?:\.weight)?")
_KEYS_VALUES: Final = ".self_attn.kv_b_proj.weight"
_MAX_EXAMPLES: Final = 3  # kinds of tensors in a message
# Linear modules of a decoder layer that sglang builds by the quantization config.
_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_LINEAR: Final = frozenset(
    {*_ATTENTION, "wk", "wq_b", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "eh_proj"}
)
# Built without the config: routers, and the weights of the indexer's heads (sglang 0.5.14 to 0.5.23, deepseek_v2.py,
# dsa_indexer.py, qwen2_moe.py).
_UNQUANTIZED: Final = frozenset({"gate", "router", "shared_expert_gate", "weights_proj"})
_MTP_MODULES: Final = ("eh_proj", "enorm", "hnorm", "shared_head.norm")  # in the MTP layer (deepseek_nextn.py)
_RENAMED_FROM: Final = ">=0.5.16"  # sglang renames schemes of the MTP layer by prefix (glm4_moe.py)
_BLOCKS_ASKED: Final = "<0.5.17"  # sglang 0.5.14, deepseek_v2.py:767, `QuarkLinearMethod` without `quant_config`
_FLAT_SCALES: Final = "<0.5.18"  # sglang 0.5.14 to 0.5.17, fp8_utils.py, channel_quant_to_tensor_quant


@dataclass(kw_only=True)
class _Checkpoint:
    """The checked checkpoint: all headers, the schemes, and whether the MTP layer is loaded."""

    summary: CheckpointSummary
    schemes: Schemes
    drafts: bool
    experts: dict[int, dict[str, Counter[str]]] = field(default_factory=dict)  # layer -> projection -> storage

    @cached_property
    def layers(self) -> int:
        """The number of layers without MTP layers; 0 if unknown."""
        count = self.summary.config.count("layers")
        return count.number if count else 0

    @cached_property
    def architecture(self) -> Architecture | None:
        return ARCHITECTURES.get(next(iter(self.summary.config.architectures), ""))

    @property
    def has_separate_experts(self) -> bool:
        return self.architecture is not None and self.architecture.separate_experts

    @property
    def is_quark_mla(self) -> bool:
        return self.schemes.method == "quark" and bool(self.architecture and self.architecture.attention == "latent")

    def loads(self, layer: int) -> bool:
        return layer < self.layers or self.drafts

    def is_certain(self, module: str) -> bool:
        """Return whether sglang certainly builds this module by the config."""
        match = LAYER.fullmatch(module)
        is_layer = self.architecture is not None and match is not None and module.startswith("model.layers.")
        return is_layer and match is not None and self.loads(int(match[1])) and _last(module) in _LINEAR


def find_mismatches(summary: CheckpointSummary, *, drafts: bool) -> tuple[Mismatch, ...]:
    """Find the mismatches between the tensors and the config, fatal ones first.

    `summary` must have every header; `drafts` means that the server loads the MTP layer.
    """
    schemes = read_schemes(summary.config, summary.quantized)
    if isinstance(schemes, str):
        return (Mismatch(message=f"the storage of tensors is not checked: unknown quantization method `{schemes}`"),)
    checkpoint = _Checkpoint(summary=summary, schemes=schemes, drafts=drafts)
    mismatches = [
        *_wrong_storage(checkpoint),
        *_mixed_fused_modules(checkpoint),
        *_missing_experts(checkpoint),
        *_experts_excluded_singly(checkpoint),
        *_incomplete_mtp_layer(checkpoint),
        *_unmatched_mtp_patterns(checkpoint),
        *_flat_scales(checkpoint),
        *_quark_fp8_shared_experts(checkpoint),
        *_unfusable_shared_experts(checkpoint),
    ]
    return tuple(sorted(mismatches, key=lambda mismatch: not mismatch.fatal))


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _format_names(names: Iterable[str]) -> str:
    """Format names of tensors; the first of those that differ only in numbers stands for all."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[re.sub(r"\d+", "#", name)].append(name)
    texts = [
        f"`{group[0]}`" + (f" and {len(group) - 1:,} like it" if len(group) > 1 else "") for group in groups.values()
    ]
    suffix = f", and {len(texts) - _MAX_EXAMPLES} more kinds" if len(texts) > _MAX_EXAMPLES else ""
    return ", ".join(texts[:_MAX_EXAMPLES]) + suffix


def _count(names: list[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names):,} tensors are"


def _wrong_storage(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Check each matrix and its scale against the scheme of its module."""
    wrong: dict[tuple[str, bool], list[str]] = defaultdict(list)
    unchecked: dict[str, list[str]] = defaultdict(list)
    for name, tensor in checkpoint.summary.tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf not in _MATRICES or len(tensor.shape) < 2:
            continue
        storage = _storage_of(checkpoint, module)
        _record_expert(checkpoint, module, leaf, tensor)
        if storage is not None and not storage.dtypes:
            unchecked[storage.label].append(name)
        elif LAYER.match(module) and (
            fault := _storage_problem(checkpoint.summary.tensors, module, leaf, tensor, storage)
        ):
            wrong[fault, checkpoint.is_certain(module)].append(name)
    for (fault, certain), names in wrong.items():
        yield Mismatch(
            message=f"{_count(names)} {fault}: {_format_names(names)}",
            hint="use a revision whose config and tensors match (`--revision COMMIT`), or quantize it again",
            fatal=certain,
        )
    for label, names in unchecked.items():
        yield Mismatch(
            message=f"{_count(names)} not checked, with the unknown scheme `{label}`: {_format_names(names)}"
        )


def _storage_of(checkpoint: _Checkpoint, module: str) -> StorageScheme | None:
    """Return the scheme of a module, by its full name or without the prefix of the text model."""
    last, method = _last(module), checkpoint.schemes.method
    if last in _UNQUANTIZED or (last == "eh_proj" and method != "quark"):
        return None
    storage = checkpoint.schemes.storage_of(module)
    for inner in ("language_model.", "model.language_model."):
        if storage is not None and module.startswith(inner):
            name = module.removeprefix(inner)
            storage = checkpoint.schemes.storage_of(name if name.startswith("model.") else f"model.{name}")
    return storage


def _storage_problem(
    tensors: Mapping[str, StoredTensor], module: str, leaf: str, tensor: StoredTensor, storage: StorageScheme | None
) -> str:
    """Return the fault of a matrix or its scale, as the end of a sentence; "" if valid."""
    if storage is None:
        unquantized = leaf == "weight" and tensor.dtype in FLOATS
        return "" if unquantized else f"stored as {tensor.dtype}, but unquantized in {CONFIG_SAYS}"
    if leaf != storage.leaf or tensor.dtype not in storage.dtypes:
        return f"stored as {tensor.dtype}, but {storage.label} in {CONFIG_SAYS}"
    scale = tensors.get(f"{module}.{storage.scale}")
    if scale is None:
        return f"stored as {storage.label} without `{storage.scale}`"
    if scale.dtype not in SCALES:
        return f"stored as {storage.label} with scales of {scale.dtype}"
    if storage.scale_shape is not None and len(tensor.shape) == 2:
        rows, columns = tensor.shape
        if _squeezed(scale.shape) != _squeezed(storage.scale_shape(rows, columns)):
            return f"stored as {storage.label} with scales of the wrong shape"
    return ""


def _squeezed(shape: Iterable[int]) -> tuple[int, ...]:
    """Return a shape without dimensions of 1, which are optional."""
    return tuple(length for length in shape if length != 1)


def _mixed_fused_modules(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Find projections of one fused module with different schemes."""
    names = [
        f"{module}.{after}"
        for module, last in _linear_modules(checkpoint)
        for after in fused_siblings(last)
        if _label(checkpoint, f"{module}.{last}") != _label(checkpoint, f"{module}.{after}")
        and f"{module}.{after}.weight" in checkpoint.summary.tensors
    ]
    if names:
        yield Mismatch(
            message=f"{_count(names)} quantized unlike the projection that sglang fuses them with: "
            f"{_format_names(names)}",
            fatal=all(map(checkpoint.is_certain, names)),
        )


def _linear_modules(checkpoint: _Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield the linear modules outside routed experts, as (parent, name)."""
    for name in checkpoint.summary.tensors:
        module, _, leaf = name.rpartition(".")
        if leaf in _MATRICES and ".experts." not in module:
            holder, _, last = module.rpartition(".")
            yield holder, last


def _label(checkpoint: _Checkpoint, module: str) -> str:
    storage = _storage_of(checkpoint, module)
    return storage.label if storage else ""


def _record_expert(checkpoint: _Checkpoint, module: str, leaf: str, tensor: StoredTensor) -> None:
    match = _EXPERT.fullmatch(module)
    layer = LAYER.fullmatch(module) if match else None
    if match and layer:
        projections = checkpoint.experts.setdefault(int(layer[1]), {})
        projections.setdefault(match[3], Counter())[_stored_as(leaf, tensor)] += 1


def _stored_as(leaf: str, tensor: StoredTensor) -> str:
    return tensor.dtype if leaf == "weight" else f"{tensor.dtype} ({leaf})"


def _missing_experts(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Find layers with missing experts; sglang leaves their memory uninitialized."""
    required = checkpoint.summary.config.count("moe.routed_experts")
    if required is None or required.number < 1 or not checkpoint.has_separate_experts:
        return
    combined = [name for name in checkpoint.summary.tensors if _ALL_EXPERTS.fullmatch(name)]
    if not checkpoint.experts and combined:
        yield Mismatch(
            message=f"{_count(combined)} of all routed experts combined, which sglang skips without an error: "
            f"{_format_names(combined)}",
            hint="save each expert under its own name, `…mlp.experts.0.gate_proj.weight`",
            fatal=True,
        )
        return
    incomplete = {
        layer: {projection: counts.total() for projection, counts in projections.items()}
        for layer, projections in checkpoint.experts.items()
        if any(counts.total() != required.number for counts in projections.values())
    }
    incomplete |= {layer: {} for layer in _layers_with_router(checkpoint) if layer not in checkpoint.experts}
    if incomplete:
        layer = min(incomplete)
        present = ", ".join(f"{count} of `{projection}`" for projection, count in incomplete[layer].items()) or "none"
        suffix = f"; {len(incomplete) - 1} more layers lack some" if len(incomplete) > 1 else ""
        yield Mismatch(
            message=f"layer {layer} lacks some of {required.number} experts of `{required.source}`: "
            f"found {present}{suffix}",
            hint="`deploy stage PROFILE` downloads missing files; otherwise the checkpoint was not saved completely",
            fatal=any(map(checkpoint.loads, incomplete)),
        )


def _layers_with_router(checkpoint: _Checkpoint) -> Iterator[int]:
    for name in checkpoint.summary.tensors:
        match = LAYER.fullmatch(name)
        if match and match[2] == "mlp.gate.weight":
            yield int(match[1])


def _experts_excluded_singly(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Find layers with excludes of single experts (Quark), which do not match sglang's name for all experts.

    The overlay, or newer versions of sglang, handle the MTP layer (`patches/transforms.py`).
    """
    if checkpoint.schemes.method != "quark":
        return
    layers = []
    for layer, projections in checkpoint.experts.items():
        stored = {storage for counts in projections.values() for storage in counts}
        combined = checkpoint.schemes.storage_of(f"model.layers.{layer}.mlp.experts")
        single = checkpoint.schemes.storage_of(f"model.layers.{layer}.mlp.experts.0.{next(iter(projections))}")
        if layer < checkpoint.layers and single is None and combined is not None and stored <= FLOATS:
            layers.append(layer)
    if layers:
        yield Mismatch(
            message=f"the experts of {len(layers)} layers, e.g. {layers[0]}, are excluded one by one: sglang looks "
            f"up `model.layers.{layers[0]}.mlp.experts` and builds them quantized",
            hint="add that name to `exclude` in a copy of config.json",
            fatal=checkpoint.has_separate_experts,
        )


def _unfusable_shared_experts(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Find shared experts stored differently from routed experts: a server that fuses them cannot load them."""
    shared: dict[int, str] = {}
    for name, tensor in checkpoint.summary.tensors.items():
        match = LAYER.fullmatch(name)
        if match and match[2].startswith("mlp.shared_experts.") and _last(name) in _MATRICES and len(tensor.shape) == 2:
            shared[int(match[1])] = _stored_as(_last(name), tensor)
    for layer, storage in shared.items():
        routed = {stored for counts in checkpoint.experts.get(layer, {}).values() for stored in counts}
        if layer < checkpoint.layers and routed and routed != {storage}:
            yield Mismatch(
                message=f"shared experts are stored as {storage}, routed ones as {', '.join(sorted(routed))} "
                f"(layer {layer}): they cannot be fused",
                hint=f"`deploy up` sets `{Meaning.NO_EXPERT_FUSION}` if the engine would fuse them",
            )
            return


def _incomplete_mtp_layer(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Find missing modules of the MTP layer: it needs its own, and those of the last layer except the indexer."""
    if not (checkpoint.summary.config.mtp_layers and checkpoint.has_separate_experts):
        return
    last, mtp = _modules_of(checkpoint, checkpoint.layers - 1), _modules_of(checkpoint, checkpoint.layers)
    if not mtp:
        yield Mismatch(
            message=f"`{DRAFTS}` is {checkpoint.summary.config.mtp_layers}, but the checkpoint has no tensor of the "
            f"MTP layer (`model.layers.{checkpoint.layers}.`): speculative decoding with it is impossible"
        )
        return
    required = {module for module in last if not module.startswith("self_attn.indexer.")} | set(_MTP_MODULES)
    if missing := sorted(required - mtp):
        names = [f"model.layers.{checkpoint.layers}.{module}" for module in missing]
        yield Mismatch(
            message=f"the MTP layer lacks {len(names):,} modules: {_format_names(names)}",
            hint="use a revision with these modules, or serve without the `speculative-…` flags",
            fatal=checkpoint.drafts,
        )


def _modules_of(checkpoint: _Checkpoint, layer: int) -> set[str]:
    matches = (LAYER.fullmatch(name) for name in checkpoint.summary.tensors)
    return {match[2].rpartition(".")[0] for match in matches if match and int(match[1]) == layer}


def _unmatched_mtp_patterns(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Find patterns for the MTP layer (Quark) that do not match sglang's names."""
    patterns = checkpoint.summary.config.quantized.get("layer_quant_config")
    layer = f"model.layers.{checkpoint.layers}."
    keys = [key for key in patterns if f"layers.{checkpoint.layers}" in key] if isinstance(patterns, dict) else []
    if checkpoint.schemes.method == "quark" and (keys := [key for key in keys if not key.startswith(layer)]):
        yield Mismatch(
            message=f"`layer_quant_config` names the MTP layer as {', '.join(f'`{key}`' for key in keys)}: sglang "
            "uses other names",
            hint="before sglang 0.5.16 the overlay of `up` fixes it; otherwise name its modules, or serve without MTP",
            fatal=checkpoint.drafts,
            sglang=_RENAMED_FROM,
        )


def _quark_fp8_shared_experts(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Find shared experts in Quark's FP8, which sglang before 0.5.17 cannot build outside fusion."""
    names = [
        name
        for name, tensor in checkpoint.summary.tensors.items()
        if tensor.dtype == "F8_E4M3"
        and (match := LAYER.fullmatch(name))
        and checkpoint.loads(int(match[1]))
        and match[2].startswith("mlp.shared_experts.")
    ]
    if names and checkpoint.is_quark_mla:
        yield Mismatch(
            message=f"{_count(names)} of shared experts in Quark's FP8, which sglang before 0.5.17 cannot "
            f"build: {_format_names(names)}",
            hint="use sglang 0.5.17 or newer: `--set engine=ENGINE`; `deploy profiles` lists engines",
            fatal=True,
            sglang=_BLOCKS_ASKED,
        )


def _flat_scales(checkpoint: _Checkpoint) -> Iterator[Mismatch]:
    """Find one-dimensional scales of Quark's FP8 in latent attention; sglang applied them to columns, not rows."""
    if not checkpoint.is_quark_mla:
        return
    tensors = checkpoint.summary.tensors
    fp8 = (name for name, tensor in tensors.items() if name.endswith(_KEYS_VALUES) and tensor.dtype == "F8_E4M3")
    scales = ((name, tensors.get(f"{name}_scale")) for name in fp8)
    if names := [name for name, scale in scales if scale is not None and len(scale.shape) == 1 and scale.shape[0] > 1]:
        yield Mismatch(
            message=f"{_count(names)} stored as FP8 with a one-dimensional scale, which sglang before 0.5.18 cannot "
            f"load: {_format_names(names)}",
            hint="use sglang 0.5.18 or newer (`--set engine=ENGINE`), or a checkpoint with attention in bf16",
            fatal=True,
            sglang=_FLAT_SCALES,
        )
