"""Plans of the profiles that ship with the tool, with parts exchanged."""

from dataclasses import replace

from orchestrator.core.origin import Origin
from orchestrator.plan.plan import Flag, Model, ModelSource, Plan
from orchestrator.planner.planning import load


def plan_of(profile: str, *overrides: str, **parts: object) -> Plan:
    """The plan of a profile; `parts` replace fields of the plan itself."""
    return replace(load(profile, overrides=overrides).plan, **parts)  # type: ignore[arg-type]


def flag(name: str, value: str | None) -> Flag:
    """A flag that a user gave."""
    return Flag(name=name, values=() if value is None else (value,), origin=Origin.USER, source="")


def model(location: str, *, kind: str = "local", revision: str | None = None, mtp_layer: int | None = 3) -> Model:
    """A small model with an MTP layer."""
    return Model(
        name="small",
        served_name="small",
        checkpoint=ModelSource(source=kind, path=location, revision=revision),
        weight_bytes=1000,
        quantization="bf16",
        context_length=1024,
        layers=3,
        attention_heads=None,
        kv_heads=None,
        sparse_attention=False,
        mtp_layer=mtp_layer,
        gated=False,
        moe=None,
        questions=(),
    )
