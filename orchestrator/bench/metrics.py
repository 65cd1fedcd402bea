"""The figures of a point, one row each: `bench`, `compare` and the report (Markdown, HTML) are drawn from this table.

A new figure is a field of `Point`, or a function of one, and a row of `METRICS`. Pure.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from enum import Flag, auto
from typing import Final, Literal

from orchestrator.bench.result import BenchResult, Distribution, Energy, Latency, Point, Throughput
from orchestrator.core.console import table

_LEAST: Final = 1e-9  # tokens a second: below it nothing was put out
_TIMES: Final = frozenset({"s", "ms"})
ABSENT: Final = "not measured"
_SUSTAINED: Final = {True: "yes", False: "no", None: "-"}


class DisplayIn(Flag):
    """Where a figure is shown, apart from `report.json`, which holds all of them."""

    BENCH = auto()  # in the table of `deploy bench`
    COMPARE = auto()  # side by side: in `deploy compare`, and in a report of several results
    RATE = auto()  # in the report's table of what each rate gave
    WAIT = auto()  # in the report's table of how long requests took
    LAYOUT = auto()  # at the best rate of each layout and system
    CARD = auto()  # at the head of the report, at the knee


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
    """Any other figure, three digits, or as many as stand before its point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@dataclass(frozen=True)
class ReportMetric:
    """One figure: where it is found in a point, and how it is shown.

    `key` names it in `report.json`; a published rate that holds a field of that name is set beside it.
    """

    key: str
    name: str
    unit: str
    show: Callable[[float], str]
    of: Callable[[Point], float | None]
    _: KW_ONLY
    shown: DisplayIn
    higher_is_better: bool = True
    exact: bool = False  # no tolerance beside a published figure
    unpublished: str = "not published"  # in place of the figure of a published layout

    @property
    def relative(self) -> bool:
        """Whether a change is told as a share of the figure; that of a share would read as the share itself."""
        return self.show is not share

    @property
    def title(self) -> str:
        """Name and unit on one line."""
        return f"{self.name} {self.unit}".rstrip()

    @property
    def words(self) -> str:
        """The name within a line; its unit where that is more than one of time."""
        return self.name if self.unit in _TIMES else self.title

    @property
    def heading(self) -> str:
        """The same as it begins a line."""
        return f"{self.words[0].upper()}{self.words[1:]}"

    def with_unit(self, value: float | None) -> str:
        """`value` as it stands by itself, with its unit of time."""
        unit = f" {self.unit}" if self.unit in _TIMES and value is not None else ""
        return f"{self.text(value)}{unit}"

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


def steady_state(point: Point) -> Throughput | None:
    """Of an open load the steady window; a closed load keeps its level by itself, so that all of its run counts."""
    return point.window if point.concurrency is None else point.full_run


def _output(throughput: Throughput | None) -> float | None:
    return throughput.output_tok_per_s if throughput else None


def _per_gpu(point: Point) -> float | None:
    return throughput.output_tok_per_s_per_gpu if (throughput := steady_state(point)) else None


def _ttft(latency: Latency) -> Distribution:
    return latency.ttft_from_schedule_s


def _tpot(latency: Latency) -> Distribution | None:
    return latency.tpot_s


def _itl(latency: Latency) -> Distribution | None:
    """From chunk to chunk: of several tokens each where the server drafts."""
    return latency.itl_per_chunk_s


def _e2e(latency: Latency) -> Distribution:
    return latency.e2e_from_schedule_s


def _at(
    percentile: Literal["p50", "p95", "p99"], of: Callable[[Latency], Distribution | None], scale: float = 1.0
) -> Callable[[Point], float | None]:
    """That percentile of one of the latencies."""

    def found(point: Point) -> float | None:
        spread = of(point.latency) if point.latency else None
        return getattr(spread, percentile) * scale if spread else None

    return found


def _per_user(point: Point) -> float | None:
    """What one user sees: the inverse of the median TPOT."""
    tpot = point.latency.tpot_s if point.latency else None
    return 1 / tpot.p50 if tpot and tpot.p50 > _LEAST else None


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


def _wait(
    key: str,
    name: str,
    unit: str,
    show: Callable[[float], str],
    of: Callable[[Point], float | None],
    *,
    also: DisplayIn = DisplayIn.WAIT,
) -> ReportMetric:
    """A time that a request took: the shorter the better."""
    return ReportMetric(key, name, unit, show, of, shown=DisplayIn.WAIT | also, higher_is_better=False)


_TABLES: Final = DisplayIn.BENCH | DisplayIn.COMPARE | DisplayIn.RATE
_ALL: Final = _TABLES | DisplayIn.LAYOUT | DisplayIn.CARD

