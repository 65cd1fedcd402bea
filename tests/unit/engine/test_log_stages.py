"""What the server is doing, from its log."""

from pathlib import Path

import pytest

from orchestrator.core.log_lines import LogTail
from orchestrator.engine import log
from orchestrator.engine.log import StageReader, says_nothing, says_port_taken

H200 = Path(__file__).parent / "logs/h200-0.5.16-mtp-start.log"
REAL = Path(__file__).parents[1] / "diagnose/logs/none/near-real-0.5.14-healthy-dp2.log"


def read(*lines: str) -> StageReader:
    reader = StageReader()
    for line in lines:
        reader.feed(line)
    return reader


def test_the_stages_of_a_real_start_of_two_replicas() -> None:
    assert read(*LogTail(REAL)()).names == [
        "starting",
        "connecting ranks",
        "loading weights",
        "allocating the KV cache",
        "opening the port",
        "warming up",
        "answering",
    ]


def test_shards_are_counted() -> None:
    bar = "Loading safetensors checkpoint shards:  38% Completed | 18/47 [00:31<00:49,  1.71s/it]"
    assert read("[2026-07-02 10:14:31 TP0] Load weight begin. avail mem=250 GB", bar).text == "loading weights 18/47"


def test_with_eagle_the_second_load_is_the_draft() -> None:
    rank = "[2026-07-02 10:14:31 TP0]"
    reader = read(
        f"{rank} Load weight begin. avail mem=250 GB",
        f"{rank} Load weight end. elapsed=300 s, type=GlmMoeDsaForCausalLM",
        f"{rank} Load weight begin. avail mem=200 GB",
    )
    assert reader.text == "loading draft weights"


def test_two_ranks_loading_are_not_a_draft() -> None:
    reader = read(
        "[2026-07-02 10:14:31 DP0 TP0] Load weight begin.", "[2026-07-02 10:14:31 DP1 TP0] Load weight begin."
    )
    assert reader.names == ["loading weights"]


@pytest.mark.parametrize(
    ("begin", "shown"),
    [
        ("Capture cuda graph begin. This can take up to several minutes.", "capturing graphs 5/20"),
        ("Capture draft cuda graph begin.", "capturing draft graphs 5/20"),
        ("Capture decode CUDA graph begin. backend=full", "capturing decode graphs 5/20"),
        ("Capture draft extend cuda graph begin (step 1).", "capturing draft extend graphs 5/20"),
        ("the server says nothing of a capture", "capturing graphs 5/20"),
    ],
)
def test_graphs_are_counted_in_every_wording(begin: str, shown: str) -> None:
    bar = "Capturing batches (bs=16 avail_mem=40.11 GB):  25%|██▌       | 5/20 [00:10<00:30]"
    assert read(begin, bar).text == shown


def test_the_captures_of_a_real_start_on_an_h200_are_told_apart_and_counted() -> None:
    """sglang 0.5.16 with EAGLE: the prefill of the target in 58 sizes, its verification and the draft in 27 each."""
    reader, shown = StageReader(), []
    for line in LogTail(H200)():
        reader.feed(line)
        shown.append(reader.text)
    assert [stage for stage in reader.names if stage.startswith("capturing")] == [
        "capturing target prefill graphs",
        "capturing target verify graphs",
        "capturing draft decode graphs",
    ]
    counted = {"capturing target prefill graphs 1/58", "capturing target verify graphs 27/27"}
    assert counted | {"capturing draft decode graphs 2/27"} <= set(shown)


def test_a_count_does_not_outlive_its_stage() -> None:
    reader = read("Load weight begin.", "shards loading: | 2/2 [", "Memory pool end. avail mem=20 GB")
    assert reader.text == "allocating the KV cache"


def test_a_later_rank_does_not_take_the_stage_back() -> None:
    assert read("Memory pool end.", "Uvicorn running on", "Memory pool end.").text == "warming up"


def test_a_progress_bar_does_not_push_the_log_out_of_what_is_kept() -> None:
    reader = read("the reason", *[f"loading shards: | {n}/100 [" for n in range(100)])
    assert reader.last_lines == ["the reason", "loading shards: | 99/100 ["]


def test_what_is_passed_over_says_nothing() -> None:
    """Line by line, of each log there is: none of what a reader looks for stands in a line that it is spared."""
    patterns = [pattern for _, pattern in log._STAGES] + [log._COUNT, log._ACCESS]
    lines = [line for path in Path(__file__).parents[1].rglob("*.log") for line in LogTail(path).to_end()]
    telling = [line for line in lines if says_port_taken(line) or any(pattern.search(line) for pattern in patterns)]
    assert not [line for line in telling if says_nothing([line])]
    assert len(telling) < sum(not says_nothing([line]) for line in lines) < len(lines) / 2


def test_lines_that_say_nothing_are_kept_for_whoever_asks() -> None:
    reader = StageReader()
    reader.keep([f"line {number}" for number in range(100)])
    reader.keep(["x" * 10_000])
    assert len(reader.last_lines) == log.KEPT_LINES
    assert reader.last_lines[-2] == "line 99"
    assert len(reader.last_lines[-1]) == log.KEPT_CHARACTERS
