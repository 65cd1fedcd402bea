"""Plans of shipped profiles, with changed fields."""

from dataclasses import replace

from orchestrator.core.origin import Origin
from orchestrator.plan.plan import Flag, Model, ModelSource, Plan
from orchestrator.planner.planning import load


def plan_of(profile: str, *overrides: str, **fields: object) -> Plan:
    """Return the plan of a profile; `fields` replaces fields of the plan."""
    return replace(load(profile, overrides=overrides).plan, **fields)  # type: ignore[arg-type]


def flag(name: str, value: str | None) -> Flag:
    """Return a flag with the origin `user`."""
    return Flag(name=name, values=() if value is None else (value,), origin=Origin.USER, source="")


def model(location: str, *, kind: str = "local", revision: str | None = None, mtp_layer: int | None = 3) -> Model:
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