# key, name, unit, how it is shown, where it is found
METRICS: Final = (
    ReportMetric("achieved_rps", "achieved", "rps", plain, lambda point: point.achieved_rps, shown=DisplayIn.BENCH),
    ReportMetric(
        "output_tok_s",
        "output tok/s",
        "per node",
        count,
        lambda p: _output(steady_state(p)),
        shown=_TABLES | DisplayIn.CARD,
    ),
    ReportMetric(
        "output_tok_s_gpu", "output tok/s", "per GPU", count, _per_gpu, shown=DisplayIn.COMPARE | DisplayIn.RATE
    ),
    ReportMetric(
        "user_tok_s", "tok/s", "per user", count, _per_user, shown=DisplayIn.COMPARE | DisplayIn.RATE | DisplayIn.CARD
    ),
    ReportMetric(
        "full_run_tok_s", "full run", "tok/s", count, lambda point: _output(point.full_run), shown=DisplayIn.BENCH
    ),
    _wait("ttft_p50_s", "TTFT p50", "s", seconds, _at("p50", _ttft), also=DisplayIn.BENCH | DisplayIn.COMPARE),
    _wait("ttft_p95_s", "TTFT p95", "s", seconds, _at("p95", _ttft), also=_ALL ^ DisplayIn.RATE),
    _wait("ttft_p99_s", "TTFT p99", "s", seconds, _at("p99", _ttft)),
    _wait("tpot_p50_ms", "TPOT p50", "ms", plain, _at("p50", _tpot, 1e3), also=_TABLES ^ DisplayIn.RATE),
    _wait("tpot_p95_ms", "TPOT p95", "ms", plain, _at("p95", _tpot, 1e3)),
    _wait("tpot_p99_ms", "TPOT p99", "ms", plain, _at("p99", _tpot, 1e3)),
    _wait("itl_p50_ms", "ITL p50", "ms", plain, _at("p50", _itl, 1e3)),
    _wait("itl_p95_ms", "ITL p95", "ms", plain, _at("p95", _itl, 1e3)),
    _wait("e2e_p50_s", "E2E p50", "s", seconds, _at("p50", _e2e), also=DisplayIn.COMPARE),
    _wait("e2e_p95_s", "E2E p95", "s", seconds, _at("p95", _e2e), also=DisplayIn.CARD),
    _wait("e2e_p99_s", "E2E p99", "s", seconds, _at("p99", _e2e)),
    ReportMetric("success_share", "success", "", share, lambda point: point.success_share, shown=_TABLES, exact=True),
    ReportMetric("cached_share", "from cache", "", share, cached_share, shown=_TABLES | DisplayIn.CARD),
    ReportMetric("accept_length", "accepted", "tokens a step", plain, accept_length, shown=_TABLES | DisplayIn.CARD),
    ReportMetric(
        "usd_per_million", "$/M", "output tok", usd, _usd, shown=_ALL, higher_is_better=False, unpublished="no price"
    ),
    ReportMetric("joules_per_output_token", "J", "per output tok", plain, _joules, shown=_ALL, higher_is_better=False),
    ReportMetric(
        "output_tok_per_s_per_watt", "output tok/s", "per watt", plain, _per_watt, shown=_TABLES | DisplayIn.LAYOUT
    ),
)


def shown_in(place: DisplayIn) -> tuple[ReportMetric, ...]:
    """The figures that are shown in one of these places, in order."""
    return tuple(figure for figure in METRICS if place & figure.shown)


_BY_KEY: Final = {figure.key: figure for figure in METRICS}
OUTPUT: Final = _BY_KEY["output_tok_s"]
OUTPUT_PER_GPU: Final = _BY_KEY["output_tok_s_gpu"]
PER_USER: Final = _BY_KEY["user_tok_s"]
TTFT_P50: Final = _BY_KEY["ttft_p50_s"]
TTFT_P95: Final = _BY_KEY["ttft_p95_s"]
TPOT_P50: Final = _BY_KEY["tpot_p50_ms"]
USD: Final = _BY_KEY["usd_per_million"]
PER_WATT: Final = _BY_KEY["output_tok_per_s_per_watt"]
JOULES: Final = _BY_KEY["joules_per_output_token"]


def result_text(result: BenchResult) -> str:
    """A measurement for a terminal: its points in a table, why some are not sustained, the knee, and every mark.

    A figure that no point has is left out of the table.
    """
    bench = shown_in(DisplayIn.BENCH)
    measured = [figure for figure in bench if any(figure.of(point) is not None for point in result.points)]
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
        open_points = [point for point in result.points if point.offered_rps is not None]
        if open_points and all(point.sustained is None for point in open_points):
            return "knee: not judged; measure longer with --requests or --duration"
        return "knee: none found"
    if result.knee_reached:
        return f"knee: {result.knee_rps:g} rps"
    return f"knee: at least {result.knee_rps:g} rps, not reached: measure higher rates with --request-rate"


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
