"""The table of metrics of a point, which `bench`, `compare` and the report display. Pure.

To add a metric, add a field to `Point` or a function of a point, and a row to `METRICS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from enum import Flag, auto
from typing import Final

from orchestrator.bench.result import BenchResult, CacheForecast, Point, Throughput
from orchestrator.bench.steady_state import rates_without_verdict
from orchestrator.core.console import table

_MIN_TOKENS_PER_S: Final = 1e-9  # tokens/s; lower rates count as no output
_TIMES: Final = frozenset({"s", "ms"})
NOT_MEASURED: Final = "not measured"
_SUSTAINED: Final = {True: "yes", False: "no", None: "-"}


class DisplayIn(Flag):
    """The places that display a metric; `report.json` always has all of them."""

    BENCH = auto()  # table of `deploy bench`
    COMPARE = auto()  # side by side in `deploy compare` and in a report of several results
    RATE = auto()  # throughput table of the report
    WAIT = auto()  # latency table of the report
    LAYOUT = auto()  # best rate of each layout and system
    CARD = auto()  # headline of the report, at the knee


def count(value: float) -> str:
    """Format a throughput as an integer with thousands separators, or with one decimal below 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def seconds(value: float) -> str:
    """Format seconds with two decimals, or with three below 0.1 s."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def share(value: float) -> str:
    """Format a share of 1 as a percentage; only exactly 1 is shown as 100 %."""
    text = f"{value * 100:.1f}".removesuffix(".0")
    return f"{'99.9' if text == '100' and value < 1 else text} %"


def usd(value: float) -> str:
    """Format US dollars, to the cent."""
    return f"${value:,.2f}"


def plain(value: float) -> str:
    """Format any other number with three significant digits, or as an integer from 1000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@dataclass(frozen=True)
class ReportMetric:
    """One metric: its value in a point, and its format.

    `key` is its name in `report.json`. A published rate with a field of this name is compared with it.
    """

    key: str
    name: str
    unit: str
    format: Callable[[float], str]
    value_of: Callable[[Point], float | None]
    _: KW_ONLY
    displays: DisplayIn
    higher_is_better: bool = True
    exact: bool = False  # compared with published values without tolerance
    if_measured: bool = False  # omitted where no point has it
    unpublished: str = "not published"  # shown for a published layout

    @property
    def relative(self) -> bool:
        """Whether a change is shown relative to the value; for a share that would be ambiguous."""
        return self.format is not share

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} {self.unit}".rstrip()

    @property
    def inline_title(self) -> str:
        """The name for use within a sentence, with the unit unless it is a time."""
        return self.name if self.unit in _TIMES else self.title

    @property
    def heading(self) -> str:
        """The name for the start of a line."""
        return f"{self.inline_title[0].upper()}{self.inline_title[1:]}"

    def with_unit(self, value: float | None) -> str:
        """Format `value`, with its unit if it is a time."""
        unit = f" {self.unit}" if self.unit in _TIMES and value is not None else ""
        return f"{self.text(value)}{unit}"

    def text(self, value: float | None, absent: str = NOT_MEASURED) -> str:
        """Format `value`; return `absent` for None."""
        return absent if value is None else self.format(value)


def cache_hit_rate(point: Point) -> float | None:
    """Return the share of cached prompt tokens, from response usage or else from the server counters."""
    if point.cache is None:
        return None
    return point.cache.usage_share if point.cache.usage_share is not None else point.cache.metrics_share


def usd_per_million_tokens(usd_per_hour: float | None, tok_per_s: float | None) -> float | None:
    """Return USD per million tokens at a price per node-hour; None if either value is unknown."""
    if usd_per_hour is None or not tok_per_s or tok_per_s < _MIN_TOKENS_PER_S:
        return None
    return usd_per_hour / 3600 / tok_per_s * 1e6


