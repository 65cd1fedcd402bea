"""Test which kernel keys a plan looks up, why, and the state of each bucket."""

import dataclasses
import re

import pytest
from kernel_samples import (
    FUSED_TP8,
    GLM,
    STAGE1_KW,
    STAGE2,
    UNFUSED_TP8,
    every_bucket,
    glm_plan,
    line,
    of,
    rows,
)
from plan_samples import plan_of

from orchestrator.kernels.coverage import BucketState, coverage_of, to_text
from orchestrator.kernels.keys import Shape
from orchestrator.kernels.rows import RowOrigin, derive_unfused, read_rows, write_table
from orchestrator.kernels.table import KernelNames, NameVerdict, ShapeConstraint, assemble
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.fusion import compute_fusion

MXMOE = ("flydsl_mxmoe_g1_a4w4_16x256x256_f16in_nt", "flydsl_mxmoe_g2_a4w4_16x256x256_atomic")
NAMES = KernelNames(
    commit="9127c94a",
    patterns=tuple(re.compile(pattern) for pattern in (r"flydsl_moe[12]_afp4_\w+", r"flydsl_mxmoe_\w+")),
    constraints=(
        ShapeConstraint(prefix="flydsl_mxmoe_", shapes=(Shape(model_dim=6144, inter_dim=512, expert=257, topk=9),)),
    ),
    excluded_tokens={},
)
WITHOUT_KW = KernelNames(
    commit="7d604afe", patterns=(re.compile(r"flydsl_moe[12]_afp4_(?!\w*_kw)\w+"),), constraints=(), excluded_tokens={}
)
BF16_SHARED = "model.layers.40.mlp.shared_experts.gate_proj"
BF16_DRAFT = "model.layers.78.mlp.shared_experts.gate_proj"


def checkpoint(*exclude: str, shared: str | None = None, routed: str | None = None) -> MoeCheckpoint:
    return MoeCheckpoint(moe=GLM, layers=78, draft_layers=1, exclude=exclude, shared_dtype=shared, routed_dtype=routed)


@pytest.mark.parametrize(
    ("version", "exclude", "fused"),
    [
        ("0.5.14", (), True),
        ("0.5.14", (BF16_DRAFT,), True),
        ("0.5.17", (BF16_DRAFT,), True),
        ("0.5.18", (BF16_DRAFT,), False),
        ("0.5.19", (BF16_DRAFT,), True),
        ("0.5.19", (BF16_DRAFT, "model.decoder.mlp.shared_experts.gate_proj"), False),
        ("0.5.20", (BF16_DRAFT, "model.layers.78"), True),
        ("0.5.18", ("mtp.0.mlp.shared_experts.gate_proj",), True),
        ("0.5.14", (BF16_SHARED,), False),
        ("0.5.23", (BF16_SHARED,), False),
        ("0.5.14", ("re:model.layers.*shared_experts.*",), False),
        ("0.5.14", ("model.layers.40.mlp.shared_expert_gate",), True),
        ("0.5.15.post1", ("model.layers.40.self_attn.o_proj",), True),
    ],
)
def test_fusion_depends_on_exclude_list(version: str, exclude: tuple[str, ...], fused: bool) -> None:
    assert compute_fusion(glm_plan(version=version), checkpoint(*exclude)).fused is fused


def test_fusion_reason_names_exclude_entry() -> None:
    fusion = compute_fusion(glm_plan(version="0.5.14"), checkpoint("lm_head", BF16_SHARED))
    assert f"exclude entry `{BF16_SHARED}`" in fusion.reason
    assert "set the flag `disable-shared-experts-fusion`" in fusion.hint
    assert not compute_fusion(glm_plan(version="0.5.19"), checkpoint(BF16_SHARED)).hint


@pytest.mark.parametrize("version", ["0.5.14", "0.5.16", "0.5.18", "0.5.23"])
@pytest.mark.parametrize(
    ("shared", "routed", "fused"),
    [
        ("BF16", "U8", False), ("F8_E4M3", "U8", False), ("U8", "F8_E4M3", False), ("BF16", "F8_E4M3", False),
        ("U8", "U8", True), ("BF16", "BF16", True), ("F8_E4M3", "F8_E4M3", True),
    ],
)  # fmt: skip
def test_shared_experts_of_different_dtype_are_not_fused(shared: str, routed: str, fused: bool, version: str) -> None:
    fusion = compute_fusion(glm_plan(version=version), checkpoint(shared=shared, routed=routed))
    assert fusion.fused is fused
    assert fusion.required_flag == ("" if fused else "disable-shared-experts-fusion")
    assert fused or (shared in fusion.reason and routed in fusion.reason)


