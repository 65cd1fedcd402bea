"""Whether sglang folds the shared expert into the routed ones, and what decides it: it changes the lookup key.

Rules: sglang 0.5.14 models/deepseek_v2.py:2650-2715 (`determine_num_fused_shared_experts`), 0.5.18 and later also
`QuarkConfig.can_fuse_shared_expert` (layers/quantization/quark/quark.py), whose veto by the MTP layer's own entries is
lifted in 0.5.19 (sgl-project/sglang#36124). No option lifts what it vetoes (0.5.18 deepseek_v2.py:3019, "even if
--enforce-shared-experts-fusion is specified"; so to 0.5.23). It looks at the exclude list alone: schemes of layers it
compares under the name `shared_expert`, which the modules of this family do not have (0.5.18 to 0.5.22).
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
_ASKS_THE_CHECKPOINT: Final = (0, 5, 18)
_IGNORES_THE_DRAFT: Final = (0, 5, 19)
_OFF: Final = Meaning.NO_EXPERT_FUSION.value
_ON: Final = Meaning.EXPERT_FUSION.value


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """The decision: True, False, or None where only the checkpoint can tell; by whom; and what to do about it."""

    fused: bool | None
    reason: str
    hint: str = ""
    demanded: str = ""  # the switch without which the server does otherwise, and what it answers is wrong


def is_mxfp4(plan: Plan) -> bool:
    """Whether the plan's weights are MXFP4."""
    return "mxfp4" in plan.model.quantization


def with_fusion_flag(plan: Plan, checkpoint: MoeCheckpoint | None) -> Plan:
    """Add the switch without which the server would fuse a shared expert that its checkpoint stores otherwise.

    sglang drops such weights and says nothing (sgl-project/sglang#40754, #38878), or dies while it loads them.
    """
    fusion = decide_fusion(plan, checkpoint) if checkpoint else None
    if fusion is None or not fusion.demanded:
        return plan
    flag = Flag(name=fusion.demanded, values=(), origin=Origin.INFERRED, source=fusion.reason)
    return replace(plan, flags=tuple(sorted((*plan.flags, flag), key=lambda flag: flag.name)))


def inferred_fusion_flag(plan: Plan) -> Flag | None:
    """Find the switch that `with_fusion_flag` has added."""
    return next((flag for flag in plan.flags if flag.name == _OFF and flag.origin is Origin.INFERRED), None)


def might_fuse(plan: Plan) -> bool:
    """Whether the plan's server fuses its shared expert, unless its checkpoint is against it."""
    return plan.model.moe is not None and would_fuse(plan, plan.model.moe)


def decide_fusion(plan: Plan, checkpoint: MoeCheckpoint | None) -> Fusion:
    """Whether the server of `plan` fuses the shared expert of `checkpoint`."""
    if plan.serving.expert_fusion is False:
        return Fusion(fused=False, reason=f"flag `--{_OFF}`")
    if checkpoint is None:
        return _without_checkpoint(plan)
    if veto := _stored_apart(checkpoint):
        return _kept_apart(plan, checkpoint, veto)
    version = _version(plan.engine.version)
    if version >= _ASKS_THE_CHECKPOINT and (entry := _mistaken_draft_entry(checkpoint, version)):
        return Fusion(
            fused=False,
            reason=f"exclude entry `{entry}`: sglang {plan.engine.version} takes the MTP layer's for the model's",
            hint=f"`--{_ON}` does not lift that veto; {_told_apart(version)}",
        )
    if plan.serving.expert_fusion:
        return Fusion(fused=True, reason=f"flag `--{_ON}`")
    return _by_configuration(plan, checkpoint.moe)


def _without_checkpoint(plan: Plan) -> Fusion:
    """MXFP4 has an exclude list (Quark), which may keep shared experts apart."""
    if plan.model.moe and not is_mxfp4(plan):
        return _by_configuration(plan, plan.model.moe)
    return Fusion(
        fused=None, reason="the checkpoint says, and is not here", hint="`--model DIR` names a copy of its config.json"
    )


