"""What a log says: hits, misses, and everything that only looks like one."""

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
        HIT.replace("('gfx950', 256,", "(256,"),  # before ad73ecb5 the key had no gfx
        f"[2026-07-04 12:00:00 DP1 TP2] {HIT}",
        HIT.rstrip() + "\r",
    ],
)
def test_the_lines_of_a_hit(text: str) -> None:
    report = gate_report([NOISE, text, NOISE])
    assert (len(report.hits), len(report.misses), report.truncated) == (1, 0, 0)
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
def test_the_lines_of_a_miss(text: str) -> None:
    report = gate_report([text])
    assert (len(report.hits), len(report.misses), report.truncated) == (0, 1, 0)


def test_a_key_counts_once_however_many_ranks_log_it() -> None:
    report = gate_report([HIT] * 8 + [MISS.replace(" 16,", " 32,"), FALLBACK.replace(" 16,", " 32,")] * 8)
    assert ([key.token for key in report.hits], [key.token for key in report.misses]) == ([16], [32])


def test_the_bf16_mtp_layer_stands_apart() -> None:
    report = gate_report([MTP, HIT])
    assert (len(report.hits), len(report.misses), len(report.other_quantizations)) == (1, 0, 1)


def test_a_key_found_by_one_process_and_missed_by_another_shows_a_table_that_did_not_reach_every_rank() -> None:
    report = gate_report([HIT, MISS])
    assert report.inconsistent == report.misses == report.hits
    assert "found by one process, missed by another" in report.summary


def test_other_families_are_counted_by_what_they_looked_in() -> None:
    batched = "[aiter] shape is B:16, M:1, N:2, K:3, not found tuned config in CKGEMM, will use default config!"
    report = gate_report([GEMM, GEMM, batched])
    assert report.families == (("CKGEMM", 1), ("bf16_tuned_gemm.csv", 2))
    assert not report.has_lookups


@pytest.mark.parametrize("text", [HIT, MISS, FALLBACK])
def test_no_beginning_of_a_line_counts(text: str) -> None:
    whole = len(text.rstrip())
    for end in range(whole):
        report = gate_report([text[:end]])
        assert not report.has_lookups, text[:end]


def test_a_fallback_cut_after_its_key_is_torn() -> None:
    report = gate_report([FALLBACK[: FALLBACK.index(", using heuristic")]])
    assert (report.has_lookups, report.truncated) == (False, 1)


@given(st.integers(12, len(HIT) - 2), st.sampled_from((HIT, MISS, GEMM, NOISE, FALLBACK)))
def test_an_interleaved_line_is_never_a_hit_of_the_line_that_was_cut(cut: int, other: str) -> None:
    """Two processes write at once: the rest of the first stands on the next line."""
    report = gate_report([HIT[:cut] + other, HIT[cut:]])
    assert [key.token for key in report.hits] == ([16] if other is HIT else [])


@pytest.mark.parametrize("tokens", ["1638416", "17", "65536"])
def test_a_number_of_tokens_that_is_no_bucket_was_run_together(tokens: str) -> None:
    report = gate_report([HIT.replace(" 16,", f" {tokens},")])
    assert (report.has_lookups, report.truncated) == (False, 1)


def test_text_after_the_key_makes_a_line_torn() -> None:
    report = gate_report([HIT + "[aiter] start build [module_moe_sorting]"])
    assert (report.has_lookups, report.truncated) == (False, 1)


def test_a_last_line_without_an_end_counts_if_it_is_whole() -> None:
    assert len(gate_report([HIT.rstrip()]).hits) == 1
    assert not gate_report([HIT[:-4]]).has_lookups


def test_a_log_without_a_lookup_says_so() -> None:
    assert "no lookup found in the log" in gate_report([NOISE]).summary


def test_the_misses_come_out_as_input_for_the_tuner() -> None:
    report = gate_report([MISS.replace(" 16,", " 32,"), MISS])
    assert [text.split(",")[:5] for text in report.untuned.splitlines()[1:]] == [
        ["16", "6144", "256", "257", "9"],
        ["32", "6144", "256", "257", "9"],
    ]
    assert gate_report([HIT]).untuned == ""
    assert report.to_dict()["misses"][0]["q_type"] == "QuantType.per_1x32"  # type: ignore[index]
