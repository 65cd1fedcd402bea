"""sglang's rule for fusing the shared expert with routed experts; fusion changes the key of the kernel table.

Rules: sglang 0.5.14 models/deepseek_v2.py:2650-2715 (`determine_num_fused_shared_experts`), 0.5.18 and later also
`QuarkConfig.can_fuse_shared_expert` (layers/quantization/quark/quark.py). Since 0.5.19, entries of the MTP layer no
longer prevent fusion (sgl-project/sglang#36124). No option overrides the other vetoes (0.5.18 deepseek_v2.py:3019,
"even if --enforce-shared-experts-fusion is specified"; unchanged up to 0.5.23). In effect, the method reads only the
exclude list: it compares layer schemes under the name `shared_expert`, which modules of this family lack (0.5.18 to
0.5.22).
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.core.origin import Origin
from orchestrator.engine.options import Meaning
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.plan import Flag, Moe, Plan

_VALIDATED_EXPERTS: Final = (256, 384)  # sglang 0.5.14 deepseek_v2.py:2676
_QUARK_ONLY: Final = 384  # deepseek_v2.py:2679
_READS_EXCLUDE_LIST: Final = (0, 5, 18)
_IGNORES_MTP_ENTRIES: Final = (0, 5, 19)
_OFF: Final = Meaning.NO_EXPERT_FUSION.value
_ON: Final = Meaning.EXPERT_FUSION.value


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """Whether a plan fuses shared experts, and why."""

    fused: bool | None  # None: depends on a checkpoint that is not on this host
    reason: str
    hint: str = ""
    required_flag: str = ""  # without this switch, sglang would fuse and give wrong answers


def is_mxfp4(plan: Plan) -> bool:
    """Return whether the plan's weights are MXFP4."""
    return "mxfp4" in plan.model.quantization


def with_fusion_flag(plan: Plan, checkpoint: MoeCheckpoint | None) -> Plan:
    """Add the switch that prevents fusion, if the checkpoint stores its shared expert in another format.

    sglang silently drops such weights (sgl-project/sglang#40754, #38878), or fails to load them.
    """
    fusion = compute_fusion(plan, checkpoint) if checkpoint else None
    if fusion is None or not fusion.required_flag:
        return plan
    flag = Flag(name=fusion.required_flag, values=(), origin=Origin.INFERRED, source=fusion.reason)
    return replace(plan, flags=tuple(sorted((*plan.flags, flag), key=lambda flag: flag.name)))


def inferred_fusion_flag(plan: Plan) -> Flag | None:
    """Return the switch that `with_fusion_flag` added, if any."""
    switch = Meaning.NO_EXPERT_FUSION
    return next((flag for flag in plan.flags if flag.name == switch and flag.origin is Origin.INFERRED), None)


def might_fuse(plan: Plan) -> bool:
    """Return whether the server fuses its shared expert, unless its checkpoint prevents this."""
    return plan.model.moe is not None and would_fuse(plan, plan.model.moe)


def compute_fusion(plan: Plan, checkpoint: MoeCheckpoint | None) -> Fusion:
    """Decide whether the server of `plan` fuses the shared expert of `checkpoint`."""
    if plan.serving.expert_fusion is False:
        return Fusion(fused=False, reason=f"flag `--{_OFF}`")
    if checkpoint is None:
        return _without_checkpoint(plan)
    if veto := _storage_mismatch(checkpoint):
        return _unfused(plan, checkpoint, veto)
    version = _version(plan.engine.version)
    if version >= _READS_EXCLUDE_LIST and (entry := _mtp_entry_taken_for_model(checkpoint, version)):
        return Fusion(
            fused=False,
            reason=f"exclude entry `{entry}`: sglang {plan.engine.version} applies it to the model, not the MTP layer",
            hint=f"`--{_ON}` does not override this; {_mtp_entry_hint(version)}",
        )
    if plan.serving.expert_fusion:
        return Fusion(fused=True, reason=f"flag `--{_ON}`")
    return _by_configuration(plan, checkpoint.moe)


def _without_checkpoint(plan: Plan) -> Fusion:
    """Decide without the checkpoint; impossible for MXFP4, because Quark's exclude list may prevent fusion."""
    if plan.model.moe and not is_mxfp4(plan):
        return _by_configuration(plan, plan.model.moe)
    return Fusion(
        fused=None,
        reason="depends on the checkpoint, which is not on this host",
        hint="pass a directory with its `config.json`: `--model DIR`",
    )


