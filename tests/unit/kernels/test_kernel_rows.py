"""Test reading upstream tables, merging them and deriving rows."""

import io
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_samples import FUSED_TP8, HEADER, STAGE1, STAGE2, UNFUSED_TP8, every_bucket, line, of, rows

from orchestrator.core.errors import Problem
from orchestrator.kernels.rows import (
    RowOrigin,
    TunedRow,
    derive_unfused,
    merge,
    read_rows,
    write_origins,
    write_table,
    write_untuned,
)


def problems_in(*lines: str) -> list[Problem]:
    problems: list[Problem] = []
    list(read_rows(lines, name="t.csv", origin=RowOrigin.FILE, problems=problems))
    return problems


def test_missing_last_field_means_no_tag() -> None:
    (row,) = rows([line(16).removesuffix(",")])
    assert row.tag == ""


def test_missing_gfx_column_is_inferred_from_compute_units() -> None:
    lines = [text.removeprefix("gfx950,") for text in (line(16), line(32).replace("gfx950,256", "gfx950,304"))]
    parsed = rows(lines, header=HEADER.removeprefix("gfx,"))
    assert [row.key.gfx for row in parsed] == ["gfx950", "gfx942"]


@pytest.mark.parametrize("empty", ["", "0", "nan"])
def test_empty_gfx_is_inferred_from_compute_units(empty: str) -> None:
    (row,) = rows([line(16).replace("gfx950", empty, 1)])
    assert row.key.gfx == "gfx950"


def test_pandas_numbers_and_crlf_are_parsed() -> None:
    (row,) = rows(
        [line(16).replace(",16,6144,", ",16.0,6144.0,").replace(",1,0,32,", ",True,False,32,") + "\r\n"],
        header=f"\ufeff{HEADER}\r\n",
    )
    assert (row.key.token, row.key.shape, row.key.use_g1u1, row.key.doweight_stage1) == (16, FUSED_TP8, True, False)


@pytest.mark.parametrize(
    ("lines", "message", "location"),
    [
        ((HEADER.replace("topk", "expert"),), "duplicate column `expert`", "t.csv:1"),
        ((HEADER.replace("kernelName2,", ""),), "missing columns: `kernelName2`", "t.csv:1"),
        ((HEADER, line(16).rsplit(",", 5)[0]), "24 fields, the header has 29", "t.csv:2"),
        ((HEADER, line(16) + ",more"), "30 fields, the header has 29", "t.csv:2"),
        (
            (HEADER, line(16), line(32).replace(",6144,", ",nan,")),
            "`model_dim` is `nan`, not a whole number",
            "t.csv:3",
        ),
        ((HEADER, line(16).replace(",16,", ",-16,", 1)), "`token` is `-16`, not a whole number", "t.csv:2"),
        ((HEADER, line(16).replace("QuantType.per_1x32", "")), "`q_type` is empty", "t.csv:2"),
        ((HEADER, line(16).replace(",1,0,32,", ",2,0,32,")), "`use_g1u1` is `2`, neither 0 nor 1", "t.csv:2"),
    ],
)
def test_invalid_row_is_reported_with_line(lines: tuple[str, ...], message: str, location: str) -> None:
    problems = problems_in(*lines)
    assert (problems[0].message, problems[0].location) == (message, location)


def test_empty_file_is_rejected() -> None:
    assert "missing columns" in problems_in()[0].message


def test_unterminated_quote_is_a_problem() -> None:
    problems = problems_in(HEADER, line(16), '"' + "x" * 200_000, line(32))
    assert len(problems) == 1
    assert "not a CSV table" in problems[0].message


def test_table_is_read_lazily() -> None:
    lines_read = 0

    def lines() -> Iterator[str]:
        nonlocal lines_read
        yield HEADER
        while True:
            lines_read += 1
            yield line(16)

    reading = read_rows(lines(), name="huge.csv", origin=RowOrigin.FILE, problems=[])
    for _ in range(1000):
        next(reading)
    assert lines_read == 1000


def test_merge_prefers_origin_then_fastest_row() -> None:
    image = rows([line(16, us="30"), line(16, us="20"), line(32, us="9")], origin=RowOrigin.IMAGE)
    measured = rows([line(32, us="99")], origin=RowOrigin.MEASURED)
    merged = merge([*image, *measured], gfx="gfx950", cu_num=256)
    assert [(row.key.token, row.us, row.origin) for row in merged] == [
        (32, 99.0, RowOrigin.MEASURED),
        (16, 20.0, RowOrigin.IMAGE),
    ]