def test_fusion_flag_is_unnecessary_without_default_fusion() -> None:
    separate = checkpoint(shared="BF16", routed="U8")
    assert not compute_fusion(glm_plan(enable_two_batch_overlap=None), separate).required_flag
    assert not compute_fusion(plan_of("cpu-tiny"), separate).required_flag
    assert compute_fusion(
        glm_plan(enable_two_batch_overlap=None, enforce_shared_experts_fusion=None), separate
    ).required_flag
    kimi = MoeCheckpoint(
        moe=dataclasses.replace(GLM, routed_experts=384), layers=61, draft_layers=0, exclude=(), shared_dtype="BF16",
        routed_dtype="F8_E4M3",
    )  # fmt: skip
    fp8 = glm_plan()
    fp8 = dataclasses.replace(fp8, model=dataclasses.replace(fp8.model, quantization="fp8"))
    assert (compute_fusion(glm_plan(), kimi).required_flag != "", compute_fusion(fp8, kimi).required_flag) == (True, "")


def test_flags_control_fusion() -> None:
    assert compute_fusion(glm_plan(disable_shared_experts_fusion=None), None).fused is False
    assert compute_fusion(glm_plan(enable_two_batch_overlap=None), checkpoint()).fused is False
    assert compute_fusion(glm_plan(moe_a2a_backend="deepep"), checkpoint()).fused is False
    enforced = glm_plan(version="0.5.18", enable_two_batch_overlap=None, enforce_shared_experts_fusion=None)
    assert compute_fusion(enforced, checkpoint()).fused is True


@pytest.mark.parametrize(
    ("version", "entry", "hint"),
    [
        ("0.5.18", BF16_DRAFT, "sglang 0.5.19 fixes this"),
        ("0.5.23", "model.decoder.mlp.shared_experts.gate_proj", "not by `model.decoder`"),
    ],
)
def test_enforce_flag_does_not_override_exclude_entry(version: str, entry: str, hint: str) -> None:
    enforced = compute_fusion(glm_plan(version=version, enforce_shared_experts_fusion=None), checkpoint(entry))
    assert enforced.fused is False
    assert "`--enforce-shared-experts-fusion` does not override this" in enforced.hint
    assert hint in enforced.hint


def test_without_checkpoint_both_keys_are_considered() -> None:
    coverage = coverage_of(glm_plan(), every_bucket(FUSED_TP8), names=NAMES)
    assert coverage.fusion.fused is None
    assert [(key.shape, key.looked_up) for key in coverage.keys] == [(FUSED_TP8, None), (UNFUSED_TP8, None)]
    assert {key.shape for key in coverage.untuned_keys} == {UNFUSED_TP8}


def test_with_checkpoint_only_looked_up_key_counts() -> None:
    rows_257 = every_bucket(FUSED_TP8)
    assert coverage_of(glm_plan(), rows_257, checkpoint=checkpoint(), names=NAMES).untuned_keys == ()
    unfused = coverage_of(glm_plan(), rows_257, checkpoint=checkpoint(BF16_SHARED), names=NAMES)
    assert {key.shape for key in unfused.untuned_keys} == {UNFUSED_TP8}


def test_largest_bucket_follows_prefill_chunk_size() -> None:
    small = coverage_of(glm_plan(chunked_prefill_size="8192"), [], names=NAMES)
    assert [bucket.key.token for bucket in small.keys[0].buckets][-1] == 8192
    unchunked = coverage_of(glm_plan(chunked_prefill_size="-1"), [], names=NAMES)
    assert [bucket.key.token for bucket in unchunked.keys[0].buckets][-2:] == [32768, 131072]


@pytest.mark.parametrize(
    ("text", "names", "state"),
    [
        (line(16), NAMES, BucketState.TUNED),
        (line(16, tag="flydsl_fallback"), NAMES, BucketState.UNTUNED),
        (line(16, tag="exact-m4096-a"), NAMES, BucketState.TUNED),  # a label, as one row has at c16d44b9
        (line(16).replace("gfx950", "gfx942"), NAMES, BucketState.UNTUNED),
        (line(16, shape=UNFUSED_TP8), NAMES, BucketState.UNTUNED),
        (line(16, kernels=(STAGE1_KW, STAGE2)), NAMES, BucketState.TUNED),
        (line(16, kernels=(STAGE1_KW, STAGE2)), WITHOUT_KW, BucketState.UNKNOWN_KERNEL),
        (line(16, kernels=(STAGE1_KW, STAGE2)), None, BucketState.TUNED),
        (line(16, kernels=MXMOE), NAMES, BucketState.NOT_BUILT),
        (line(16, kernels=("moe_ck2stages_gemm1_256", "moe_ck2stages_gemm2_256")), NAMES, BucketState.TUNED),
    ],
)
def test_bucket_state_follows_its_row(text: str, names: KernelNames | None, state: BucketState) -> None:
    coverage = coverage_of(glm_plan(), rows([text]), checkpoint=checkpoint(), names=names)
    assert coverage.keys[0].buckets[4].state is state


