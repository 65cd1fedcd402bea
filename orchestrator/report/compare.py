"""The comparison of a result with published metrics, row by row. Pure.

Throughput is output tok/s per node in the steady window; TTFT counts from the scheduled arrival. Metrics without a
measurement are None.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.metrics import ReportMetric
from orchestrator.bench.published import PriceBook, Published, PublishedRate
from orchestrator.bench.result import BenchResult, ComparabilityIssue, IssueKind, Point
from orchestrator.bench.steady_state import rates_without_verdict

UNKNOWN_LAYOUT: Final = "unknown layout"


class Agreement(StrEnum):
    """The verdict on a measured metric compared with the published one."""

    BETTER = "better"
    WITHIN = "within tolerance"
    WORSE = "worse"
    UNTESTABLE = "cannot be tested"
    NOT_COMPARABLE = "not comparable"
    NOT_MEASURED = "not measured"
    NOT_PUBLISHED = "not published"


@dataclass(frozen=True, kw_only=True)
class ComparedMetric:
    """One metric, measured and published, in its own unit."""

    measured: float | None
    published: float | None
    agreement: Agreement
    note: str = ""

    @property
    def change(self) -> float | None:
        """Measured / published - 1; None if either is missing."""
        if self.measured is None or not self.published:
            return None
        return self.measured / self.published - 1


@dataclass(frozen=True, kw_only=True)
class RateRow:
    """The metrics at one offered rate (requests/s) or one concurrency.

    `load_tok_s` is the output tok/s of the offered rate in a steady state: rate times output length.
    """

    rate_rps: float | None
    concurrency: int | None = None
    load_tok_s: float | None
    metrics: Mapping[str, ComparedMetric]  # by metric key
    sustained: bool | None
    not_sustained_because: tuple[str, ...]

    @property
    def load(self) -> str:
        """The offered load as text."""
        return f"{metrics.plain(self.rate_rps)} rps" if self.rate_rps is not None else f"{self.concurrency} at a time"

    def of(self, metric: ReportMetric) -> ComparedMetric:
        """Return the compared values of a metric."""
        return self.metrics[metric.key]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One result compared with the published measurement; `caveats` limit the verdicts, `reasons` rule them out."""

    name: str  # label from the user, else the layout; duplicates have a number
    system: str
    layout: str
    result: BenchResult
    reasons: tuple[ComparabilityIssue, ...]
    caveats: tuple[str, ...]
    rows: tuple[RateRow, ...]
    knee_rps: ComparedMetric | None
    knee_reached: bool  # False: the knee is at or above the highest measured rate
    ttft_limit_s: float | None  # from the workload of the result
    single_stream_tok_s: ComparedMetric | None
    usd_per_gpu_hour: float | None
    price_source: str

    @property
    def without_knee(self) -> str:
        """The reason for a missing knee: no sustained rate, or rates that could not be judged."""
        unjudgeable = [row for row in self.rows if row.sustained is None and row.not_sustained_because]
        if len(unjudgeable) == len(self.rows) > 0:
            return f"not judged: {unjudgeable[-1].not_sustained_because[0]}"
        rates = ", ".join(f"{rate:g}" for rate in rates_without_verdict(self.result.points))
        return "no sustained rate found" + (f"; {rates} rps not judged" if rates else "")

    @property
    def label(self) -> str:
        """A short description: the label from the user, else the name with layout and system."""
        if self.result.run.label is not None:
            return self.name
        if self.layout == UNKNOWN_LAYOUT or self.name.startswith(self.layout):
            return f"{self.name} on {self.system}"
        return f"{self.name} ({self.layout} on {self.system})"

    @property
    def comparable(self) -> bool:
        """Whether the result has no comparability issue."""
        return not self.reasons

    @property
    def best(self) -> RateRow | None:
        """The row of the knee (highest sustained rate), or None."""
        knee = self.result.knee_rps
        same = (row for row in self.rows if knee and row.rate_rps and math.isclose(row.rate_rps, knee, rel_tol=1e-6))
        return next(same, None)


def compare(result: BenchResult, published: Published | None, prices: PriceBook) -> Comparison:
    """Compare a result with `published`, if given; a price saved in the result overrides published ones in `prices`."""
    reasons, caveats = find_reasons(result, published), _caveats(result, published)
    ablation = published.reproduce.ablation_of(result.run.provenance.name) if published else None
    layout = layout_name(result)
    reported = result.run.provenance.name or f"{engine_name(result)} {result.run.endpoint.served_model}"
    name = reported if layout == UNKNOWN_LAYOUT else layout
    price, source = _price(result, prices)
    terms = ComparisonTerms(tolerance=published.tolerance if published else 0.0, comparable=not reasons)
    closed = any(point.concurrency is not None for point in result.points)
    single = any(point.concurrency == 1 for point in result.points)
    rates_published = published.rates if published and not caveats and _is_of(result, published.workload.name) else ()
    knee = terms.compare(
        result.knee_rps,
        published.knee.rate_rps if published and rates_published else None,
        note=published.knee.caveat if published else "",
    )
    return Comparison(
        name=f"{name}, {ablation.name}" if ablation else name,
        system=system_name(result),
        layout=layout,
        result=result,
        reasons=reasons,
        caveats=(*caveats, *_checkpoint_caveat(result, published)),
        rows=_rows(result, rates_published, price=price, terms=terms),
        knee_rps=None if closed else knee,
        knee_reached=result.knee_reached,
        ttft_limit_s=_ttft_limit(result),
        single_stream_tok_s=_single_stream(result, published, terms) if single else None,
        usd_per_gpu_hour=price,
        price_source=source,
    )


