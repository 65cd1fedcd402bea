"""Test the startup stages that the parser reads from a server's log."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.logs.lines import LogTail
from orchestrator.engine import log
from orchestrator.engine.log import StartupLogParser

H200_LOG = Path(__file__).parent / "logs/h200-0.5.16-mtp-start.log"
REAL_LOG = Path(__file__).parents[1] / "diagnose/logs/none/near-real-0.5.14-healthy-dp2.log"


def read(*lines: str) -> StartupLogParser:
    reader = StartupLogParser()
    for line in lines:
        reader.feed(line)
    return reader


def test_stages_of_recorded_start_are_recognized() -> None:
    assert read(*LogTail(REAL_LOG)()).names == [
        "starting",
        "connecting ranks",
        "loading weights",
        "allocating the KV cache",
        "opening the port",
        "warming up",
        "answering",
    ]


def test_loaded_shards_are_counted() -> None:
    bar = "Loading safetensors checkpoint shards:  38% Completed | 18/47 [00:31<00:49,  1.71s/it]"
    assert read("[2026-07-02 10:14:31 TP0] Load weight begin. avail mem=250 GB", bar).text == "loading weights 18/47"


def test_kv_cache_allocation_follows_weight_loading() -> None:
    """sglang logs the allocation when it is done, which took 50 s on a CPU (sglang 0.5.14)."""
    rank = "[2026-07-02 10:14:31 TP0]"
    reader = read(f"{rank} Load weight begin. avail mem=19.50 GB", f"{rank} Load weight end. elapsed=0.29 s, type=X")
    assert reader.text == "allocating the KV cache"


def test_second_weight_load_with_eagle_is_draft() -> None:
    rank = "[2026-07-02 10:14:31 TP0]"
    reader = read(
        f"{rank} Load weight begin. avail mem=250 GB",
        f"{rank} Load weight end. elapsed=300 s, type=GlmMoeDsaForCausalLM",
        f"{rank} Load weight begin. avail mem=200 GB",
    )
    assert reader.text == "loading draft weights"


def test_weight_load_of_second_rank_is_not_draft() -> None:
    reader = read(
        "[2026-07-02 10:14:31 DP0 TP0] Load weight begin.", "[2026-07-02 10:14:31 DP1 TP0] Load weight begin."
    )
    assert reader.names == ["loading weights"]


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        ("Capture cuda graph begin. This can take up to several minutes.", "capturing graphs 5/20"),
        ("Capture draft cuda graph begin.", "capturing draft graphs 5/20"),
        ("Capture decode CUDA graph begin. backend=full", "capturing decode graphs 5/20"),
        ("Capture draft extend cuda graph begin (step 1).", "capturing draft extend graphs 5/20"),
        ("no line about a capture", "capturing graphs 5/20"),
    ],
)
def test_graph_captures_are_counted_in_every_wording(begin: str, expected: str) -> None:
    bar = "Capturing batches (bs=16 avail_mem=40.11 GB):  25%|██▌       | 5/20 [00:10<00:30]"
    assert read(begin, bar).text == expected


def test_graph_captures_of_recorded_h200_start_are_distinguished() -> None:
    """sglang 0.5.16 with EAGLE captures 58 prefill sizes of the target, and 27 sizes each of verification and draft."""
    reader, texts = StartupLogParser(), []
    for line in LogTail(H200_LOG)():
        reader.feed(line)
        texts.append(reader.text)
    assert [stage for stage in reader.names if stage.startswith("capturing")] == [
        "capturing target prefill graphs",
        "capturing target verify graphs",
        "capturing draft decode graphs",
    ]
    counted = {"capturing target prefill graphs 1/58", "capturing target verify graphs 27/27"}
    assert counted | {"capturing draft decode graphs 2/27"} <= set(texts)


def test_progress_count_resets_with_stage() -> None:
    reader = read("Load weight begin.", "shards loading: | 2/2 [", "Memory pool end. avail mem=20 GB")
    assert reader.text == "allocating the KV cache"


def test_slower_rank_does_not_reset_the_stage() -> None:
    assert read("Memory pool end.", "Uvicorn running on", "Memory pool end.").text == "warming up"


def test_progress_bar_does_not_displace_last_lines() -> None:
    reader = read("the reason", *[f"loading shards: | {n}/100 [" for n in range(100)])
    assert reader.last_lines == ["the reason", "loading shards: | 99/100 ["]


LOGS = sorted(Path(__file__).parents[1].rglob("*.log"))


def state(reader: StartupLogParser) -> tuple[object, ...]:
    return reader.names, reader.count, reader.port_in_use, reader._loads, list(reader._last_lines)


@pytest.mark.parametrize("batch_size", [7, 100_000])
def test_batched_log_reading_matches_line_by_line(batch_size: int) -> None:
    for path in LOGS:
        lines, batched = list(LogTail(path).to_end()), StartupLogParser()
        for at in range(0, len(lines), batch_size):
            batched.feed("\n".join(lines[at : at + batch_size]))
        assert state(batched) == state(read(*lines)), path.name


PORTS = "[Errno 98] error while attempting to bind on address ('127.0.0.1', {}): address already in use"
LINES = (
    "[2026-07-02 10:14:31 DP0 TP{}] Load weight begin. avail mem=250 GB",
    "Loading safetensors checkpoint shards:  {}% Completed | {}/47 [00:31<00:49,  1.71s/it]",
    "Loading a tokenizer of {} words",
    "Capture cuda graph begin ({}).",
    "Capture draft cuda graph begin.",
    "Capturing batches (bs={}):  25%|██▌       | {}/20 [00:10<00:30]",
    'INFO:     127.0.0.1:{} - "GET /health HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:{} - "POST /v1/completions HTTP/1.1" 200 OK',
    "Memory pool end. avail mem={} GB",
    "Decode batch, #token: {}",
    *["{}"] * 9,  # the parser searches batches of short lines as a whole
    PORTS,
)


@given(st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 12)), max_size=60), st.integers(1, 60))
def test_parsed_state_does_not_depend_on_batch_size(numbered_lines: list[tuple[str, int]], batch_size: int) -> None:
    lines, batched, states = [line.format(number, number) for line, number in numbered_lines], StartupLogParser(), []
    for at in range(0, len(lines), batch_size):
        batch = lines[at : at + batch_size]
        states.append(batched.feed("\n".join(batch)) == any("GET" not in line for line in batch))
    assert state(batched) == state(read(*lines))
    assert all(states)


@pytest.mark.parametrize("end", ["health", "metrics"])
def test_health_probes_in_log_are_ignored(end: str) -> None:
    reader = StartupLogParser()
    probe = f'INFO:     127.0.0.1:51234 - "GET /{end} HTTP/1.1" 200 OK'
    assert not reader.feed("\n".join([probe] * 3))
    assert reader.feed(f"{probe}\nDecode batch\n{probe}")
    assert reader.last_lines == ["Decode batch"]


def test_occupied_port_is_detected() -> None:
    assert read(PORTS).port_in_use
    assert not read("Uvicorn running on").port_in_use


def test_last_lines_are_kept_within_limits() -> None:
    reader = StartupLogParser()
    reader.feed("\n".join(f"line {number}" for number in range(100)))
    reader.feed("x" * 10_000)
    assert len(reader.last_lines) == log.MAX_LINES
    assert reader.last_lines[-2] == "line 99"
    assert len(reader.last_lines[-1]) == log.MAX_CHARACTERS
