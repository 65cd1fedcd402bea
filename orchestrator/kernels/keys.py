"""The lookup key of aiter's fused MoE, and its buckets of tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orchestrator.core.errors import ProfileError
from orchestrator.plan.fusion import is_mxfp4
from orchestrator.plan.plan import Layout, Moe, Plan

TIERS: Final = (32768, 131072)  # aiter/fused_moe.py, `_PADDED_M_TIERS`
_PADDING: Final = 256  # inter_dim of MXFP4 weights is padded to a multiple of this
MXFP4: Final = "torch.float4_e2m1fn_x2"
BLOCK_SCALED: Final = "QuantType.per_1x32"
# FP8 with block scales; aiter maps sglang's `PER_128X128` to this (aiter/fused_moe.py, `quant_remap`).
_FP8_BLOCKS: Final = "QuantType.per_1x128"
_FP8: Final = "torch.float8_e4m3fn"
_FP8_OF: Final = {"gfx942": "torch.float8_e4m3fnuz"}  # aiter/utility/dtypes.py

KEY_COLUMNS: Final = (
    "gfx",
    "cu_num",
    "token",
    "model_dim",
    "inter_dim",
    "expert",
    "topk",
    "act_type",
    "dtype",
    "q_dtype_a",
    "q_dtype_w",
    "q_type",
    "use_g1u1",
    "doweight_stage1",
)
UNTUNED_COLUMNS: Final = KEY_COLUMNS[2:]


def bucket(tokens: int) -> int:
    """Return the number of tokens that aiter looks up for a batch of `tokens` (`get_padded_M`)."""
    if tokens < TIERS[0]:
        return 1 if tokens <= 1 else 1 << (tokens - 1).bit_length()
    return max(tier for tier in TIERS if tokens >= tier)


def buckets(largest: int) -> tuple[int, ...]:
    """Return the buckets of batches of 1 to `largest` tokens, ascending."""
    powers = tuple(1 << exponent for exponent in range(TIERS[0].bit_length()))
    return tuple(size for size in (*powers, TIERS[1]) if size <= bucket(largest))


def fallbacks(size: int) -> tuple[int, ...]:
    """Return the buckets to try if `size` has no row, in order; only the upper tier has fallbacks."""
    return tuple(reversed([tier for tier in TIERS if tier < size])) if size in TIERS else ()


@dataclass(frozen=True, order=True, kw_only=True)
class Shape:
    """The dimensions of the key that depend on model and layout, for one rank."""

    model_dim: int
    inter_dim: int
    expert: int
    topk: int

    def __str__(self) -> str:
        return f"model_dim {self.model_dim}, inter_dim {self.inter_dim}, expert {self.expert}, topk {self.topk}"


@dataclass(frozen=True, order=True, kw_only=True)
class Key:
    """The key that aiter looks up, without the activation, which aiter ignores (`_lookup_cfg`)."""

    gfx: str
    cu_num: int
    token: int
    shape: Shape
    dtype: str
    q_dtype_a: str
    q_dtype_w: str
    q_type: str
    use_g1u1: bool
    doweight_stage1: bool

    @classmethod
    def read(
        cls, gfx: str, *, number: Callable[[str], int], text: Callable[[str], str], switch: Callable[[str], bool]
    ) -> "Key":
        """Return the key from functions that read a column by name."""
        return cls(
            gfx=gfx,
            cu_num=number("cu_num"),
            token=number("token"),
            shape=Shape(**{name: number(name) for name in ("model_dim", "inter_dim", "expert", "topk")}),
            dtype=text("dtype"),
            q_dtype_a=text("q_dtype_a"),
            q_dtype_w=text("q_dtype_w"),
            q_type=text("q_type"),
            use_g1u1=switch("use_g1u1"),
            doweight_stage1=switch("doweight_stage1"),
        )

    def cells(self, act_type: str = "ActivationType.Silu") -> dict[str, str]:
        """Return the cells of a table row, by column name."""
        values = {**vars(self), **vars(self.shape), "act_type": act_type}
        return {name: str(int(value) if isinstance(value := values[name], bool) else value) for name in KEY_COLUMNS}


def rank_shape(moe: Moe, layout: Layout, *, fused: bool, padding: int = _PADDING) -> Shape:
    """Return the shape that one rank looks up; `fused`: sglang fuses the shared experts with the routed experts.

    Under expert parallelism aiter subtracts one from topk for a masked slot (`topk -= int(is_ep)`). Raises ProfileError
    for a layout that does not divide the model.
    """
    if layout.tp % layout.ep or moe.routed_experts % layout.ep:
        raise ProfileError(
            f"ep {layout.ep} must divide tp {layout.tp} and the {moe.routed_experts} routed experts",
            location="layout.ep",
            hint="choose an `ep` that divides both",
        )
    slices = layout.tp // layout.ep
    if moe.intermediate_size % slices:
        raise ProfileError(
            f"expert width {moe.intermediate_size} is not divisible by tp / ep = {slices}",
            location="layout.tp",
            hint="choose another `tp` or `ep`",
        )
    shared = moe.shared_experts if fused else 0
    return Shape(
        model_dim=moe.hidden_size,
        inter_dim=-(-(moe.intermediate_size // slices) // padding) * padding,
        expert=moe.routed_experts // layout.ep + shared,
        topk=moe.experts_per_token + shared - (1 if layout.ep > 1 else 0),
    )


def rank_shapes(plan: Plan, moe: Moe | None = None) -> dict[Shape, bool]:
    """Return the shapes that a rank may look up, and for each whether the shared expert is fused.

    `moe` is the checkpoint's MoE, by default the plan's. Raises ValueError for a plan without routed experts.
    """
    moe = moe or plan.model.moe
    if moe is None:
        raise ValueError(f"`{plan.profile}` has no routed experts")
    options = (True, False) if moe.shared_experts else (False,)
    padding = _PADDING if is_mxfp4(plan) else 1
    return {rank_shape(moe, plan.layout, fused=fused, padding=padding): fused for fused in options}


def key_of(plan: Plan, shape: Shape, *, token: int) -> Key:
    """Return the key that a rank of the plan's server looks up: Quark MXFP4, or block-scaled FP8."""
    gpu = plan.hardware
    dtype, q_type = MXFP4, BLOCK_SCALED
    if not is_mxfp4(plan):
        dtype, q_type = _FP8_OF.get(gpu.arch, _FP8), _FP8_BLOCKS
    return Key(
        gfx=gpu.arch,
        cu_num=gpu.compute_units,
        token=token,
        shape=shape,
        dtype="torch.bfloat16",
        q_dtype_a=dtype,
        q_dtype_w=dtype,
        q_type=q_type,
        use_g1u1=True,  # a gated MLP
        doweight_stage1=False,
    )
