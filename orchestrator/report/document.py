"""The report as data: everything that its three renderings show, decided once. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.core.errors import UsageError
from orchestrator.plan import flat
from orchestrator.report.accepted import accepted_text
from orchestrator.report.compare import Comparison, compare
from orchestrator.report.economics import Costs, NodePower, costs_of
from orchestrator.report.published import (
    PriceBook,
    Prices,
    Published,
    PublishedEval,
    PublishedLayout,
    Reference,
    of_kind,
)
from orchestrator.results import BenchResult, Judgement, Outcome, figures, judge_independent, judge_outcomes

_UNKNOWN: Final = NodePower()


@dataclass(frozen=True, kw_only=True)
class LayoutRow:
    """The best of one layout on one system, published or measured; `tok_s` is output tok/s per node."""

    system: str
    layout: str
    comparison: int | None  # which result was measured, counted from 0; None for a published line
    comparable: bool
    rate_rps: float | None
    tok_s: float
    change: float | None  # measured over the published best of the same system and layout, minus 1
    figures: Mapping[str, float | None]  # the others at that rate, by the key of `results.figures`
    note: str


@dataclass(frozen=True, kw_only=True)
class EvalRow:
    """Two scores of one suite; `judgement` is None where no sample size is known."""

    title: str
    measured: bool
    baseline_label: str
    candidate_label: str
    baseline: float
    candidate: float
    judgement: Judgement | None
    caveat: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One value of the configuration that is not the same in all results: of each its own, "" where it has none."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AblationRow:
    """One figure with something and without it, both measured here."""

    name: str
    claim: str
    figure: str  # with its unit
    without: float
    whole: float

    @property
    def ratio(self) -> float:
        """How many times as much with it."""
        return self.whole / self.without


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole report; `published` is None where nothing that was published is of the same kind."""

    title: str
    published: Published | None
    comparisons: tuple[Comparison, ...]
    differences: tuple[Difference, ...]
    layouts: tuple[LayoutRow, ...]
    evals: tuple[EvalRow, ...]
    ablations: tuple[AblationRow, ...]
    published_usd_per_hour: float | None  # of the whole node that the published rates were measured on
    references: tuple[Reference, ...]
    price_notes: tuple[str, ...]
    costs: Costs | None

    @property
    def headline(self) -> tuple[str, ...]:
        """The outcome, a sentence a result, after how many of them must not be compared."""
        if self.published is None:
            return tuple(_own_sentence(comparison) for comparison in self.comparisons)
        judged = [comparison for comparison in self.comparisons if comparison.comparable]
        forbidden = len(self.comparisons) - len(judged)
        sentences = tuple(_sentence(comparison, self.references) for comparison in judged)
        if not forbidden:
            return sentences
        return (
            f"{forbidden} of {len(self.comparisons)} results must not be compared with what was published.",
            *sentences,
        )


def build_report(
    results: tuple[BenchResult, ...],
    *,
    published: Published | None,
    everything: tuple[Published | Reference | Prices, ...],
    prices: PriceBook,
    evals: tuple[tuple[Outcome | None, Outcome], ...] = (),
    title: str = "",
    power: NodePower = _UNKNOWN,
) -> Report:
    """Put a report together. `evals` are pairs of baseline and candidate; without one, the published baseline is it."""
    comparisons = _numbered(tuple(compare(result, published, prices) for result in results))
    said = published.evals if published else ()
    return Report(
        title=title or (published.title if published else _own_title(comparisons)),
        published=published,
        comparisons=comparisons,
        differences=_differences(comparisons),
        layouts=_layouts(published, comparisons, prices),
        evals=(*map(_published_eval, said), *(_measured_eval(said, *pair) for pair in evals)),
        ablations=tuple(_ablations(published, comparisons)) if published else (),
        published_usd_per_hour=_hourly(published.rates_system, prices) if published else None,
        references=of_kind(everything, Reference) if published else (),
        price_notes=_price_notes(published, comparisons, prices),
        costs=costs_of(comparisons, prices, power),
    )


def _own_title(comparisons: tuple[Comparison, ...]) -> str:
    models = dict.fromkeys(comparison.result.run.endpoint.served_model for comparison in comparisons)
    systems = dict.fromkeys(comparison.system for comparison in comparisons)
    return f"{', '.join(models)} on {', '.join(systems)}"


def _differences(comparisons: tuple[Comparison, ...]) -> tuple[Difference, ...]:
    """What the plans and the workloads of the results do not have in common."""
    runs = [comparison.result.run for comparison in comparisons]
    sides = [flat({"workload": run.workload, **(run.provenance.plan or {})}) for run in runs]
    keys = sorted({key for side in sides for key in side})
    return tuple(
        Difference(key=key, values=tuple(side.get(key, "") for side in sides))
        for key in keys
        if len({side.get(key) for side in sides}) > 1
    )