def _price(result: BenchResult, prices: PriceBook) -> tuple[float | None, str]:
    """Return USD per GPU-hour and its source: given now, else given at the measurement, else published."""
    price, source = prices.gpu_price(result.run.provenance.gpu)
    if source != "given" and result.run.price is not None:
        return result.run.price.usd_per_gpu_hour, result.run.price.source
    return price, source


def find_reasons(result: BenchResult, published: Published | None) -> tuple[ComparabilityIssue, ...]:
    """Return all comparability issues: those of the result, another workload, another system.

    A changed workload is an issue only for a comparison with published metrics.
    """
    own_issues = (
        issue for issue in result.comparability_issues if published or issue.kind is not IssueKind.CHANGED_WORKLOAD
    )
    mismatches = mismatch_reasons(result, published) if published else ()
    return (*own_issues, *(ComparabilityIssue(kind=kind, detail=detail) for kind, detail in mismatches))


def mismatch_reasons(result: BenchResult, published: Published) -> Iterator[tuple[IssueKind, str]]:
    """Yield the issues that prevent a comparison with `published`: another workload, an ablation, another system."""
    if not _is_of(result, published.workload.name, published.single_stream.workload):
        yield IssueKind.ANOTHER_WORKLOAD, f"measured {result.run.workload_name}, published {published.workload.name}"
    if (ablation := published.reproduce.ablation_of(result.run.provenance.name)) is not None:
        yield IssueKind.ABLATION, f"an ablation ({ablation.claim})"
    systems = {layout.system for layout in published.layouts}
    if result.run.provenance.gpu is None:
        yield IssueKind.UNKNOWN_HARDWARE, "the result has no hardware"
    elif system_name(result) not in systems:
        names = " and ".join(sorted(systems))
        yield IssueKind.ANOTHER_HARDWARE, f"measured on {system_name(result)}, published for {names}"


def _is_of(result: BenchResult, *workloads: str) -> bool:
    return result.run.workload_name in workloads


def _ttft_limit(result: BenchResult) -> float | None:
    slo = result.run.workload.get("slo")
    limit = slo.get("ttft_p95_s") if isinstance(slo, dict) else None
    return float(limit) if isinstance(limit, int | float) and 0 < limit < math.inf else None


def system_name(result: BenchResult) -> str:
    """Return the GPU count and model of a result, such as `8×MI355X`."""
    provenance = result.run.provenance
    if provenance.gpu is None:
        return "unknown hardware"
    return f"{provenance.gpus}×{provenance.gpu.upper()}" if provenance.gpus else provenance.gpu.upper()


def layout_name(result: BenchResult) -> str:
    """Return the layout, such as `TP8` or `TP4×DP2`, from the user or the plan.

    For a URL, only the number of data-parallel ranks may be known: `DP2`.
    """
    if (provenance_layout := result.run.provenance.layout) is not None:
        return provenance_layout
    layout = (result.run.provenance.plan or {}).get("layout")
    tp, dp = (layout.get("tp"), layout.get("dp")) if isinstance(layout, dict) else (None, None)
    if not (isinstance(tp, int) and isinstance(dp, int)):
        dp_ranks = result.run.endpoint.dp_ranks
        return f"DP{dp_ranks}" if dp_ranks > 1 else UNKNOWN_LAYOUT
    return f"TP{tp}×DP{dp}" if dp != 1 else f"TP{tp}"


def engine_name(result: BenchResult) -> str:
    """Return the engine of a result with its version, if known."""
    facts = result.run.endpoint
    return f"{facts.engine} {facts.engine_version or ''}".rstrip()


@dataclass(frozen=True, kw_only=True)
class ComparisonTerms:
    """The terms of a comparison: a relative tolerance, and whether the result may be judged at all."""

    tolerance: float
    comparable: bool

    def compare(
        self,
        measured: float | None,
        published: float | None,
        *,
        higher_is_better: bool = True,
        exact: bool = False,
        note: str = "",
    ) -> ComparedMetric:
        """Compare a measured value with a published one; `exact` sets the tolerance to 0."""
        tolerance = 0.0 if exact else self.tolerance
        if measured is None:
            agreement = Agreement.NOT_MEASURED
        elif published is None:
            agreement = Agreement.NOT_PUBLISHED
        elif not self.comparable:
            agreement = Agreement.NOT_COMPARABLE
        elif abs(change := measured / published - 1) <= tolerance + 1e-9:
            agreement = Agreement.WITHIN
        else:
            agreement = Agreement.BETTER if (change > 0) == higher_is_better else Agreement.WORSE
        return ComparedMetric(measured=measured, published=published, agreement=agreement, note=note)


