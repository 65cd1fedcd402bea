"""The title and headline of a report. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from orchestrator.bench import metrics
from orchestrator.bench.confidence import Change
from orchestrator.bench.metrics import ReportMetric
from orchestrator.bench.published import Reference
from orchestrator.report.acceptance import accepted_text
from orchestrator.report.compare import Comparison, RateRow, engine_name
from orchestrator.report.side_by_side import ConfigurationGroup, SideBySide, change_text, estimate_text, signed

_VERDICTS = ("better", "worse", "within noise", "equal")
_OF_A_CHANGE = (metrics.OUTPUT, metrics.TTFT_P95, metrics.TPOT_P50)


def title_of(comparisons: tuple[Comparison, ...], published: str | None) -> str:
    """Return the title of a report: the published title if a result is comparable with it, else models and systems."""
    if published is not None and any(comparison.comparable for comparison in comparisons):
        return published
    if not comparisons:
        return "evaluations"
    models = dict.fromkeys(comparison.result.run.endpoint.served_model for comparison in comparisons)
    systems = dict.fromkeys(comparison.system for comparison in comparisons)
    return f"{', '.join(models)} on {', '.join(systems)}"


def named(comparisons: tuple[Comparison, ...], directories: tuple[str, ...]) -> tuple[Comparison, ...]:
    """Name each comparison after the label from the user, else after its directory, else after its layout.

    `directories` has one entry per comparison, or is empty. Duplicates of name and workload get a number.
    """
    seen: dict[tuple[str, str], int] = {}
    found = []
    for index, comparison in enumerate(comparisons):
        given = comparison.result.run.label or (directories[index] if directories else "")
        each = replace(comparison, name=given or comparison.name)
        key = (each.label, each.result.run.workload_name)
        seen[key] = seen.get(key, 0) + 1
        found.append(replace(each, name=f"{each.name} ({seen[key]})") if seen[key] > 1 else each)
    return tuple(found)


def headline(
    comparisons: tuple[Comparison, ...], together: SideBySide, references: tuple[Reference, ...], *, published: bool
) -> tuple[str, ...]:
    """Return one sentence per result or configuration, preceded by the number of results that are not comparable.

    `references` are third-party measurements; their number of accepted drafts is shown for comparison.
    """
    own = (*(_own_side(side, comparisons, together) for side in together.sides), *changes(together, comparisons))
    if not published:
        return own
    judged = [comparison for comparison in comparisons if comparison.comparable]
    sentences = tuple(_sentence(comparison, references) for comparison in judged) or own
    if not (forbidden := len(comparisons) - len(judged)):
        return sentences
    of = f"{forbidden} of {len(comparisons)} results" if len(comparisons) > 1 else "The result"
    return (f"{of} must not be compared with the publication.", *sentences)


def _sentence(comparison: Comparison, references: tuple[Reference, ...]) -> str:
    figure, unit = comparison.knee_rps, "rps at the knee"
    if comparison.single_stream_tok_s is not None:
        figure, unit = comparison.single_stream_tok_s, "tok/s in a single stream"
    if figure is None or figure.measured is None:
        return f"{comparison.label}: {comparison.without_knee}."
    beside = f" beside {figure.published:.4g} published: {figure.agreement}" if figure.published is not None else ""
    return f"{comparison.label}: {figure.measured:.4g} {unit}{beside}{accepted_text(comparison, references)}."


def _own_side(side: ConfigurationGroup, comparisons: tuple[Comparison, ...], together: SideBySide) -> str:
    """Summarize one configuration without published metrics."""
    members = [comparisons[index] for index in side.runs]
    if len(members) == 1:
        return f"{side.label}, {side.workload}: {_found(members[0])}{accepted_text(members[0], ())}."
    of = f"{side.label}, {side.workload}"
    knees = sorted({each.result.knee_rps for each in members if each.result.knee_rps is not None})
    if not knees:
        return f"{of}: no sustained rate found in any of them."
    least = "" if all(each.knee_reached for each in members) else "at least "
    between = f"{knees[0]:g}" if len(knees) == 1 else f"{knees[0]:g} to {knees[-1]:g}"
    place, load = together.sides.index(side), f"{metrics.plain(knees[0])} rps"
    at = {row.figure: row.estimates[place] for row in together.rows if row.load == load}
    ttft, tok_s = (estimate_text(figure, at.get(figure.key)) for figure in (metrics.TTFT_P95, metrics.OUTPUT))
    there = "there" if len(knees) == 1 else f"at {load}"
    return (
        f"{of}: sustains {least}{between} requests a second; {there} {tok_s} output tok/s per node, TTFT p95 {ttft} s."
    )


def _found(comparison: Comparison) -> str:
    best = comparison.best
    if (single := comparison.single_stream_tok_s) is not None:
        return f"{metrics.OUTPUT.text(single.measured)} tok/s in a single stream"
    if comparison.rows and comparison.rows[-1].concurrency is not None:
        row = comparison.rows[-1]
        return f"{metrics.OUTPUT.text(row.of(metrics.OUTPUT).measured)} output tok/s per node, {row.load}"
    if (measured := comparison.unjudged) is not None:
        return f"{comparison.without_knee}; at {measured.load} {_two_figures(measured)}"
    if best is None:
        return comparison.without_knee
    rate = f"{best.rate_rps:g} {'request' if best.rate_rps == 1 else 'requests'} a second"
    sustained = f"sustains {rate}" if comparison.knee_reached else f"sustains at least {rate}, the highest measured"
    limit = f", with a limit of {comparison.ttft_limit_s:g} s" if comparison.ttft_limit_s is not None else ""
    return f"{sustained}; there {_two_figures(best)}{limit}"


def _two_figures(row: RateRow) -> str:
    ttft, tok_s = (figure.text(row.of(figure).measured) for figure in (metrics.TTFT_P95, metrics.OUTPUT))
    return f"{tok_s} output tok/s per node, TTFT p95 {ttft} s"


def changes(together: SideBySide, comparisons: tuple[Comparison, ...]) -> Iterator[str]:
    """Yield in what each configuration is better or worse than the first, at the highest load of both.

    A change between configurations with different comparability issues has no meaning.
    """
    engines = [engine_name(comparisons[side.runs[0]].result) for side in together.sides]
    names = [
        side.name if len({*engines}) == 1 or engine in side.name else f"{side.name} ({engine})"
        for side, engine in zip(together.sides, engines, strict=True)
    ]
    kinds = [{reason.kind for run in side.runs for reason in comparisons[run].reasons} for side in together.sides]
    for place, side in enumerate(together.sides):
        base = together.sides[0]
        loads = [row.load for row in together.rows if row.changes[place] and row.figure == metrics.OUTPUT.key]
        if loads and kinds[place] != kinds[0]:
            apart = ", ".join(sorted(kinds[place] ^ kinds[0]))
            yield f"No verdict on {names[place]} and {names[0]}: only one of them has {apart}."
        if not loads or kinds[place] != kinds[0]:
            continue
        at = {row.figure: row.changes[place] for row in together.rows if row.load == loads[-1]}
        said: dict[str, list[str]] = {}
        for figure in _OF_A_CHANGE:
            if found := at.get(figure.key):
                said.setdefault(_verdict(figure, found), []).append(f"{figure.inline_title} {change_text(found)}")
        found_in = "; ".join(f"{verdict} {', '.join(said[verdict])}" for verdict in _VERDICTS if verdict in said)
        once = ", noise unknown" if 1 in {len(side.runs), len(base.runs)} else ""
        cached = _cached(together, loads[-1], {names[0]: 0, names[place]: place})
        yield f"{names[place]} against {names[0]} at {loads[-1]}{once}: {found_in}{cached}."


def _verdict(figure: ReportMetric, found: Change) -> str:
    if signed(found.share) == "0 %":
        return "equal"
    if found.is_significant is False:
        return "within noise"
    return "better" if (found.share > 0) == figure.higher_is_better else "worse"


def _cached(together: SideBySide, load: str, places: Mapping[str, int]) -> str:
    """Name the share of prompt tokens from the prefix cache, if it differs or only one side reports it."""
    rows = (row for row in together.rows if row.figure == metrics.CACHED.key and row.load == load)
    estimates = next((row.estimates for row in rows), None)
    if estimates is None:
        return ""
    shares = {name: estimate_text(metrics.CACHED, estimates[place], "not reported") for name, place in places.items()}
    return "" if len({*shares.values()}) == 1 else f"; from cache {', '.join(f'{n} {s}' for n, s in shares.items())}"
