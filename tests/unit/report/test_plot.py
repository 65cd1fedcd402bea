"""Plots: ticks, scales, label distances, and markup of every point."""

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report import plot
from orchestrator.report.plot import Chart, Limit, Line, line_chart, log_ticks, nice_ticks, spread_labels


@pytest.mark.parametrize(
    ("high", "ticks"),
    [(2.4, (0, 0.5, 1, 1.5, 2, 2.5)), (2626, (0, 1000, 2000, 3000)), (0.81, (0, 0.2, 0.4, 0.6, 0.8, 1)), (0, (0, 1))],
)
def test_ticks_are_round_and_cover_data(high: float, ticks: tuple[float, ...]) -> None:
    assert nice_ticks(high) == ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(0.6, 14.8, (0.5, 1, 2, 5, 10, 20)), (1, 1, (1, 2)), (0.02, 0.05, (0.02, 0.05))]
)
def test_logarithmic_ticks_follow_1_2_5_series(low: float, high: float, ticks: tuple[float, ...]) -> None:
    assert log_ticks(low, high) == ticks


@given(st.floats(1e-6, 1e9))
def test_ticks_start_at_zero_and_cover_maximum(high: float) -> None:
    ticks = nice_ticks(high)
    assert ticks[0] == 0
    assert ticks[-1] >= high * 0.999
    assert 2 <= len(ticks) <= 7


@given(st.lists(st.floats(0, 200), min_size=1, max_size=8))
def test_labels_keep_distance_and_order(heights: list[float]) -> None:
    placed = spread_labels(sorted(heights), low=0, high=200)
    assert all(below - above >= 13.999 for above, below in pairwise(placed))
    assert max(placed) <= 200


def svg(markup: str) -> ET.Element:
    return ET.fromstring(markup)  # noqa: S314 - our own


def chart(*, log: bool = False) -> Chart:
    return Chart(
        id="ttft",
        title="TTFT <p95>",
        x_label="rate",
        y_label="seconds",
        lines=(
            Line(label="published", points=((0.5, 0.6), (2.4, 2.22)), color=None),
            Line(label="TP8 & more", points=((0.5, 0.55), (1.0, 0.92), (2.0, 14.8)), color=1),
        ),
        limits=(Limit(label="limit 5 s", value=5),),
        log=log,
    )


@pytest.mark.parametrize("log", [False, True])
def test_every_point_is_drawn_inside_the_plot(log: bool) -> None:
    root = svg(line_chart(chart(log=log)))
    series = [group for group in root.iter("g") if group.get("class", "").startswith("series")]
    marks = [[mark for mark in group.iter() if mark.get("class") == "mark"] for group in series]
    assert [len(group_marks) for group_marks in marks] == [0, 0, 2, 3]
    numbers = [float(n) for path in root.iter("path") for n in re.findall(r"-?\d+\.?\d*", path.get("d", ""))]
    assert all(0 <= number <= 440 for number in numbers)


def test_higher_value_is_drawn_higher() -> None:
    root = svg(line_chart(chart()))
    low, high = [float(mark.get("cy", "")) for mark in root.iter("circle") if mark.get("class") == "mark"][1:]
    assert high < low


def test_plot_has_escaped_title_and_description() -> None:
    drawing = str(line_chart(chart()))
    root = svg(drawing)
    assert root.get("aria-labelledby") == "ttft-t ttft-d"
    assert root.findtext("title") == "TTFT <p95>"
    assert "TP8 & more: 0.5 → 0.55, 1 → 0.92, 2 → 14.8" in (root.findtext("desc") or "")
    assert "<p95>" not in drawing


def test_tags_do_not_overlap_edge_labels() -> None:
    line = Line(label="A", points=((1, 1), (4, 2)), color=0, tags=("1 rps", "4 rps"))
    root = svg(line_chart(Chart(id="f", title="t", x_label="x", y_label="y", lines=(line,))))
    left, right = [text for text in root.iter("text") if (text.get("class") or "").startswith("tag")]
    spots = [
        float(mark.get("cx", ""))
        for group in root.iter("g")
        if "series" in group.get("class", "")
        for mark in group.iter("circle")
        if mark.get("class") == "mark"
    ]
    assert (left.get("class"), float(left.get("x", "")) > spots[0]) == ("tag", True)
    assert (right.get("class"), float(right.get("x", "")) < spots[1]) == ("tag end", True)


def test_points_have_accessible_tooltips() -> None:
    """Tooltips use only CSS: the text is in the page, and is the accessible name of the point."""
    root = svg(line_chart(chart()))
    spots = [group for group in root.iter("g") if group.get("class") == "spot"]
    labels = [spot.get("aria-label") for spot in spots]

    assert labels[-1] == "TP8 & more, 2 → 14.8"
    assert [spot.get("tabindex") for spot in spots] == ["0"] * 5
    assert [text.text for spot in spots for text in spot.iter("text")] == labels
    last = next(spots[-1].iter("text"))
    assert float(str(last.get("x"))) + 7.4 * len(str(last.text)) <= plot.WIDTH  # the text ends inside the plot


def test_long_tooltip_stays_inside_the_plot() -> None:
    line = Line(
        label="a configuration with a name of forty-one", points=((1, 2), (1000, 111.1), (2000, 246.2)), color=0
    )
    for text in svg(line_chart(replace(chart(), lines=(line,)))).iter("text"):
        if text.get("class") == "tip":
            left = float(str(text.get("x")))
            assert 0 <= left <= left + 7.4 * len(str(text.text)) <= plot.WIDTH


def test_series_have_distinct_marker_shapes() -> None:
    root = svg(line_chart(chart()))
    keys = [group for group in root.iter("g") if group.get("class", "").startswith("key")]
    assert {child.tag for group in keys for child in group} == {"circle", "polygon"}
