"""Test the trace formats, the location of invalid lines and the memory use of the readers."""

import json
import tracemalloc
from pathlib import Path

import pytest

from orchestrator.bench.sessions import SessionTokens, open_sessions, session_key
from orchestrator.bench.traces.synthetic import SessionShape, Subagents, synthetic_trees
from orchestrator.bench.traces.trace import open_trace
from orchestrator.bench.workload import Workload, load_workload
from orchestrator.core.errors import ProfileError

# A line in the format of Mooncake's FAST'25 traces (kvcache-ai/Mooncake, FAST25-release/traces).
MOONCAKE_LINE = '{"timestamp": 27482, "input_length": 1000, "output_length": 52, "hash_ids": [46, 47]}\n'


def call(t: float, tokens: int, ids: list[int], **more: object) -> dict[str, object]:
    return {"t": t, "type": "n", "model": "m", "in": tokens, "out": 10, "hash_ids": ids, "api_time": 2.0, **more}


def session(name: str, *requests: object) -> dict[str, object]:
    return {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": list(requests)}


def subagent(t: float, *requests: object, **more: object) -> dict[str, object]:
    fields = {"agent_id": "agent_001", "subagent_type": "Explore", "status": "completed", "models": ["m"]}
    return {"t": t, "type": "subagent", **fields, "requests": list(requests), **more}


def write(folder: Path, *documents: object, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def test_mooncake_line_is_one_session_with_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE_LINE * 2)
    trace = open_trace(path)
    assert (trace.format, trace.totals.sessions, trace.totals.requests) == ("mooncake", 2, 2)
    assert trace.totals.last_arrival_s == 27.482
    (first,), (second,) = trace.trees()
    assert first.session != second.session
    assert (first.arrival_s, list(first.block_ids), first.block_tokens) == (27.482, [46, 47], 512)
    assert (first.input_tokens, first.output_tokens, first.continues) == (1000, 52, False)


def test_mooncake_lines_are_grouped_by_session(tmp_path: Path) -> None:
    plain = {"timestamp": 5, "input_length": 10, "output_length": 1, "hash_ids": [1]}
    turn = {"session_id": "a", "input_length": 600, "output_length": 20}
    path = write(
        tmp_path,
        {**plain, "timestamp": 0},
        {**turn, "timestamp": 1000},
        {**turn, "session_id": "b", "timestamp": 1500},
        plain,
        {"session_id": "a", "input_length": 100, "output_length": 0, "delay": 2500},
    )
    trees = list(open_trace(path).trees())
    assert [tree[0].session for tree in trees] == ["line 1", "a", "b", "line 4"]
    first, second = trees[1]
    assert (second.after, second.arrival_s, second.delay_s, second.position) == ((0,), None, 2.5, 1)
    assert second.continues
    assert (second.input_tokens, second.output_tokens) == (720, 1)  # 600 + 20 + 100; the answer of 0 tokens counts as 1
    assert not second.block_ids
    assert not set(first.block_ids) & set(trees[2][0].block_ids)


def test_weka_session_keeps_delays_and_waits_for_subagents(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        session(
            "s1",
            call(0.0, 100, [1]),
            subagent(2.5, call(3.0, 64, [7]), call(0.5, 70, [7, 8]), duration_ms=4000),
            call(5.0, 128, [1, 2]),
            call(10.0, 200, [1, 2, 3]),
        ),
        session("s2", call(0.0, 64, [1])),
    )
    trace = open_trace(path)
    assert (trace.format, trace.totals.sessions, trace.totals.subagents, trace.totals.requests) == ("weka", 2, 1, 6)
    assert trace.totals.last_arrival_s is None
    tree, other = trace.trees()
    assert [(request.session, request.position, request.after) for request in tree] == [
        ("s1", 0, ()),
        ("s1/agent_001", 0, (0,)),
        ("s1/agent_001", 1, (1,)),
        ("s1", 1, (0,)),
        ("s1", 2, (3, 2)),
    ]
    assert [request.delay_s for request in tree] == [0.0, 1.0, 0.0, 3.0, 3.0]  # 3 - 2; 0.5 counts as 3; 5 - 2; 10 - 7
    assert tree[1].parent == "s1"
    assert list(tree[3].block_ids)[:1] == list(tree[0].block_ids)
    assert not set(tree[0].block_ids) & set(other[0].block_ids)  # hashes are valid within one session


def test_a_weka_trace_may_be_one_json_file_or_a_directory(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps(session(name, call(0, 64, [1])), indent=1))
    assert [tree[0].session for tree in open_trace(tmp_path).trees()] == ["a", "b"]
    assert open_trace(tmp_path / "b.json").totals.sessions == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "invalid trace"),
        ('{"timestamp": 1, "input_length": 5}', "invalid trace"),
        ('{"timestamp": "1", "input_length": 5, "output_length": 1}', "invalid trace"),
        ('{"chat_id": 1, "timestamp": 1, "input_length": 5, "output_length": 1}', "invalid trace"),
        ('{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}', "2 `hash_ids`"),
    ],
)
def test_invalid_trace_line_names_expected_format(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{MOONCAKE_LINE}\n{line}\n")
    with pytest.raises(ProfileError) as error:
        open_trace(path)
    problems = error.value.problems_or_self()
    assert problems[0].location == f"{path}:3"
    assert message in error.value.message
    assert error.value.hint.startswith("expected ")


@pytest.mark.parametrize(
    ("content", "message"), [("", "the trace is empty"), ('{"a": 1}', "unknown format"), ("x", "unknown format")]
)
def test_invalid_trace_file_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(ProfileError, match=message):
        open_trace(path)
    with pytest.raises(ProfileError, match="cannot read the trace"):
        open_trace(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("name", ["a.json", None])
def test_mooncake_trace_must_be_one_jsonl_file(tmp_path: Path, name: str | None) -> None:
    """In a directory of such files, the lines of a session were once read from the wrong file."""
    line = {"session_id": "a", "timestamp": 1, "input_length": 5, "output_length": 1}
    write(tmp_path, line, name="a.json")
    with pytest.raises(ProfileError, match="lines of one file") as error:
        open_trace(tmp_path / name if name else tmp_path)
    assert ".jsonl" in error.value.hint


@pytest.mark.parametrize("order", [1, -1])
def test_session_mixing_hashed_and_unhashed_lines_is_rejected(tmp_path: Path, order: int) -> None:
    turn = {"session_id": "a", "timestamp": 1, "input_length": 5, "output_length": 1}
    path = write(tmp_path, *[turn, {**turn, "hash_ids": [1]}][::order])
    with pytest.raises(ProfileError, match="with and without `hash_ids`") as error:
        open_trace(path)
    assert error.value.problems_or_self()[0].location == f"{path}:2"


def test_session_name_invalid_as_header_is_hashed() -> None:
    assert session_key("line 1") == "line 1"
    bad = ["a\r\nX-Other: 1", "é", " a", "", "x" * 10_000]
    keys = {session_key(record) for record in bad}
    assert len(keys) == len(bad)
    assert all(len(key) == 32 and key.isalnum() for key in keys)


@pytest.mark.parametrize("size", [16, 1 << 16])
def test_block_cache_is_bounded_in_tokens(size: int) -> None:
    tokens = SessionTokens(Workload(trace="a.jsonl"), "", (), block_tokens=size)
    max_blocks = tokens._block.cache_info().maxsize  # type: ignore[attr-defined]
    assert (max_blocks or 0) * size == 1 << 21


def test_trace_reader_uses_constant_memory(tmp_path: Path) -> None:
    def peak(lines: int) -> int:
        line = {"timestamp": 1, "input_length": 512_000, "output_length": 1, "hash_ids": list(range(1000))}
        path = write(tmp_path, *[line] * lines)
        tracemalloc.start()
        try:
            assert sum(len(tree) for tree in open_trace(path).trees()) == lines
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(150) < peak(50) + 300_000  # 100 lines of 5 kB, and 36 kB when parsed


SHAPE = SessionShape(
    count=3,
    turns=(2, 4),
    system_prompt_tokens=130,
    first_prompt_tokens=50,
    turn_tokens=20,
    output_tokens=8,
    think_time_s=1.0,
    subagents=Subagents(every_turns=2, count=2, turns=2, first_prompt_tokens=30),
)


def test_synthetic_sessions_grow_each_turn_and_share_prefix() -> None:
    trees = list(synthetic_trees(SHAPE, seed=7))
    assert trees == list(synthetic_trees(SHAPE, seed=7))
    assert trees != list(synthetic_trees(SHAPE, seed=8))
    requests = [request for request in trees[0] if request.parent is None]
    assert [request.input_tokens for request in requests] == [180 + 28 * request.position for request in requests]
    assert [request.continues for request in requests] == [request.position > 0 for request in requests]
    child = next(request for request in trees[0] if request.parent is not None)
    assert (child.input_tokens, child.continues, child.parent) == (160, False, "session-0")
    assert child.block_ids[:2] == trees[1][0].block_ids[:2]
    assert not set(child.block_ids[2:]) & {
        block for tree in trees[1:] for request in tree for block in request.block_ids
    }


def test_synthetic_session_waits_for_its_subagents() -> None:
    tree = next(tree for tree in synthetic_trees(SHAPE, seed=7) if sum(request.parent is None for request in tree) > 2)
    third = next(request for request in tree if request.parent is None and request.position == 2)
    assert [(tree[index].parent, tree[index].position) for index in third.after] == [
        (None, 1),
        (tree[0].session, 1),
        (tree[0].session, 1),
    ]


def arrivals(folder: Path, *seconds: int) -> list[float | None]:
    """Return the send times of a replay of a trace with these timestamps."""
    plain = {"input_length": 10, "output_length": 1, "hash_ids": [1]}
    path = write(folder, *({**plain, "timestamp": 1000 * second} for second in seconds))
    source = open_sessions(load_workload(str(path)))
    assert source is not None
    return [request.arrival_s for tree in source.trees() for request in tree]


def test_trace_slice_starts_at_its_first_arrival(tmp_path: Path) -> None:
    assert arrivals(tmp_path, 600, 601, 604) == [0.0, 1.0, 4.0]


def test_arrivals_out_of_order_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="session 2 arrives at 0 s, earlier than the session before it"):
        arrivals(tmp_path, 3, 0)