def steady_state(point: Point) -> Throughput | None:
    """Return the throughput of the steady window, or of the full run for a closed loop or a trace.

    A closed loop has a constant load; with sessions, its window ends before the load falls. A trace has no steady
    state.
    """
    return point.window or (point.full_run if point.concurrency is not None or point.sessions else None)


def _output(throughput: Throughput | None) -> float | None:
    return throughput.output_tok_per_s if throughput else None


def _per_gpu(point: Point) -> float | None:
    return throughput.output_tok_per_s_per_gpu if (throughput := steady_state(point)) else None


def _latency(percentile: str, latency: str, scale: float = 1.0) -> Callable[[Point], float | None]:
    """Return a function from a point to a percentile of a latency; both arguments are field names."""

    def value_of(point: Point) -> float | None:
        distribution = getattr(point.latency, latency, None)
        return getattr(distribution, percentile) * scale if distribution else None

    return value_of


def _per_user(percentile: str) -> Callable[[Point], float | None]:
    """Return a function from a point to tokens/s per user: the inverse of this percentile of TPOT.

    With `p90`, this is the rate that 90 % of the answers reach: InferenceX's interactivity.
    """
    tpot = _latency(percentile, "tpot_s")
    return lambda point: 1 / wait if (wait := tpot(point)) and wait > _MIN_TOKENS_PER_S else None


def _total(point: Point) -> float | None:
    """Return prompt and output tokens per second of sessions, including cached prompt tokens."""
    throughput = steady_state(point)
    return throughput.total_tok_per_s if throughput and point.sessions else None


def _uncached(point: Point) -> float | None:
    """Return the prompt tokens of sessions that were not read from the cache."""
    cached = cache_hit_rate(point)
    return point.input_tokens * max(0.0, 1 - cached) if point.sessions and cached is not None else None


def _from(tier: str) -> Callable[[Point], float | None]:
    """Return a function from a point to its prompt tokens from one tier of the cache; None without several tiers."""
    of_server = f"cached_{tier}_tokens"
    return lambda p: getattr(p.server, of_server) if p.server and p.server.cached_host_tokens is not None else None


def accept_length(point: Point) -> float | None:
    """Return the accepted tokens per verification step, as counted by the server; None without speculation."""
    return point.server.accept_length if point.server else None


def _achievable(point: Point) -> float | None:
    """Return the share of prompt tokens that a cache of this size can serve."""
    return point.cache.achievable_share if point.cache else None


def _energy(value: str) -> Callable[[Point], float | None]:
    """Return a function from a point to a field of its energy; None for an invalid reading."""
    return lambda point: getattr(point.energy, value) if point.energy and point.energy.valid else None


def _duration_metric(
    key: str,
    name: str,
    unit: str,
    show: Callable[[float], str],
    of: Callable[[Point], float | None],
    *,
    also: DisplayIn = DisplayIn.WAIT,
) -> ReportMetric:
    return ReportMetric(key, name, unit, show, of, displays=DisplayIn.WAIT | also, higher_is_better=False)


_BENCH: Final = DisplayIn.BENCH
_JOULES: Final = "joules_per_output_token"  # fields of `Energy`
_PER_WATT: Final = "output_tok_per_s_per_watt"
_TIERS: Final = ("device", "host", "storage")  # cache tiers
_TABLES: Final = DisplayIn.BENCH | DisplayIn.COMPARE | DisplayIn.RATE
_ALL: Final = _TABLES | DisplayIn.LAYOUT | DisplayIn.CARD

