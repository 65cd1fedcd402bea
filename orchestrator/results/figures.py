"""The figures of a point, one row each: `bench`, `compare` and the report (Markdown, HTML) are drawn from this table.

A new figure is a field of `Point`, or a function of one, and a row of `FIGURES`. Pure.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from typing import Final

from orchestrator.core.console import table
from orchestrator.results.result import BenchResult, Energy, Point, Spread, Throughput

_LEAST: Final = 1e-9  # tokens a second: below it nothing was put out
ABSENT: Final = "not measured"
_SUSTAINED: Final = {True: "yes", False: "no", None: "-"}


class Shown(IntEnum):
    """How far a figure is carried; what is carried further is shown before that too."""

    BY_BENCH = 1  # a row for each point in the table of `deploy bench`
    BY_RATE = 2  # beside what was published for that rate, in `deploy compare` and in the report
    BY_LAYOUT = 3  # at the best rate of each layout and system


def count(value: float) -> str:
    """A throughput: whole, thousands separated; below 100 to the tenth."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def seconds(value: float) -> str:
    """Seconds to the hundredth, below a tenth of a second to the millisecond."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def share(value: float) -> str:
    """A part of 1 as a percentage that only says 100 when it is."""
    text = f"{value * 100:.1f}".removesuffix(".0")
    return f"{'99.9' if text == '100' and value < 1 else text} %"


def usd(value: float) -> str:
    """US dollars, to the cent."""
    return f"${value:,.2f}"


def plain(value: float) -> str:
    """Any other figure, three digits."""
    return f"{value:.3g}"


@dataclass(frozen=True)
class Figure:
    """One figure: where it is found in a point, and how it is shown.

    `key` names it in `report.json`; a published rate that holds a field of that name is set beside it.
    """

    key: str
    name: str
    unit: str
    show: Callable[[float], str]
    of: Callable[[Point], float | None]
    _: KW_ONLY
    shown: Shown = Shown.BY_LAYOUT
    higher_is_better: bool = True
    exact: bool = False  # no tolerance beside a published figure, and no relative change shown
    unpublished: str = "not published"  # in place of the figure of a published layout

    @property
    def title(self) -> str:
        """Name and unit on one line."""
        return f"{self.name} {self.unit}".rstrip()

    def text(self, value: float | None, absent: str = ABSENT) -> str:
        """`value` as it is shown, `absent` where there is none."""
        return absent if value is None else self.show(value)


def cached_share(point: Point) -> float | None:
    """The measured share of prompt tokens from cache: by the answers' own counts, else by the server's counters."""
    if point.cache is None:
        return None
    return point.cache.usage_share if point.cache.usage_share is not None else point.cache.metrics_share


def usd_per_million_tokens(usd_per_hour: float | None, tok_per_s: float | None) -> float | None:
    """USD per million tokens at a price for the whole node and hour; None where either is unknown."""
    if usd_per_hour is None or not tok_per_s or tok_per_s < _LEAST:
        return None
    return usd_per_hour / 3600 / tok_per_s * 1e6


def _output(throughput: Throughput | None) -> float | None:
    return throughput.output_tok_per_s if throughput else None


def _ttft(point: Point) -> Spread | None:
    return point.latency.ttft_from_schedule_s if point.latency else None


def _ttft_p50(point: Point) -> float | None:
    return spread.p50 if (spread := _ttft(point)) else None


def _ttft_p95(point: Point) -> float | None:
    return spread.p95 if (spread := _ttft(point)) else None


def _tpot_ms(point: Point) -> float | None:
    return point.latency.tpot_s.p50 * 1e3 if point.latency and point.latency.tpot_s else None


def accept_length(point: Point) -> float | None:
    """Tokens that a verification step gave, by the server's own count; None without speculation."""
    return point.server.accept_length if point.server else None


def _usd(point: Point) -> float | None:
    return point.usd_per_million_output_tokens


def _energy(point: Point) -> Energy | None:
    return point.energy if point.energy and point.energy.valid else None


