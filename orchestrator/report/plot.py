"""Small plots as inline SVG. Pure; colors and dark mode come from the CSS variables of the page.

A plot has 440 × 300 units, so that 12-unit text stays readable on a phone. Series differ in marker and color, and have
a label at their right end.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from markupsafe import Markup

WIDTH: Final = 440
HEIGHT: Final = 300
_LEFT, _TOP, _BOTTOM = 46, 16, 46
_LABEL_GAP: Final = 14.0
_TICKS: Final = 5  # maximum number of ticks above 0
_TAG: Final = 48.0  # maximum width of a tag, in units
_MAX_LABEL: Final = 22  # characters of a label at the right edge
_DESCRIBED: Final = 12  # maximum number of points listed in the description
_TIP_CHAR: Final = 7.4  # maximum width of a character in the bold text of a tip, in units
_MARKERS: Final = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series of at least one point; `color` is an index, or None for published: gray, dashed, hollow markers.

    Style "dots" draws no line. `tags` name the points.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    color: int | None
    style: Literal["line", "dots"] = "line"
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A labeled horizontal line, such as the limit of an SLO."""

    label: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart and its caption `description`; `id` must be unique on the page, axis labels include the unit.

    A chart without lines is not drawn.
    """

    id: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    limits: tuple[Limit, ...] = ()
    log: bool = False  # logarithmic vertical axis; all values must be above 0
    description: str = ""


_MIN_LOG_VALUE: Final = 1e-9  # smallest value on a logarithmic axis; smaller values are drawn at its foot


@dataclass(frozen=True, kw_only=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the coordinate of a value, in units of the drawing."""
        if self.log:
            fraction = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            fraction = (value - self.low) / (self.high - self.low)
        return self.start + fraction * (self.end - self.start)