# key, name, unit, format, value
METRICS: Final = (
    ReportMetric("achieved_rps", "achieved", "rps", plain, lambda point: point.achieved_rps, displays=_BENCH),
    ReportMetric(
        "output_tok_s",
        "output tok/s",
        "per node",
        count,
        lambda p: _output(steady_state(p)),
        displays=_TABLES | DisplayIn.CARD,
    ),
    ReportMetric(
        "output_tok_s_gpu", "output tok/s", "per GPU", count, _per_gpu, displays=DisplayIn.COMPARE | DisplayIn.RATE
    ),
    ReportMetric(
        "user_tok_s",
        "tok/s",
        "per user",
        count,
        _per_user("p50"),
        displays=DisplayIn.COMPARE | DisplayIn.RATE | DisplayIn.CARD,
    ),
    ReportMetric(
        "full_run_tok_s", "full run", "tok/s", count, lambda point: _output(point.full_run), displays=DisplayIn.BENCH
    ),
    _duration_metric(
        "ttft_p50_s", "TTFT p50", "s", seconds, _latency("p50", "ttft_s"), also=DisplayIn.BENCH | DisplayIn.COMPARE
    ),
    _duration_metric("ttft_p95_s", "TTFT p95", "s", seconds, _latency("p95", "ttft_s"), also=_ALL ^ DisplayIn.RATE),
    _duration_metric("ttft_p99_s", "TTFT p99", "s", seconds, _latency("p99", "ttft_s")),
    _duration_metric(
        "tpot_p50_ms", "TPOT p50", "ms", plain, _latency("p50", "tpot_s", 1e3), also=_TABLES ^ DisplayIn.RATE
    ),
    _duration_metric("tpot_p95_ms", "TPOT p95", "ms", plain, _latency("p95", "tpot_s", 1e3)),
    _duration_metric("tpot_p99_ms", "TPOT p99", "ms", plain, _latency("p99", "tpot_s", 1e3)),
    _duration_metric("itl_p50_ms", "ITL p50", "ms", plain, _latency("p50", "itl_per_chunk_s", 1e3)),
    _duration_metric("itl_p95_ms", "ITL p95", "ms", plain, _latency("p95", "itl_per_chunk_s", 1e3)),
    _duration_metric("e2e_p50_s", "E2E p50", "s", seconds, _latency("p50", "e2e_s"), also=DisplayIn.COMPARE),
    _duration_metric("e2e_p95_s", "E2E p95", "s", seconds, _latency("p95", "e2e_s"), also=DisplayIn.CARD),
    _duration_metric("e2e_p99_s", "E2E p99", "s", seconds, _latency("p99", "e2e_s")),
    ReportMetric(
        "user_tok_s_p90", "tok/s p90", "per user", count, _per_user("p90"), displays=DisplayIn.COMPARE | DisplayIn.WAIT
    ),
    ReportMetric(
        "goodput_rps",
        "goodput",
        "rps",
        plain,
        lambda point: point.goodput_rps,
        displays=DisplayIn.COMPARE | DisplayIn.WAIT,
        if_measured=True,
    ),
    ReportMetric(
        "success_share", "success", "", share, lambda point: point.success_share, displays=_TABLES, exact=True
    ),
    ReportMetric("cache_hit_rate", "from cache", "", share, cache_hit_rate, displays=_TABLES | DisplayIn.CARD),
    ReportMetric("achievable_share", "achievable", "from cache", share, _achievable, displays=_BENCH, if_measured=True),
    *(
        ReportMetric(key, name, unit, show, of, displays=_TABLES, if_measured=True)
        for key, name, unit, show, of in (
            ("total_tok_s", "total tok/s", "with cached", count, _total),
            ("input_tokens", "input", "tokens", plain, lambda point: point.input_tokens if point.sessions else None),
            ("uncached_input_tokens", "uncached", "input tokens", plain, _uncached),
            *((f"cached_{tier}_tokens", f"from {tier}", "tokens", plain, _from(tier)) for tier in _TIERS),
        )
    ),
    ReportMetric("accept_length", "accepted", "tokens a step", plain, accept_length, displays=_TABLES | DisplayIn.CARD),
    ReportMetric(
        "usd_per_million",
        "$/M",
        "output tok",
        usd,
        lambda point: point.usd_per_million_output_tokens,
        displays=_ALL,
        higher_is_better=False,
        unpublished="no price",
    ),
    ReportMetric(_JOULES, "J", "per output tok", plain, _energy(_JOULES), displays=_ALL, higher_is_better=False),
    ReportMetric(_PER_WATT, "output tok/s", "per watt", plain, _energy(_PER_WATT), displays=_TABLES | DisplayIn.LAYOUT),
)