def _unfused(plan: Plan, checkpoint: MoeCheckpoint, veto: str) -> Fusion:
    """Require the switch if sglang would fuse experts that the checkpoint stores in different formats."""
    reads = _version(plan.engine.version) >= _READS_EXCLUDE_LIST
    if (reads and _excluded(checkpoint)) or not would_fuse(plan, checkpoint.moe):
        return Fusion(fused=False, reason=veto)
    cause = "finds no entry in the exclude list" if reads else "does not read the exclude list"
    hint = f"sglang {plan.engine.version} {cause} and would fuse them: set the flag `{_OFF}`"
    return Fusion(fused=False, reason=veto, hint=hint, required_flag=_OFF)


def _by_configuration(plan: Plan, moe: Moe) -> Fusion:
    if moe.shared_experts != 1 or moe.routed_experts not in _VALIDATED_EXPERTS:
        shape = f"{moe.routed_experts} routed and {moe.shared_experts} shared experts"
        return Fusion(fused=False, reason=f"sglang fuses 256 or 384 routed experts and 1 shared expert, not {shape}")
    if moe.routed_experts == _QUARK_ONLY and not plan.model.quantization.startswith("quark"):
        return Fusion(fused=False, reason=f"sglang fuses {_QUARK_ONLY} routed experts only with Quark quantization")
    if plan.hardware.vendor == "cpu" or (plan.hardware.vendor == "nvidia" and plan.layout.ep > 1):
        return Fusion(fused=False, reason="sglang fuses only on GPUs, and with expert parallelism only on AMD GPUs")
    if vetoes := plan.serving.fusion_vetoes:
        return Fusion(fused=False, reason=f"flag `{vetoes[0]}`")
    return Fusion(fused=True, reason="sglang's default")


def would_fuse(plan: Plan, moe: Moe) -> bool:
    """Return whether the server fuses experts of this shape, unless their checkpoint prevents this."""
    if plan.serving.expert_fusion is False or not moe.shared_experts:
        return False
    return plan.serving.expert_fusion is True or bool(_by_configuration(plan, moe).fused)


def _storage_mismatch(checkpoint: MoeCheckpoint) -> str:
    """Return the difference between the formats of shared and routed experts that prevents fusion; "" if none."""
    shared, routed = checkpoint.shared_dtype, checkpoint.routed_dtype
    if shared and routed and shared != routed:
        return f"dtype: the checkpoint stores shared experts as {shared} and routed experts as {routed}"
    entry = _excluded(checkpoint)
    return f"exclude entry `{entry}`: shared experts are not quantized" if entry else ""


def _excluded(checkpoint: MoeCheckpoint) -> str | None:
    """Return an exclude entry that leaves shared experts of the target model unquantized, if any."""
    entries = (
        entry for entry in checkpoint.exclude if _is_shared_entry(entry) and not _is_mtp_entry(entry, checkpoint)
    )
    return next(entries, None)


def _mtp_entry_taken_for_model(checkpoint: MoeCheckpoint, version: tuple[int, ...]) -> str | None:
    """Return an exclude entry of the MTP layer that this version applies to the target model, if any."""
    prefixes = ["mtp."]
    if version >= _IGNORES_MTP_ENTRIES:
        prefixes += [f"model.layers.{checkpoint.layers + number}." for number in range(checkpoint.draft_layers)]
    entries = (
        entry for entry in checkpoint.exclude if _is_shared_entry(entry) and not entry.startswith(tuple(prefixes))
    )
    return next(entries, None)


def _mtp_entry_hint(version: tuple[int, ...]) -> str:
    if version < _IGNORES_MTP_ENTRIES:
        return "sglang 0.5.19 fixes this"
    return "this version recognizes MTP entries by the layer's number, not by `model.decoder`"


def _is_shared_entry(entry: str) -> bool:
    return "shared_expert" in entry and "shared_expert_gate" not in entry


def _is_mtp_entry(entry: str, checkpoint: MoeCheckpoint) -> bool:
    first = checkpoint.layers
    numbers = range(first, first + max(checkpoint.draft_layers, 1))
    names = ("mtp.", "model.decoder.", *(f"model.layers.{number}." for number in numbers))
    return entry.startswith(names)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