def nice_ticks(high: float) -> tuple[float, ...]:
    """Return ticks from 0 to the first round number at or above `high`, in steps of 1, 2 or 5 times a power of ten."""
    if high <= _MIN_LOG_VALUE:
        return (0.0, 1.0)
    magnitude = 10.0 ** math.floor(math.log10(high / _TICKS))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude * _TICKS >= high * 0.999)
    return tuple(round(step * index, 10) for index in range(math.ceil(high / step - 1e-9) + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return 1, 2 and 5 times powers of ten, from the last at or below `low` to the first at or above `high`."""
    low, high = max(low, _MIN_LOG_VALUE), max(high, _MIN_LOG_VALUE)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [round(factor * 10.0**decade, 10) for decade in decades for factor in (1, 2, 5)]
    first = max(index for index, tick in enumerate(every) if tick <= low)
    last = min(index for index, tick in enumerate(every) if tick >= high)
    return tuple(every[first : max(last, first + 1) + 1])


def number(value: float) -> str:
    """Format a number with thousands separators and without trailing zeros."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.10g}"


def line_chart(chart: Chart) -> Markup:
    """Return the chart as an `<svg>` with title and description."""
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points] + [limit.value for limit in chart.limits]
    x_ticks = nice_ticks(max(xs))
    y_ticks = log_ticks(min(ys), max(ys)) if chart.log else nice_ticks(max(ys))
    edge = WIDTH - 28 - 7.3 * max(len(_short(line.label)) for line in chart.lines)
    x_scale = _Scale(low=x_ticks[0], high=x_ticks[-1], start=_LEFT, end=edge)
    y_scale = _Scale(low=y_ticks[0], high=y_ticks[-1], start=HEIGHT - _BOTTOM, end=_TOP, log=chart.log)
    parts = [*_axes(chart, x_scale, y_scale, x_ticks, y_ticks)]
    parts += [_limit(limit, x_scale, y_scale) for limit in chart.limits]
    parts += [_series(line, x_scale, y_scale) for line in chart.lines]
    parts += _end_labels(chart.lines, y_scale, edge)
    tagged = [line for line in chart.lines if line.tags]
    if len(tagged) == 1:  # tags of several lines would overlap
        points = zip(_locations(tagged[0], x_scale, y_scale), tagged[0].tags, strict=True)
        parts += [_tag(x, y, tag, x_scale) for (x, y), tag in points]
    parts += [_spots(line, x_scale, y_scale) for line in chart.lines]
    return _svg(chart.id, chart.title, _describe(chart), parts, HEIGHT)


def legend_symbol(color: int) -> Markup:
    """Return the marker of a result for the legend, as an `<svg>`."""
    drawn = _marker(_MARKERS[color % len(_MARKERS)], 7, 7)
    return Markup('<svg viewBox="0 0 14 14" aria-hidden="true"><g class="{}">{}</g></svg>').format(_color(color), drawn)


def _svg(chart_id: str, title: str, description: str, parts: list[Markup], height: int) -> Markup:
    return Markup(
        '<svg class="plot" id="{id}" viewBox="0 0 {w} {h}" role="group" aria-labelledby="{id}-t {id}-d">'
        '<title id="{id}-t">{title}</title><desc id="{id}-d">{desc}</desc>{body}</svg>'
    ).format(id=chart_id, w=WIDTH, h=height, title=title, desc=description, body=Markup("").join(parts))


def _describe(chart: Chart) -> str:
    series = (f"{line.label}: {_values(line)}" for line in chart.lines)
    return f"{chart.y_label} against {chart.x_label}. " + "; ".join(series)


def _values(line: Line) -> str:
    """Describe the points of a series for screen readers; of many points, only their number and maximum."""
    if len(line.points) > _DESCRIBED:
        return f"{len(line.points)} points, at most {max(y for _, y in line.points):.4g}"
    return ", ".join(f"{number(x)} → {_exact(y)}" for x, y in line.points)


def _short(label: str) -> str:
    return label if len(label) <= _MAX_LABEL else f"{label[: _MAX_LABEL - 1]}…"


def _text(x: float, y: float, text: str, css: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(css, x, y, text)


def _axes(
    chart: Chart, x_scale: _Scale, y_scale: _Scale, x_ticks: tuple[float, ...], y_ticks: tuple[float, ...]
) -> list[Markup]:
    base = y_scale.start
    parts = [
        Markup('<path class="grid" d="M{:.1f} {:.1f}H{:.1f}"/>').format(x_scale.start, y_scale.at(tick), x_scale.end)
        for tick in y_ticks[1:]
    ]
    parts.append(Markup('<path class="axis" d="M{:.1f} {:.1f}H{:.1f}"/>').format(x_scale.start, base, x_scale.end))
    parts += [_text(x_scale.start - 8, y_scale.at(tick) + 4, number(tick), "tick end") for tick in y_ticks]
    parts += [_text(x_scale.at(tick), base + 18, number(tick), "tick middle") for tick in x_ticks]
    parts.append(_text((x_scale.start + x_scale.end) / 2, base + 38, chart.x_label, "tick middle"))
    return parts


def _limit(limit: Limit, x_scale: _Scale, y_scale: _Scale) -> Markup:
    y = y_scale.at(limit.value)
    line = Markup('<path class="limit" d="M{:.1f} {:.1f}H{:.1f}"/>').format(x_scale.start, y, x_scale.end)
    return line + _text(x_scale.start + 6, y + 14, limit.label, "tick")


def _color(index: int | None) -> str:
    return "published" if index is None else f"c{index % 6}"


def _shape(line: Line) -> str:
    return _MARKERS[0 if line.color is None else line.color % len(_MARKERS)]


def _series(line: Line, x_scale: _Scale, y_scale: _Scale) -> Markup:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in _locations(line, x_scale, y_scale))
    drawn = Markup("") if line.style == "dots" else Markup('<path class="line" d="{}"/>').format(path)
    return Markup('<g class="series {}">{}</g>').format(_color(line.color), drawn)


def _locations(line: Line, x_scale: _Scale, y_scale: _Scale) -> list[tuple[float, float]]:
    return [(x_scale.at(x), y_scale.at(y)) for x, y in line.points]


def _spots(line: Line, x_scale: _Scale, y_scale: _Scale) -> Markup:
    """Return the markers of a series; hover and keyboard focus show the exact values of a marker."""
    drawn = Markup("")
    tags = line.tags or ("",) * len(line.points)
    for (x, y), values, tag in zip(_locations(line, x_scale, y_scale), line.points, tags, strict=True):
        exact = f"{tag}{': ' if tag else ''}{_exact(values[0])} → {_exact(values[1])}"
        text, tip = f"{line.label}, {exact}", f"{_short(line.label)}, {exact}"
        if line.style == "dots":
            drawn += Markup("<g>{}<title>{}</title></g>").format(_marker("dot", x, y), text)
            continue
        x_tip = max(min(x, WIDTH - _TIP_CHAR * len(tip)), 0.0)
        top = y + 22 if y < _TOP + 14 else y - 11
        drawn += Markup(
            '<g class="spot" tabindex="0" role="img" aria-label="{}">'
            '<circle class="hit" cx="{:.1f}" cy="{:.1f}" r="10"/>{}{}</g>'
        ).format(text, x, y, _marker(_shape(line), x, y), _text(x_tip, top, tip, "tip"))
    return Markup('<g class="series {}">{}</g>').format(_color(line.color), drawn)


def _exact(value: float) -> str:
    return number(float(f"{value:.4g}"))


def _tag(x: float, y: float, tag: str, x_scale: _Scale) -> Markup:
    """Return the label of a point; near the right edge, where the series labels are, it is left of the point."""
    if x > x_scale.end - _TAG:
        return _text(x - 8, y - 4, tag, "tag end")
    return _text(x + 8, y + 4, tag, "tag")


def _marker(shape: str, x: float, y: float) -> Markup:
    if shape in {"circle", "dot"}:
        css, radius = ("mark", 4) if shape == "circle" else ("mark dot", 2.5)
        return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>').format(css, x, y, radius)
    outlines = {
        "square": ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
        "triangle": ((0, -4.8), (4.6, 3.4), (-4.6, 3.4)),
        "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
    }
    corners = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in outlines[shape])
    return Markup('<polygon class="mark" points="{}"/>').format(corners)


def _end_labels(lines: tuple[Line, ...], upward: _Scale, edge: float) -> list[Markup]:
    """Return the series labels at the right edge, each at the height of the last point, without overlap."""
    ends = sorted(((upward.at(line.points[-1][1]), line) for line in lines), key=lambda end: end[0])
    heights = spread_labels([height for height, _ in ends], low=_TOP, high=upward.start - 4)
    parts = []
    for height, (_, line) in zip(heights, ends, strict=True):
        key = _marker(_shape(line), edge + 14, height)
        parts.append(Markup('<g class="key {}">{}</g>').format(_color(line.color), key))
        parts.append(_text(edge + 24, height + 4, _short(line.label), f"label {_color(line.color)}"))
    return parts


def spread_labels(heights: list[float], *, low: float, high: float) -> list[float]:
    """Return sorted heights with room for a label between neighbors, moved down and then up into `low` to `high`."""
    heights_placed: list[float] = []
    for height in heights:
        heights_placed.append(max(height, low, heights_placed[-1] + _LABEL_GAP) if heights_placed else max(height, low))
    ceiling = high
    for index in range(len(heights_placed) - 1, -1, -1):
        heights_placed[index] = min(heights_placed[index], ceiling)
        ceiling = heights_placed[index] - _LABEL_GAP
    return heights_placed