def metrics_for(display: DisplayIn) -> tuple[ReportMetric, ...]:
    """Return the metrics shown in `display`, in order."""
    return tuple(metric for metric in METRICS if display & metric.displays)


BY_KEY: Final = {metric.key: metric for metric in METRICS}
OUTPUT: Final = BY_KEY["output_tok_s"]
CACHED: Final = BY_KEY["cache_hit_rate"]
OUTPUT_PER_GPU: Final = BY_KEY["output_tok_s_gpu"]
PER_USER: Final = BY_KEY["user_tok_s"]
TTFT_P95: Final = BY_KEY["ttft_p95_s"]
TPOT_P50: Final = BY_KEY["tpot_p50_ms"]
USD: Final = BY_KEY["usd_per_million"]
PER_WATT: Final = BY_KEY[_PER_WATT]
JOULES: Final = BY_KEY[_JOULES]


def result_text(result: BenchResult) -> str:
    """Format a result for a terminal: points, reasons against sustained points, knee, comparability issues.

    The table omits a metric that no point has.
    """
    bench = metrics_for(DisplayIn.BENCH)
    measured = [metric for metric in bench if any(metric.value_of(point) is not None for point in result.points)]
    units = ("", *(metric.unit for metric in measured), "")
    rows = [
        (point.label, *(metric.text(metric.value_of(point), "-") for metric in measured), _SUSTAINED[point.sustained])
        for point in result.points
    ]
    return "\n".join(
        [table(("load", *(metric.name for metric in measured), "sustained"), [units, *rows]), *_remarks(result)]
    )


def forecast_text(forecast: CacheForecast) -> str:
    """Return the forecast in one line."""
    needed = " or ".join(f"{size.tokens:,} for {share(size.share)}" for size in forecast.sizes[-3:])
    text = f"achievable from the prefix cache: {share(forecast.unlimited_share)} of the prompt tokens"
    if forecast.sampled_share is not None:
        text += f", estimated from {share(forecast.sampled_share)} of the blocks"
    if needed:
        text += f"; tokens of cache {'per DP rank ' if forecast.dp_ranks > 1 else ''}needed: {needed}"
    if forecast.cache_tokens is None or forecast.share is None:
        return text
    text += f"; this server with {forecast.cache_tokens:,}: {share(forecast.share)}"
    return text


def knee_text(result: BenchResult) -> str:
    """Return the knee, and the unjudged rates between it and the first unsustained rate."""
    unjudgeable = ", ".join(f"{rate:g}" for rate in rates_without_verdict(result.points))
    if result.knee_rps is None:
        return f"not judged at {unjudgeable} rps" if unjudgeable else "none found"
    at_least = "" if result.knee_reached else "at least "
    return f"{at_least}{result.knee_rps:g} rps" + (f"; {unjudgeable} rps not judged" if unjudgeable else "")


def _knee(result: BenchResult) -> str:
    text = f"knee: {knee_text(result)}"
    if rates_without_verdict(result.points):
        return f"{text}; measure longer with `--requests` or `--duration`"
    if result.knee_rps is None or result.knee_reached:
        return text
    return f"{text}, not reached; measure higher rates with `--request-rate`"


def _remarks(result: BenchResult) -> Iterator[str]:
    yield ""
    for point in result.points:
        yield from (f"{point.label}: {reason}" for reason in point.not_sustained_because)
        yield from (f"{point.label}: {failure.count} x {failure.kind}: {failure.example}" for failure in point.failures)
    if result.run.cache_forecast is not None:
        yield forecast_text(result.run.cache_forecast)
    if result.run.client is None and not all(point.sessions for point in result.points):
        yield _knee(result)
    for issue in result.comparability_issues:
        at_point = f" at {issue.point}" if issue.point else ""
        yield f"NOT COMPARABLE ({issue.kind.value}{at_point}): {issue.detail}"
