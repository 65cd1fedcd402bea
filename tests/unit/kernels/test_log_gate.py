"""Test which log lines count as kernel hits and misses, and which similar lines do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_samples import FALLBACK, FUSED_TP8, GEMM, HIT, LOG_KEY, MISS, MTP, STAGE1, STAGE2

from orchestrator.kernels.log_gate import gate_report

NOISE = "[2026-07-04 12:00:00 DP0 TP3] Decode batch, #running-req: 16, #token: 4711, gen throughput (token/s): 213.4"


@pytest.mark.parametrize(
    "text",
    [
        HIT,
        HIT.replace("2stage", "1stage xbf16"),
        HIT.replace(f"kernelName2='{STAGE2}'", "kernelName2=nan"),
        HIT.replace("('gfx950', 256,", "(256,"),  # the key has a gfx only since ad73ecb5
        f"[2026-07-04 12:00:00 DP1 TP2] {HIT}",
        HIT.rstrip() + "\r",
    ],
)
def test_hit_lines_are_recognized(text: str) -> None:
    report = gate_report([NOISE, text, NOISE])
    assert (len(report.hits), len(report.misses)) == (1, 0)
    assert (report.hits[0].token, report.hits[0].shape) == (16, FUSED_TP8)


@pytest.mark.parametrize(
    "text",
    [
        MISS,
        FALLBACK,
        MISS.replace("2stage default", "1stage xbf16 default"),
        HIT.replace(STAGE1, "").replace(STAGE2, ""),  # AITER_BYPASS_TUNE_CONFIG
        f"[aiter] [fused_moe] flydsl unavailable and no fallback for {LOG_KEY}, using default heuristics",
    ],
)
def test_miss_lines_are_recognized(text: str) -> None:
    report = gate_report([text])
    assert (len(report.hits), len(report.misses)) == (0, 1)


def test_key_logged_by_many_ranks_counts_once() -> None:
    report = gate_report([HIT] * 8 + [MISS.replace(" 16,", " 32,"), FALLBACK.replace(" 16,", " 32,")] * 8)
    assert ([key.token for key in report.hits], [key.token for key in report.misses]) == ([16], [32])


def test_bf16_mtp_layer_is_counted_separately() -> None:
    report = gate_report([MTP, HIT])
    assert (len(report.hits), len(report.misses), len(report.other_quantizations)) == (1, 0, 1)


def test_key_with_hits_and_misses_is_inconsistent() -> None:
    report = gate_report([HIT, MISS])
    assert report.inconsistent == report.misses == report.hits
    assert "found by one process, missed by another" in report.summary


def test_other_kernel_families_are_counted_by_table() -> None:
    batched = "[aiter] shape is B:16, M:1, N:2, K:3, not found tuned config in CKGEMM, will use default config!"
    report = gate_report([GEMM, GEMM, batched])
    assert report.families == {"CKGEMM": 1, "bf16_tuned_gemm.csv": 2}
    assert not report.has_lookups


@pytest.mark.parametrize("text", [HIT, MISS, FALLBACK])
def test_truncated_line_is_not_counted(text: str) -> None:
    length = len(text.rstrip())
    for end in range(length):
        report = gate_report([text[:end]])
        assert not report.has_lookups, text[:end]


def test_fallback_line_cut_after_key_is_ignored() -> None:
    report = gate_report([FALLBACK[: FALLBACK.index(", using heuristic")]])
    assert not report.has_lookups


@given(st.integers(12, len(HIT) - 2), st.sampled_from((HIT, MISS, GEMM, NOISE, FALLBACK)))
def test_interleaved_lines_never_yield_false_hits(split: int, other: str) -> None:
    """When two processes write at once, the rest of the first line is on the next line."""
    report = gate_report([HIT[:split] + other, HIT[split:]])
    assert [key.token for key in report.hits] == ([16] if other is HIT else [])


@pytest.mark.parametrize("tokens", ["1638416", "17", "65536"])
def test_token_count_outside_buckets_is_ignored(tokens: str) -> None:
    report = gate_report([HIT.replace(" 16,", f" {tokens},")])
    assert not report.has_lookups


def test_line_with_trailing_text_is_ignored() -> None:
    report = gate_report([HIT + "[aiter] start build [module_moe_sorting]"])
    assert not report.has_lookups


def test_unterminated_last_line_counts_if_complete() -> None:
    assert len(gate_report([HIT.rstrip()]).hits) == 1
    assert not gate_report([HIT[:-4]]).has_lookups


def test_log_without_lookups_is_reported() -> None:
    assert "no lookup found in the log" in gate_report([NOISE]).summary


def test_misses_are_exported_for_the_tuner() -> None:
    report = gate_report([MISS.replace(" 16,", " 32,"), MISS])
    assert [text.split(",")[:5] for text in report.tuner_input.splitlines()[1:]] == [
        ["16", "6144", "256", "257", "9"],
        ["32", "6144", "256", "257", "9"],
    ]
    assert gate_report([HIT]).tuner_input == ""
    assert report.misses[0].q_type == "QuantType.per_1x32"