def _ablations(published: Published, comparisons: tuple[Comparison, ...]) -> Iterator[AblationRow]:
    """What each ablation answers, where both servers were measured on its workload."""
    measured = {(one.result.run.provenance.name, one.result.run.workload_name): one for one in comparisons}
    for ablation in published.reproduce.ablations:
        for name in ablation.measured:
            without, whole = measured.get((ablation.server, name)), measured.get((ablation.beside, name))
            if without is None or whole is None:
                continue
            with_it = _answers(whole)
            for figure, value in _answers(without).items():
                if value and (other := with_it.get(figure)):
                    yield AblationRow(
                        name=ablation.name, claim=ablation.claim, figure=figure, without=value, whole=other
                    )


def _answers(comparison: Comparison) -> dict[str, float | None]:
    """The figures that say what a thing brings: of one stream, or of the knee."""
    if comparison.single_stream_tok_s is not None:
        return {"single stream, tok/s": comparison.single_stream_tok_s.measured}
    best = comparison.best
    output = best.of(figures.OUTPUT).measured if best else None
    return {"knee, rps": comparison.knee_rps.measured if comparison.knee_rps else None, "knee, tok/s": output}


def _numbered(comparisons: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
    """The same comparisons; the second and later ones of a layout, system and workload carry a number."""
    seen: dict[tuple[str, str], int] = {}
    named = []
    for comparison in comparisons:
        key = (comparison.label, comparison.result.run.workload_name)
        seen[key] = seen.get(key, 0) + 1
        name = f"{comparison.name} ({seen[key]})" if seen[key] > 1 else comparison.name
        named.append(replace(comparison, name=name))
    return tuple(named)


def _sentence(comparison: Comparison, references: tuple[Reference, ...]) -> str:
    figure, unit = comparison.knee_rps, "rps at the knee"
    if comparison.single_stream_tok_s is not None:
        figure, unit = comparison.single_stream_tok_s, "tok/s in a single stream"
    if figure is None or figure.measured is None:
        return f"{comparison.label}: no sustained rate was found."
    beside = f" beside {figure.published:.4g} published: {figure.agreement}" if figure.published is not None else ""
    return f"{comparison.label}: {figure.measured:.4g} {unit}{beside}{accepted_text(comparison, references)}."


def _own_sentence(comparison: Comparison) -> str:
    """What was found of one result, without anything beside it."""
    of, best = f"{comparison.label}, {comparison.result.run.workload_name}", comparison.best
    if (single := comparison.single_stream_tok_s) is not None:
        tok_s = figures.OUTPUT.text(single.measured)
        return f"{of}: {tok_s} tok/s in a single stream{accepted_text(comparison, ())}."
    if best is None:
        return f"{of}: no sustained rate was found."
    rate = f"{best.rate_rps:g} requests a second"
    sustained = f"sustains {rate}" if comparison.knee_reached else f"sustains at least {rate}, the highest measured"
    limit = f", with a limit of {comparison.ttft_limit_s:g} s" if comparison.ttft_limit_s is not None else ""
    ttft, tok_s = (figure.text(best.of(figure).measured) for figure in (figures.TTFT_P95, figures.OUTPUT))
    accepted = accepted_text(comparison, ())
    return f"{of}: {sustained}; there {tok_s} output tok/s per node, TTFT p95 {ttft} s{limit}{accepted}."


def _layouts(
    published: Published | None, comparisons: tuple[Comparison, ...], prices: PriceBook
) -> tuple[LayoutRow, ...]:
    """Published layouts in their own order, each followed by what was measured on it; then what nobody published."""
    candidates = (_measured_layout(index, comparison, published) for index, comparison in enumerate(comparisons))
    measured = [row for row in candidates if row is not None]
    if published is None:
        return tuple(measured)
    rows: list[LayoutRow] = []
    last = {(line.system, line.layout): index for index, line in enumerate(published.layouts)}
    for index, line in enumerate(published.layouts):
        rows.append(_published_layout(line, published, prices))
        here = [row for row in measured if last.get(_match(row, published)) == index]
        rows += here
        measured = [row for row in measured if row not in here]
    return (*rows, *measured)


def _match(row: LayoutRow, published: Published) -> tuple[str, str]:
    """The published line that a measured one stands under: the same layout, or the one of an unpublished layout."""
    known = {(line.system, line.layout) for line in published.layouts}
    unnamed = (row.system, "not published")
    return unnamed if (row.system, row.layout) not in known and unnamed in known else (row.system, row.layout)


def _published_layout(line: PublishedLayout, published: Published, prices: PriceBook) -> LayoutRow:
    at_rate = (row for row in published.rates if row.rate_rps == line.rate_rps)
    is_table = (line.system, line.layout) == (published.rates_system, published.rates_layout)
    row = next(at_rate, None) if is_table else None
    return LayoutRow(
        system=line.system,
        layout=f"{line.layout}, {line.variant}" if line.variant else line.layout,
        comparison=None,
        comparable=True,
        rate_rps=line.rate_rps,
        tok_s=line.output_tok_s,
        change=None,
        figures=dict.fromkeys(figure.key for figure in figures.BY_LAYOUT)
        | {
            figures.TTFT_P95.key: row.ttft_p95_s if row and row.output_tok_s == line.output_tok_s else None,
            figures.USD.key: figures.usd_per_million_tokens(_hourly(line.system, prices), line.output_tok_s),
        },
        note=line.caveat,
    )


def _hourly(system: str, prices: PriceBook) -> float | None:
    """USD per hour of a system written `8×MI355X`."""
    count, _, gpu = system.partition("×")
    price, _ = prices.of(gpu)
    return price * int(count) if price else None


def _measured_layout(index: int, comparison: Comparison, published: Published | None) -> LayoutRow | None:
    best = comparison.best
    tok_s = best.of(figures.OUTPUT).measured if best is not None else None
    if best is None or tok_s is None:
        return None
    row = LayoutRow(
        system=comparison.system,
        layout=comparison.layout,
        comparison=index,
        comparable=comparison.comparable,
        rate_rps=best.rate_rps,
        tok_s=tok_s,
        change=None,
        figures={figure.key: best.of(figure).measured for figure in figures.BY_LAYOUT},
        note="" if comparison.comparable else "not comparable",
    )
    if published is None:
        return row
    key = _match(row, published)
    beside = [line.output_tok_s for line in published.layouts if (line.system, line.layout) == key]
    change = tok_s / max(beside) - 1 if beside and comparison.comparable else None
    return replace(row, change=change)


def _published_eval(line: PublishedEval) -> EvalRow:
    judgement = None
    if line.samples is not None:
        sizes = (line.samples, line.samples)
        judgement = judge_independent(baseline=line.baseline.score, candidate=line.candidate.score, items=sizes)
    return EvalRow(
        title=line.title,
        measured=False,
        baseline_label=line.baseline.shown,
        candidate_label=line.candidate.shown,
        baseline=line.baseline.score,
        candidate=line.candidate.score,
        judgement=judgement,
        caveat=line.caveat,
    )


def _measured_eval(published: tuple[PublishedEval, ...], baseline: Outcome | None, candidate: Outcome) -> EvalRow:
    if baseline is not None:
        judgement, label = judge_outcomes(baseline, candidate), baseline.model
    else:
        line = next((line for line in published if line.suite == candidate.suite and line.samples), None)
        if line is None or line.samples is None:
            raise UsageError(f"no baseline for `{candidate.suite}`", hint="name one with `--baseline FILE`")
        label = f"{line.baseline.label}, published"
        sizes = (line.samples, len(candidate.items))
        judgement = judge_independent(baseline=line.baseline.score, candidate=candidate.score, items=sizes)
    return EvalRow(
        title=f"{candidate.suite}, {candidate.metric}",
        measured=True,
        baseline_label=label,
        candidate_label=candidate.model,
        baseline=judgement.baseline,
        candidate=candidate.score,
        judgement=judgement,
        caveat=f"{judgement.method}, {candidate.harness}",
    )


def _price_notes(
    published: Published | None, comparisons: tuple[Comparison, ...], prices: PriceBook
) -> tuple[str, ...]:
    """Every price that a cost rests on, and what the published throughputs cost at those prices."""
    notes: dict[str, str] = {}
    costs: dict[str, float] = {}
    for line in published.layouts if published else ():
        gpu = line.system.partition("×")[2]
        price, source = prices.of(gpu)
        cost = figures.usd_per_million_tokens(_hourly(line.system, prices), line.output_tok_s)
        if price is None or cost is None:
            continue
        costs[gpu] = min(cost, costs.get(gpu, cost))
        notes.setdefault(f"${price:.2f} per GPU-hour, {source}", gpu)
    for comparison in comparisons:
        if comparison.usd_per_gpu_hour is not None:
            price_text = f"${comparison.usd_per_gpu_hour:.2f} per GPU-hour, {comparison.price_source}"
            notes.setdefault(price_text, comparison.label)
    said = tuple(f"{whose}: {price_text}" for price_text, whose in notes.items())
    return (*said, *(_cost_claim(published, costs) if published else ()))


def _cost_claim(published: Published, costs: dict[str, float]) -> tuple[str, ...]:
    """What the published claims on cost come to, by GPU, at the prices that stand here."""
    if len(costs) != 2:
        return ()
    (cheap, low), (dear, high) = sorted(costs.items(), key=lambda pair: pair[1])
    claims = "; ".join(f"“{claim}”" for claim in published.claims)
    claim = (
        f"at these prices the published throughputs cost ${low:.2f} ({cheap}) and ${high:.2f} ({dear}) per million "
        f"output tokens, {high / low:.2f} times; the post's own claims ({claims}) rest on prices it did not give"
    )
    return (claim,)