def _caveats(result: BenchResult, published: Published | None) -> tuple[str, ...]:
    """Return a caveat if system or layout differ from the published table: its rates then do not apply."""
    if published is None:
        return ()
    main = f"{published.rates_layout} on {published.rates_system}"
    label = f"{layout_name(result)} on {system_name(result)}"
    if label == main or result.run.workload_name != published.workload.name:
        return ()
    return (f"the published rates are for {main}, not for {label}; its best is listed with the published layouts",)


def _checkpoint_caveat(result: BenchResult, published: Published | None) -> Iterator[str]:
    """Yield a caveat: the measured checkpoint, and whether it is like the published one."""
    model = (result.run.provenance.plan or {}).get("model")
    name = model.get("name") if isinstance(model, dict) else None
    published_model = published.reproduce.published_model if published else None
    if published_model is not None and (kind := published_model.describe(name)):
        yield f"the checkpoint is `{name}`, {kind}"


def _rows(
    result: BenchResult, published_rates: tuple[PublishedRate, ...], *, price: float | None, terms: ComparisonTerms
) -> tuple[RateRow, ...]:
    """Return one row per rate, measured or published for this system and layout, then one per concurrency."""
    gpus = result.run.provenance.gpus
    hourly = price * gpus if price and gpus else None
    priced = tuple(
        replace(
            point, usd_per_million_output_tokens=metrics.usd_per_million_tokens(hourly, metrics.OUTPUT.value_of(point))
        )
        for point in result.points
    )
    measured = {point.offered_rps: point for point in priced if point.offered_rps is not None}
    table = {line.rate_rps: line for line in published_rates}
    stated = result.run.workload.get("output_tokens")
    output_tokens = stated if isinstance(stated, int) and 0 < stated < 1 << 53 else None
    rated = (
        _row(
            measured.get(rate),
            table.get(rate),
            rate_rps=rate,
            load_tok_s=output_tokens and rate * output_tokens,
            terms=terms,
        )
        for rate in sorted({*measured, *table})
    )
    closed = (_row(point, None, rate_rps=None, load_tok_s=None, terms=terms) for point in priced if point.concurrency)
    return (*rated, *closed)


def _row(
    point: Point | None,
    line: PublishedRate | None,
    *,
    rate_rps: float | None,
    load_tok_s: float | None,
    terms: ComparisonTerms,
) -> RateRow:
    published = line.model_dump() if line else {}
    values = {
        metric.key: terms.compare(
            metric.value_of(point) if point else None,
            published.get(metric.key),
            higher_is_better=metric.higher_is_better,
            exact=metric.exact,
        )
        for metric in metrics.METRICS
    }
    values[metrics.OUTPUT.key] = _against_load(values[metrics.OUTPUT.key], load_tok_s, terms.tolerance)
    return RateRow(
        rate_rps=rate_rps,
        concurrency=point.concurrency if point else None,
        load_tok_s=load_tok_s,
        metrics=values,
        sustained=point.sustained if point else None,
        not_sustained_because=point.not_sustained_because if point else (),
    )


def _against_load(metric: ComparedMetric, load_tok_s: float | None, tolerance: float) -> ComparedMetric:
    """Mark a published throughput as not testable if it differs from the steady-state output of its own load."""
    if metric.published is None or load_tok_s is None or abs(metric.published / load_tok_s - 1) <= tolerance:
        return metric
    note = f"published {metric.published:,.0f} is {metric.published / load_tok_s:.2f} times the load of this rate"
    was_compared = metric.agreement not in {Agreement.NOT_MEASURED, Agreement.NOT_COMPARABLE}
    return replace(metric, agreement=Agreement.UNTESTABLE if was_compared else metric.agreement, note=note)


def _single_stream(result: BenchResult, published: Published | None, terms: ComparisonTerms) -> ComparedMetric:
    """Compare the output tok/s of a single stream, the inverse of the median TPOT."""
    target = published.single_stream if published and _is_of(result, published.single_stream.workload) else None
    tpot = next((point.latency.tpot_s for point in result.points if point.concurrency == 1 and point.latency), None)
    measured = 1 / tpot.p50 if tpot and tpot.p50 > 0 else None
    if target is None:
        return terms.compare(measured, None)
    allowed = replace(terms, comparable=terms.comparable and layout_name(result) == target.layout)
    return allowed.compare(measured, target.output_tok_s, note=target.caveat)
