"""Measured beside published, row by row. Pure.

Throughput is output tok/s per node in the steady window; TTFT counts from the scheduled arrival. A figure that was not
measured is None.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.report.prices import PriceBook, usd_per_million_tokens
from orchestrator.report.published import Published, PublishedRate
from orchestrator.results.result import Point, Result


class Verdict(StrEnum):
    """What a measured figure says beside a published one."""

    BETTER = "better"
    WITHIN = "within tolerance"
    WORSE = "worse"
    UNTESTABLE = "cannot be tested"
    NOT_COMPARABLE = "not comparable"
    NOT_MEASURED = "not measured"
    NOT_PUBLISHED = "not published"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure, measured and published, in the unit of the field that holds it."""

    measured: float | None
    published: float | None
    verdict: Verdict
    note: str = ""

    @property
    def change(self) -> float | None:
        """Measured over published, minus 1; None where either is missing."""
        if self.measured is None or not self.published:
            return None
        return self.measured / self.published - 1


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One reason why a result must not be compared with the published one; `point` is "" for all of it."""

    kind: str
    detail: str
    point: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One offered rate. `load_tok_s` is what that rate emits in a steady state: rate times output length."""

    rate_rps: float
    load_tok_s: float
    output_tok_s: Figure
    ttft_p50_s: Figure
    ttft_p95_s: Figure
    success_share: Figure
    usd_per_million: float | None
    joules_per_output_token: float | None
    cached_share: float | None
    accept_length: float | None
    sustained: bool | None
    not_sustained_because: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One result beside the published measurement. `caveats` limit what the verdicts say; `reasons` forbid them."""

    name: str  # the layout, numbered where the same one was measured several times
    system: str
    layout: str
    result: Result
    reasons: tuple[Reason, ...]
    caveats: tuple[str, ...]
    rows: tuple[Row, ...]
    knee_rps: Figure | None
    single_stream_tok_s: Figure | None
    usd_per_gpu_hour: float | None
    price_source: str

    @property
    def label(self) -> str:
        """What was measured, in a few words."""
        return f"{self.name} on {self.system}"

    @property
    def comparable(self) -> bool:
        """Whether nothing forbids laying this beside the published figures."""
        return not self.reasons

    @property
    def best(self) -> Row | None:
        """The row of the knee: the highest sustained rate."""
        return next((row for row in self.rows if _same_rate(row.rate_rps, self.result.knee_rps)), None)


def compare(result: Result, published: Published, prices: PriceBook) -> Comparison:
    """Set one result beside `published`, with prices from `prices` where the result brings none."""
    reasons, caveats = find_reasons(result, published), _caveats(result, published)
    price, source = _price(result, prices)
    ruler = Ruler(tolerance=published.tolerance, judged=not reasons)
    single = result.run.workload_name == published.single_stream.workload
    beside = () if caveats or result.run.workload_name != published.workload.name else published.rates
    knee = ruler.figure(result.knee_rps, published.knee.rate_rps if beside else None, note=published.knee.caveat)
    return Comparison(
        name=layout_name(result),
        system=system_name(result),
        layout=layout_name(result),
        result=result,
        reasons=reasons,
        caveats=caveats,
        rows=() if single else _rows(result, published, beside, price=price, ruler=ruler),
        knee_rps=None if single else knee,
        single_stream_tok_s=_single_stream(result, published, ruler) if single else None,
        usd_per_gpu_hour=price,
        price_source=source,
    )


def _price(result: Result, prices: PriceBook) -> tuple[float | None, str]:
    """A price given now, else the one given when it was measured, else a published one."""
    price, source = prices.of(result.run.provenance.gpu)
    if source != "given" and result.run.price is not None:
        return result.run.price.usd_per_gpu_hour, result.run.price.source
    return price, source


def find_reasons(result: Result, published: Published) -> tuple[Reason, ...]:
    """Everything that forbids the comparison: the marks of the measurement, another workload, another machine."""
    reasons = [Reason(kind=mark.kind.value, detail=mark.detail, point=mark.point) for mark in result.marks]
    wanted = (published.workload.name, published.single_stream.workload)
    if result.run.workload_name not in wanted:
        detail = f"measured {result.run.workload_name}, published {published.workload.name}"
        reasons.append(Reason(kind="another-workload", detail=detail))
    where = result.run.provenance
    systems = {layout.system for layout in published.layouts}
    if where.gpu is None:
        reasons.append(Reason(kind="unknown-hardware", detail="the result does not say what it ran on"))
    elif system_name(result) not in systems:
        detail = f"measured on {system_name(result)}, published for {' and '.join(sorted(systems))}"
        reasons.append(Reason(kind="another-machine", detail=detail))
    return tuple(reasons)


def system_name(result: Result) -> str:
    """What it ran on, as the field writes it: `8×MI355X`."""
    where = result.run.provenance
    if where.gpu is None:
        return "unknown hardware"
    return f"{where.gpus}×{where.gpu.upper()}" if where.gpus else where.gpu.upper()


def layout_name(result: Result) -> str:
    """The layout as the field writes it, `TP8` or `TP4×DP2`, from the plan; else the name of the server or model."""
    layout = (result.run.provenance.plan or {}).get("layout")
    if not isinstance(layout, dict):
        return result.run.provenance.name or result.run.endpoint.served_model
    dp = f"×DP{layout['dp']}" if layout["dp"] != 1 else ""
    return f"TP{layout['tp']}{dp}"


@dataclass(frozen=True, kw_only=True)
class Ruler:
    """How figures are judged: a tolerance (a share), and whether this result may be judged at all."""

    tolerance: float
    judged: bool

    def figure(
        self,
        measured: float | None,
        published: float | None,
        *,
        higher_is_better: bool = True,
        tolerance: float | None = None,
        note: str = "",
    ) -> Figure:
        """Both figures with what they say of each other."""
        verdict = judge(
            measured,
            published,
            self.tolerance if tolerance is None else tolerance,
            higher_is_better=higher_is_better,
        )
        if not self.judged and verdict not in {Verdict.NOT_MEASURED, Verdict.NOT_PUBLISHED}:
            verdict = Verdict.NOT_COMPARABLE
        return Figure(measured=measured, published=published, verdict=verdict, note=note)


def judge(
    measured: float | None, published: float | None, tolerance: float, *, higher_is_better: bool = True
) -> Verdict:
    """Whether `measured` lies within `tolerance` (a share) of `published`, or on which side of it."""
    if measured is None:
        return Verdict.NOT_MEASURED
    if published is None:
        return Verdict.NOT_PUBLISHED
    change = measured / published - 1
    if abs(change) <= tolerance + 1e-9:
        return Verdict.WITHIN
    return Verdict.BETTER if (change > 0) == higher_is_better else Verdict.WORSE


def cached_share(point: Point) -> float | None:
    """The measured share of prompt tokens from cache: by the answers' own counts, else by the server's counters."""
    if point.cache is None:
        return None
    return point.cache.usage_share if point.cache.usage_share is not None else point.cache.metrics_share


def _caveats(result: Result, published: Published) -> tuple[str, ...]:
    """Another layout than that of the published table is no fault of the measurement, and no verdict on it either."""
    main = f"{published.rates_layout} on {published.rates_system}"
    label = f"{layout_name(result)} on {system_name(result)}"
    if label == main or result.run.workload_name != published.workload.name:
        return ()
    return (f"the published rates are those of {main}, this is {label}; its best stands beside the published layouts",)


def _rows(
    result: Result, published: Published, beside: tuple[PublishedRate, ...], *, price: float | None, ruler: Ruler
) -> tuple[Row, ...]:
    """One row for each rate that was measured, or published for this system and layout."""
    measured = {point.offered_rps: point for point in result.points if point.offered_rps is not None}
    table = {line.rate_rps: line for line in beside}
    stated = result.run.workload.get("output_tokens")
    output_tokens = stated if isinstance(stated, int) else published.workload.output_tokens
    gpus = result.run.provenance.gpus
    hourly = price * gpus if price and gpus else None
    return tuple(
        _row(rate, measured.get(rate), table.get(rate), ruler=ruler, load=rate * output_tokens, hourly=hourly)
        for rate in sorted({*measured, *table})
    )


def _row(
    rate: float, point: Point | None, line: PublishedRate | None, *, ruler: Ruler, load: float, hourly: float | None
) -> Row:
    output = point.window.output_tok_per_s if point and point.window else None
    ttft = point.latency.ttft_from_schedule_s if point and point.latency else None
    energy = point.energy if point and point.energy and point.energy.valid else None
    return Row(
        rate_rps=rate,
        load_tok_s=load,
        output_tok_s=_against_load(ruler.figure(output, line.output_tok_s if line else None), load, ruler.tolerance),
        ttft_p50_s=ruler.figure(ttft.p50 if ttft else None, line.ttft_p50_s if line else None, higher_is_better=False),
        ttft_p95_s=ruler.figure(ttft.p95 if ttft else None, line.ttft_p95_s if line else None, higher_is_better=False),
        success_share=ruler.figure(
            point.success_share if point else None, line.success_share if line else None, tolerance=0.0
        ),
        usd_per_million=usd_per_million_tokens(hourly, output),
        joules_per_output_token=energy.joules_per_output_token if energy else None,
        cached_share=cached_share(point) if point else None,
        accept_length=point.server.accept_length if point and point.server else None,
        sustained=point.sustained if point else None,
        not_sustained_because=point.not_sustained_because if point else (),
    )


def _against_load(figure: Figure, load: float, tolerance: float) -> Figure:
    """A published throughput that is not what its own load emits in a steady state cannot be repeated: say so."""
    if figure.published is None or abs(figure.published / load - 1) <= tolerance:
        return figure
    note = f"published {figure.published:,.0f} is {figure.published / load:.2f} times what this rate can emit"
    judged = figure.verdict not in {Verdict.NOT_MEASURED, Verdict.NOT_COMPARABLE}
    return replace(figure, verdict=Verdict.UNTESTABLE if judged else figure.verdict, note=note)


def _single_stream(result: Result, published: Published, ruler: Ruler) -> Figure:
    """Output tok/s of one stream while it emits: the inverse of the median TPOT."""
    target = published.single_stream
    tpot = next((point.latency.tpot_s for point in result.points if point.concurrency == 1 and point.latency), None)
    measured = 1 / tpot.p50 if tpot and tpot.p50 > 0 else None
    allowed = replace(ruler, judged=ruler.judged and layout_name(result) == target.layout)
    return allowed.figure(measured, target.output_tok_s, note=target.caveat)


def _same_rate(rate: float, other: float | None) -> bool:
    return other is not None and math.isclose(rate, other, rel_tol=1e-6)