def _kept_apart(plan: Plan, checkpoint: MoeCheckpoint, veto: str) -> Fusion:
    """Shared experts that are stored otherwise than routed ones: where no entry tells the engine, it has to be told."""
    asks = _version(plan.engine.version) >= _ASKS_THE_CHECKPOINT
    if (asks and _excluded(checkpoint)) or not would_fuse(plan, checkpoint.moe):
        return Fusion(fused=False, reason=veto)
    looks = "finds nothing of it in the exclude list" if asks else "does not look at the exclude list"
    unasked = f"sglang {plan.engine.version} {looks} and would fuse all the same"
    return Fusion(fused=False, reason=veto, hint=f"{unasked}: set the flag `{_OFF}`", demanded=_OFF)


def _by_configuration(plan: Plan, moe: Moe) -> Fusion:
    if moe.shared_experts != 1 or moe.routed_experts not in _VALIDATED_EXPERTS:
        what = f"{moe.routed_experts} routed and {moe.shared_experts} shared experts"
        return Fusion(fused=False, reason=f"sglang fuses 256 or 384 routed and one shared expert, not {what}")
    if moe.routed_experts == _QUARK_ONLY and not plan.model.quantization.startswith("quark"):
        return Fusion(fused=False, reason=f"sglang fuses {_QUARK_ONLY} routed experts of Quark's alone")
    if plan.hardware.vendor == "cpu" or (plan.hardware.vendor == "nvidia" and plan.layout.ep > 1):
        return Fusion(fused=False, reason="sglang fuses on GPUs alone, and with expert parallelism on AMD's alone")
    if vetoes := plan.serving.fusion_vetoes:
        return Fusion(fused=False, reason=f"flag `{vetoes[0]}`")
    return Fusion(fused=True, reason="sglang's default: nothing vetoes it")


def would_fuse(plan: Plan, moe: Moe) -> bool:
    """Whether the server fuses experts of this shape where their checkpoint is not against it."""
    if plan.serving.expert_fusion is False or not moe.shared_experts:
        return False
    return plan.serving.expert_fusion is True or bool(_by_configuration(plan, moe).fused)


def _stored_apart(checkpoint: MoeCheckpoint) -> str:
    """Why shared experts cannot lie beside the routed ones: another dtype, whatever the two are."""
    shared, routed = checkpoint.shared_dtype, checkpoint.routed_dtype
    if shared and routed and shared != routed:
        return f"dtype: the checkpoint stores its shared experts as {shared}, its routed ones as {routed}"
    entry = _excluded(checkpoint)
    return f"exclude entry `{entry}`: shared experts are not quantized" if entry else ""


def _excluded(checkpoint: MoeCheckpoint) -> str | None:
    """An entry that leaves shared experts of the target model unquantized."""
    entries = (entry for entry in checkpoint.exclude if _is_shared(entry) and not _of_draft(entry, checkpoint))
    return next(entries, None)


def _mistaken_draft_entry(checkpoint: MoeCheckpoint, version: tuple[int, ...]) -> str | None:
    """An entry of the MTP layer that this version does not tell from one of the target model."""
    own = ["mtp."]
    if version >= _IGNORES_THE_DRAFT:
        own += [f"model.layers.{checkpoint.layers + number}." for number in range(checkpoint.draft_layers)]
    entries = (entry for entry in checkpoint.exclude if _is_shared(entry) and not entry.startswith(tuple(own)))
    return next(entries, None)


def _told_apart(version: tuple[int, ...]) -> str:
    if version < _IGNORES_THE_DRAFT:
        return "sglang 0.5.19 tells the two apart"
    return "entries under the MTP layer's own number are told apart, those of `model.decoder` are not"


def _is_shared(entry: str) -> bool:
    return "shared_expert" in entry and "shared_expert_gate" not in entry


def _of_draft(entry: str, checkpoint: MoeCheckpoint) -> bool:
    first = checkpoint.layers
    numbers = range(first, first + max(checkpoint.draft_layers, 1))
    names = ("mtp.", "model.decoder.", *(f"model.layers.{number}." for number in numbers))
    return entry.startswith(names)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