def _joules(point: Point) -> float | None:
    return energy.joules_per_output_token if (energy := _energy(point)) else None


def _per_watt(point: Point) -> float | None:
    return energy.output_tok_per_s_per_watt if (energy := _energy(point)) else None


# key, name, unit, how it is shown, where it is found
FIGURES: Final = (
    Figure("achieved_rps", "achieved", "rps", plain, lambda point: point.achieved_rps, shown=Shown.BY_BENCH),
    Figure("output_tok_s", "output tok/s", "per node", count, lambda point: _output(point.window), shown=Shown.BY_RATE),
    Figure("full_run_tok_s", "full run", "tok/s", count, lambda point: _output(point.full_run), shown=Shown.BY_BENCH),
    Figure("ttft_p50_s", "TTFT p50", "s", seconds, _ttft_p50, shown=Shown.BY_RATE, higher_is_better=False),
    Figure("ttft_p95_s", "TTFT p95", "s", seconds, _ttft_p95, higher_is_better=False),
    Figure("tpot_p50_ms", "TPOT p50", "ms", plain, _tpot_ms, shown=Shown.BY_BENCH, higher_is_better=False),
    Figure("success_share", "success", "", share, lambda point: point.success_share, shown=Shown.BY_RATE, exact=True),
    Figure("cached_share", "from cache", "", share, cached_share, shown=Shown.BY_RATE),
    Figure("accept_length", "accepted", "tokens a step", plain, accept_length, shown=Shown.BY_RATE),
    Figure("usd_per_million", "$/M", "output tok", usd, _usd, higher_is_better=False, unpublished="no price"),
    Figure("joules_per_output_token", "J", "per output tok", plain, _joules, higher_is_better=False),
    Figure("output_tok_per_s_per_watt", "output tok/s", "per watt", plain, _per_watt),
)

BY_RATE: Final = tuple(figure for figure in FIGURES if figure.shown >= Shown.BY_RATE)
BY_LAYOUT: Final = tuple(figure for figure in FIGURES if figure.shown >= Shown.BY_LAYOUT)

_BY_KEY: Final = {figure.key: figure for figure in FIGURES}
OUTPUT: Final = _BY_KEY["output_tok_s"]
TTFT_P50: Final = _BY_KEY["ttft_p50_s"]
TTFT_P95: Final = _BY_KEY["ttft_p95_s"]
USD: Final = _BY_KEY["usd_per_million"]
JOULES: Final = _BY_KEY["joules_per_output_token"]


def result_text(result: BenchResult) -> str:
    """A measurement for a terminal: its points in a table, why some are not sustained, the knee, and every mark.

    A figure that no point has is left out of the table.
    """
    measured = [figure for figure in FIGURES if any(figure.of(point) is not None for point in result.points)]
    units = ("", *(figure.unit for figure in measured), "")
    rows = [
        (point.label, *(figure.text(figure.of(point), "-") for figure in measured), _SUSTAINED[point.sustained])
        for point in result.points
    ]
    return "\n".join(
        [table(("load", *(figure.name for figure in measured), "sustained"), [units, *rows]), *_remarks(result)]
    )


def _knee(result: BenchResult) -> str:
    if result.knee_rps is None:
        return "knee: none found"
    if result.knee_reached:
        return f"knee: {result.knee_rps:g} rps"
    return f"knee: at least {result.knee_rps:g} rps, not reached: measure higher rates with --rates"


def _remarks(result: BenchResult) -> Iterator[str]:
    yield ""
    for point in result.points:
        yield from (f"{point.label}: {reason}" for reason in point.not_sustained_because)
        yield from (f"{point.label}: {text}" for text in (point.capped,) if text)
        yield from (f"{point.label}: {each.count} x {each.kind}: {each.example}" for each in point.failures)
    yield _knee(result)
    for mark in result.marks:
        where = f" at {mark.point}" if mark.point else ""
        yield f"NOT COMPARABLE ({mark.kind.value}{where}): {mark.detail}"
