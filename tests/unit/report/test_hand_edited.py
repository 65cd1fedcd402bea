"""Edited results are rejected with file and key, or reported; hostile texts in them stay text."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_samples import save, tp4dp2

from orchestrator.bench.result import BenchResult
from orchestrator.bench.result_files import load_result
from orchestrator.core.errors import BenchError
from orchestrator.core.text import first_control_char
from orchestrator.evals.eval_result import load_eval_result
from orchestrator.report.render import render_html, render_json
from orchestrator.report.text import comparison_text
from orchestrator.report.write import make_report

UNEXPECTED = (
    None,
    [],
    {},
    -1,
    1.5,
    True,
    "1",
    "",
    float("nan"),
    float("inf"),
    -float("inf"),
    10**400,
    1e300,
    [[]],
    {"a": 1},
    5e-324,
    0,
    10**15,
)
DATA = json.loads(tp4dp2().to_json())


def paths(data: object, prefix: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every key and index in a document."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*prefix, key)
        yield from paths(value, (*prefix, key))


def changed(keys: tuple[str | int, ...], value: object, *, missing: bool = False) -> str:
    data = json.loads(json.dumps(DATA))
    parent = data
    for step in keys[:-1]:
        parent = parent[step]
    if missing:
        del parent[keys[-1]]
    else:
        parent[keys[-1]] = value
    return json.dumps(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def report_html(folder: Path, text: str) -> str:
    file = folder / "result.json"
    file.write_text(text)
    report = make_report([file], published="wafer-glm52", prices=())
    render_json(report)
    comparison_text(report)
    return render_html(report)


@settings(max_examples=60, derandomize=True)
@given(st.sampled_from(sorted(paths(DATA), key=str)), st.sampled_from(UNEXPECTED), st.booleans())
def test_edited_result_is_reported_or_rejected(
    folder: Path, keys: tuple[str | int, ...], replacement: object, missing: bool
) -> None:
    with suppress(BenchError):
        report_html(folder, changed(keys, replacement, missing=missing))


@pytest.mark.parametrize("replacement", [0, 5e-324, 1e15])
@pytest.mark.parametrize(
    "keys",
    [
        ("points", 0, "latency", "ttft_from_schedule_s", "p50"),
        ("points", 0, "window", "output_tok_per_s"),
        ("points", 0, "energy", "joules_per_output_token"),
        ("run", "workload", "output_tokens"),
    ],
)
def test_extreme_values_are_drawn(folder: Path, keys: tuple[str | int, ...], replacement: float) -> None:
    assert "MI355X" in report_html(folder, changed(keys, replacement))


@pytest.mark.parametrize(
    ("keys", "replacement", "message"),
    [
        (("points", 0, "offered_rps"), "2", "`points.0.offered_rps` must be a number, found `2`"),
        (("points", 0, "offered_rps"), 0, "`points.0.offered_rps`"),
        (("points", 0, "latency", "ttft_from_send_s", "p95"), float("nan"), "`points.0.latency.ttft_from_send_s.p95`"),
        (("points", 0, "succeeded"), -1, "`points.0.succeeded`"),
        (("points", 0, "succeeded"), True, "`points.0.succeeded` must be a whole number, found True"),
        (("points", 0, "success_share"), 3.0, "`points.0.success_share`"),
        (("knee_rps",), 1e300, "`knee_rps`"),
    ],
)
def test_invalid_value_is_rejected_with_its_key(keys: tuple[str | int, ...], replacement: object, message: str) -> None:
    with pytest.raises(BenchError, match="not a valid") as caught:
        BenchResult.from_json(changed(keys, replacement), location="result.json")
    assert any(problem.message.startswith(message) for problem in caught.value.problems), caught.value.problems


@settings(max_examples=40, derandomize=True)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_file_is_a_result_or_an_error(data: bytes) -> None:
    with suppress(BenchError):
        BenchResult.from_json(data.decode(errors="surrogateescape"), location="result.json")


def test_special_or_oversized_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "result.json")
    with pytest.raises(BenchError, match="cannot read the result: not a file"):
        load_result(tmp_path)
    with (tmp_path / "long").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(BenchError, match="cannot read the eval result: File too large"):
        load_eval_result(tmp_path / "long")


HOSTILE = "<script>alert(1)</script> [a](javascript:b) ![c](d) `e` ``` | f *g* _h_ ~~i~~ &amp; \\\n# j\n\n| k |"
TEXTS = [
    ("run", "endpoint", "served_model"), ("run", "endpoint", "url"), ("run", "workload_name"), ("run", "command"),
    ("run", "warmup"), ("run", "provenance", "profile"), ("run", "provenance", "name"), ("run", "provenance", "gpu"),
    ("run", "label"), ("run", "provenance", "layout"), ("run", "endpoint", "engine"),
    ("run", "endpoint", "speculative"), ("run", "provenance", "image_digest"),
    ("points", 0, "not_sustained_because"), ("points", 0, "failures"), ("points", 0, "label"),
]  # fmt: skip


CONTROLS = "\x1b]0;title\x07 \u202etxet \x9b31m \u2066x\u2069 \u2028"


def hostile(keys: tuple[str | int, ...]) -> str:
    hostile_values = {
        "not_sustained_because": [HOSTILE],
        "failures": [{"kind": HOSTILE, "count": 1, "example": HOSTILE}],
    }
    return changed(keys, hostile_values.get(str(keys[-1]), HOSTILE))


@pytest.mark.parametrize("published", ["none", "wafer-glm52"])
def test_hostile_text_is_escaped_in_html(published: str, tmp_path: Path) -> None:
    """Every text is in its own result, and the directories have hostile names too; one page shows all."""
    text_keys = [
        *TEXTS,
        ("run", "provenance", "plan", "flags", 0, "name"),
        ("run", "provenance", "plan", "flags", 0, "value"),
    ]
    files = []
    for index, keys in enumerate(text_keys):
        files.append(tmp_path / f"<script>{index}" / "result.json")
        files[-1].parent.mkdir()
        files[-1].write_text(hostile(keys))
    page = render_html(make_report(files, published=published, prices=()))

    assert "<script" not in page.lower()
    assert page.lower().count("&lt;script&gt;") > len(text_keys)


@pytest.mark.parametrize("keys", TEXTS, ids=lambda keys: keys[-1])
def test_report_contains_no_control_or_bidi_characters(keys: tuple[str | int, ...], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(hostile(keys).replace(json.dumps(HOSTILE)[1:-1], json.dumps(CONTROLS)[1:-1]))
    report = make_report([path], published="none", prices=())
    text = render_html(report)
    assert first_control_char(text, lines=True) is None
    assert ("txet" in text) == (keys[-1] not in {"name", "gpu"})


def test_malformed_plan_layout_is_ignored(tmp_path: Path) -> None:
    for layout in ({}, {"tp": "x"}, [], "tp8", {"tp": 1}):
        assert "mi355x-tp4dp2" in report_html(tmp_path, changed(("run", "provenance", "plan", "layout"), layout))
    assert load_result(save(tp4dp2(), tmp_path)).points