def test_largest_bucket_falls_back_to_checked_kernel() -> None:
    for names, state in ((None, BucketState.FALLBACK), (WITHOUT_KW, BucketState.UNKNOWN_KERNEL)):
        coverage = coverage_of(glm_plan(), rows([line(32768, kernels=(STAGE1_KW, STAGE2))]), names=names)
        assert coverage.keys[0].buckets[-1].key.token == 131072
        assert coverage.keys[0].buckets[-1].state is state


def test_derived_rows_are_labeled_in_every_output() -> None:
    """Derived rows are labeled also as the fallback for the largest batch, and in a table without origins."""
    derived = derive_unfused(rows([line(32768), line(16)]), fused=FUSED_TP8, unfused=UNFUSED_TP8)
    from_file = read_rows(write_table(derived).splitlines(), name="file", origin=RowOrigin.FILE, problems=[])
    for coverage in (coverage_of(glm_plan(), derived, names=NAMES), coverage_of(glm_plan(), from_file, names=NAMES)):
        assert [bucket.state for bucket in coverage.keys[1].buckets if bucket.location] == ["derived"] * 3
        assert coverage.keys[1].counts == "0 tuned, 3 derived, 0 fallback, 14 untuned"
        assert coverage.keys[1].summary.endswith("; 3 derived, 14 untuned")
        cells = [words for row in to_text(coverage).splitlines() if (words := row.split())]
        assert [words[-1] for words in cells if words[0] in {"16", "32768", "131072"}] == ["derived"] * 3


def test_first_row_wins_among_duplicate_keys() -> None:
    swiglu = line(16, kernels=(STAGE1_KW, STAGE2)).replace("ActivationType.Silu", "ActivationType.Swiglu")
    coverage = coverage_of(glm_plan(), rows([swiglu, line(16)]), names=NAMES)
    assert coverage.keys[0].buckets[4].kernels[0] == STAGE1_KW


def test_table_is_assembled_from_all_origins() -> None:
    image = of(
        rows([line(16), line(16, shape=Shape(model_dim=7168, inter_dim=256, expert=257, topk=9))]), RowOrigin.IMAGE
    )
    table = assemble(glm_plan(), [*image, *every_bucket(FUSED_TP8)], names=NAMES)
    assert table.origins[RowOrigin.IMAGE] == 2
    assert table.origins[RowOrigin.UPSTREAM] == 15
    assert table.origins[RowOrigin.DERIVED] == 16
    assert coverage_of(glm_plan(), table.rows, names=NAMES).untuned_keys == ()


def test_row_with_unknown_kernel_is_rejected() -> None:
    upstream = rows([line(16), line(32, kernels=(STAGE1_KW, STAGE2))])
    table = assemble(glm_plan(), upstream, names=WITHOUT_KW)
    assert {row.key.token for row in table.rows} == {16}
    assert [row.key.token for row in table.rejected] == [32]


def test_unknown_aiter_gets_only_image_rows() -> None:
    table = assemble(glm_plan(), [*every_bucket(FUSED_TP8), *of(rows([line(1)]), RowOrigin.IMAGE)], names=None)
    assert [row.origin for row in table.rows] == [RowOrigin.IMAGE]


def test_measured_row_is_preferred_to_derived_row() -> None:
    measured = of(rows([line(16, shape=UNFUSED_TP8)]), RowOrigin.MEASURED)
    table = assemble(glm_plan(), [*every_bucket(FUSED_TP8), *measured], names=NAMES)
    coverage = coverage_of(glm_plan(), table.rows, names=NAMES)
    assert [bucket.origin for bucket in coverage.keys[1].buckets][3:5] == ["derived", "measured"]


def test_kernel_name_is_matched_exactly() -> None:
    assert WITHOUT_KW.check("flydsl_moe1_afp4_x", FUSED_TP8) is NameVerdict.KNOWN
    assert WITHOUT_KW.check("flydsl_moe1_afp4_x y", FUSED_TP8) is NameVerdict.UNKNOWN_KERNEL
    assert WITHOUT_KW.check("flydslv2_moe2_afp4_x", FUSED_TP8) is NameVerdict.UNKNOWN_KERNEL