def test_rows_of_another_gpu_are_skipped() -> None:
    other = rows([line(16).replace("gfx950", "gfx1250")])
    assert merge([*other, *rows([line(16)])], gfx="gfx950", cu_num=256) == tuple(rows([line(16)]))


tables = st.lists(
    st.builds(
        lambda token, us, tag, origin: rows([line(1 << token, us=str(us), tag=tag)], origin=origin)[0],
        st.integers(0, 4),
        st.integers(1, 99),
        st.sampled_from(("", "flydsl_fallback")),
        st.sampled_from(tuple(RowOrigin)),
    ),
    max_size=30,
)


@given(tables)
def test_merge_is_unique_and_idempotent(given_rows: list[TunedRow]) -> None:
    before = list(given_rows)
    merged = merge(given_rows, gfx="gfx950", cu_num=256)
    identities = [row.identity for row in merged]
    assert len(identities) == len(set(identities))
    assert set(identities) == {row.identity for row in given_rows}
    assert merge(merged, gfx="gfx950", cu_num=256) == merged
    assert given_rows == before


@given(tables)
def test_table_round_trips_through_file(given_rows: list[TunedRow]) -> None:
    merged = merge(given_rows, gfx="gfx950", cu_num=256)
    parsed = list(read_rows(io.StringIO(write_table(merged)), name="t", origin=RowOrigin.FILE, problems=[]))
    assert [row.identity for row in parsed] == [row.identity for row in merged]
    assert [row.kernels for row in parsed] == [row.kernels for row in merged]
    assert write_origins(merged).count("\n") == len(merged) + 1


def test_lookup_columns_are_never_empty() -> None:
    """pandas reads an empty `run_1stage` as NaN, and NaN is true."""
    old = HEADER.replace(",xbf16,flat", "")
    (row,) = rows([line(16).replace(",0,0,0,10.0", ",0,10.0")], header=old)
    cells = dict(zip(HEADER.split(","), write_table([row]).splitlines()[1].split(","), strict=True))
    assert (cells["run_1stage"], cells["xbf16"], cells["flat"], cells["ksplit"]) == ("0", "0", "0", "0")


def test_derived_rows_keep_kernels_but_not_times() -> None:
    (row,) = derive_unfused(rows([line(16)]), fused=FUSED_TP8, unfused=UNFUSED_TP8)
    assert row.key.shape == UNFUSED_TP8
    assert row.kernels == (STAGE1, STAGE2)
    assert row.origin is RowOrigin.DERIVED
    assert [row.cells[column] for column in ("us1", "us2", "us", "err1", "err2", "tflops", "bw")] == [""] * 7
    assert (row.cells["expert"], row.cells["topk"]) == ("256", "8")


@pytest.mark.parametrize(
    ("kernels", "tag"),
    [
        (("flydsl_mxmoe_g1_a4w4_16x256x256_f16in_nt", "flydsl_mxmoe_g2_a4w4_16x256x256_atomic"), ""),
        ((STAGE1, "flydsl_moe2_layout_afp4_wfp4_bf16_t32x128x256_reduce_sbm32"), ""),
        (("moe_ck2stages_gemm1_256x128", "moe_ck2stages_gemm2_256x128"), ""),
        ((STAGE1, STAGE2), "flydsl_fallback"),
    ],
)
def test_other_kernels_are_never_derived(kernels: tuple[str, str], tag: str) -> None:
    assert derive_unfused(rows([line(16, kernels=kernels, tag=tag)]), fused=FUSED_TP8, unfused=UNFUSED_TP8) == ()


def test_tuner_input_lists_missing_keys_sorted_once() -> None:
    keys = [row.key for row in of(every_bucket(FUSED_TP8), RowOrigin.FILE)]
    text = write_untuned([keys[4], keys[0], keys[4]]).splitlines()
    assert text[0].startswith("token,model_dim,inter_dim,expert,topk,act_type,dtype,")
    assert text[1:] == [
        "1,6144,256,257,9,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0",
        "16,6144,256,257,9,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0",
    ]
