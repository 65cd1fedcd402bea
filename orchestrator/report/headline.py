"""The title and headline of a report. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.confidence import Estimate, change
from orchestrator.bench.result import IssueKind
from orchestrator.report.compare import Comparison, engine_name
from orchestrator.report.configuration import same_load, tiers_of
from orchestrator.report.side_by_side import ConfigurationGroup, SideBySide, SideRow, change_text, estimate_text, signed

_VERDICT_METRICS: Final = (metrics.OUTPUT, metrics.TTFT_P95, metrics.TPOT_P50)


def title_of(comparisons: tuple[Comparison, ...], published: str | None) -> str:
    """Return the title of a report: the published title if a result is comparable with it, else models and systems."""
    if published is not None and any(comparison.comparable for comparison in comparisons):
        return published
    if not comparisons:
        return "evaluations"
    models = dict.fromkeys(comparison.result.run.endpoint.served_model for comparison in comparisons)
    systems = dict.fromkeys(comparison.system for comparison in comparisons)
    return f"{', '.join(models)} on {', '.join(systems)}"


def with_names(comparisons: tuple[Comparison, ...], directories: tuple[str, ...]) -> tuple[Comparison, ...]:
    """Name each comparison after the label from the user, else after its directory, else after its layout.

    `directories` has one entry per comparison, or is empty. Duplicates of name and workload get a number.
    """
    counts: dict[tuple[str, str], int] = {}
    renamed = []
    for index, comparison in enumerate(comparisons):
        label = comparison.result.run.label or (directories[index] if directories else "")
        item = replace(comparison, name=label or comparison.name)
        key = (item.label, item.result.run.workload_name)
        counts[key] = counts.get(key, 0) + 1
        renamed.append(replace(item, name=f"{item.name} ({counts[key]})") if counts[key] > 1 else item)
    return tuple(renamed)


def headline(comparisons: tuple[Comparison, ...], side_by_side: SideBySide, *, published: bool) -> tuple[str, ...]:
    """Return the verdict, then a sentence per configuration, or per result that is comparable with the publication."""
    group_sentences = [_group_sentence(side, comparisons) for side in side_by_side.groups]
    comparable = [comparison for comparison in comparisons if comparison.comparable]
    verdict_lines = tuple(verdict(side_by_side, comparisons))
    if not published:
        return (*verdict_lines, *without_verdict(side_by_side, comparisons), *group_sentences)
    sentences = [_sentence(comparison) for comparison in comparable] or group_sentences
    if not (forbidden := len(comparisons) - len(comparable)):
        return (*verdict_lines, *sentences)
    subject = f"{forbidden} of {len(comparisons)} results" if len(comparisons) > 1 else "The result"
    return (*verdict_lines, f"{subject} must not be compared with the publication.", *sentences)


def _sentence(comparison: Comparison) -> str:
    metric, unit = comparison.knee_rps, "rps at the knee"
    if comparison.single_stream_tok_s is not None:
        metric, unit = comparison.single_stream_tok_s, "tok/s in a single stream"
    if metric is None or metric.measured is None:
        return f"{comparison.label}: {comparison.without_knee}."
    published = f", published {metric.published:.4g}: {metric.agreement}" if metric.published is not None else ""
    return f"{comparison.label}: {metric.measured:.4g} {unit}{published}."


def _group_sentence(side: ConfigurationGroup, comparisons: tuple[Comparison, ...]) -> str:
    """Summarize one configuration without published metrics."""
    members = [comparisons[index] for index in side.runs]
    if len(members) == 1:
        noise = "; one run, so the noise is unknown" if len(comparisons) == 1 and members[0].best else ""
        return f"{side.label}, {side.workload}: {_result_words(members[0])}{noise}."
    subject = f"{side.label}, {side.workload}"
    knees = sorted({member.result.knee_rps for member in members if member.result.knee_rps is not None})
    if not knees:
        return f"{subject}: no sustained rate found in any of them."
    at_least = "" if all(member.knee_reached for member in members) else "at least "
    between = f"{knees[0]:g} to {_requests(knees[-1])}" if len(knees) > 1 else _requests(knees[0])
    return f"{subject}: sustains {at_least}{between}."


def _requests(rate_rps: float) -> str:
    return f"{rate_rps:g} {'request' if rate_rps == 1 else 'requests'} a second"


def _result_words(comparison: Comparison) -> str:
    best = comparison.best
    if (single := comparison.single_stream_tok_s) is not None:
        return f"{metrics.OUTPUT.text(single.measured)} tok/s in a single stream"
    if comparison.rows and comparison.rows[-1].concurrency is not None:
        row = comparison.rows[-1]
        return f"{metrics.OUTPUT.text(row.of(metrics.OUTPUT).measured)} output tok/s per node, {row.load}"
    if best is None:
        return comparison.without_knee
    rate = _requests(best.rate_rps or 0.0)
    sustained = f"sustains {rate}" if comparison.knee_reached else f"sustains at least {rate}, the highest measured"
    limit = f", with a limit of {comparison.ttft_limit_s:g} s" if comparison.ttft_limit_s is not None else ""
    ttft, tok_s = (metric.text(best.of(metric).measured) for metric in (metrics.TTFT_P95, metrics.OUTPUT))
    return f"{sustained}; there {tok_s} output tok/s per node, TTFT p95 {ttft} s{limit}"


def verdict(table: SideBySide, comparisons: tuple[Comparison, ...]) -> Iterator[str]:
    """Yield sentences: which configuration is better, at which metric, by how much, and whether beyond the noise.

    Configurations are compared at the highest load of all, unless their comparability issues differ. With different
    cache tiers, a hit rate off its target is no obstacle, because such tiers are meant to change it.
    """
    names = _names(table, comparisons)
    tiers = {tiers_of(comparison.result.run.provenance) for comparison in comparisons}
    expected = {IssueKind.CACHE_HIT_RATE_OFF_TARGET} if len(tiers) > 1 else set[IssueKind]()
    kinds = [
        {reason.kind for run in side.runs for reason in comparisons[run].reasons} - expected for side in table.groups
    ]
    output = [row for row in table.rows if row.metric == metrics.OUTPUT.key]
    measured = [index for index in range(1, len(names)) if any(row.changes[index] for row in output)]
    compared = [0, *(index for index in measured if kinds[index] == kinds[0])]
    if compared[1:]:
        load = max(reversed(output), key=lambda row: sum(row.changes[index] is not None for index in compared)).load
        at = {row.metric: row for row in table.rows if row.load == load}
        sentences = _differing if table.one_configuration else _better
        measured_at_load = [index for index in compared if at[metrics.OUTPUT.key].estimates[index]]
        yield f"At {load}, {sentences(at, measured_at_load, names)}{_cached(at, measured_at_load, names)}."
        yield from (
            f"No verdict on {names[index]}: not measured at {load}."
            for index in compared
            if index not in measured_at_load
        )
    for column in measured:
        if kinds[column] != kinds[0]:
            only_by_name = {
                names[at]: ", ".join(sorted(kinds[at] - kinds[other])) for at, other in ((column, 0), (0, column))
            }
            issues = " and ".join(f"{name} is NOT COMPARABLE ({only})" for name, only in only_by_name.items() if only)
            yield f"No verdict on {names[column]} and {names[0]}: {issues}."


def without_verdict(table: SideBySide, comparisons: tuple[Comparison, ...]) -> Iterator[str]:
    """Yield the reason for a missing verdict on each configuration without a change of throughput from the first."""
    names = _names(table, comparisons)
    output = [row for row in table.rows if row.metric == metrics.OUTPUT.key]
    firsts = [comparisons[side.runs[0]] for side in table.groups]
    for index in range(1, len(names)):
        if any(row.changes[index] for row in output):
            continue
        reason = "no load has a throughput in both"
        if not same_load(firsts[0], firsts[index]):
            clients = {firsts[item].result.run.client for item in (0, index)}
            reason = "their workloads differ" if len(clients) == 1 else "two programs sent their load"
        elif any(row.estimates[0] and row.estimates[index] for row in output):
            reason = f"{names[0]} has 0 {metrics.OUTPUT.inline_title}"
        yield f"No verdict on {names[index]} and {names[0]}: {reason}."


def _names(table: SideBySide, comparisons: tuple[Comparison, ...]) -> list[str]:
    """Return the names of configurations, with layout and system if names repeat, and the engine if engines differ."""
    names = [side.name for side in table.groups]
    names = [side.name if names.count(side.name) == 1 else side.label for side in table.groups]
    engines = [engine_name(comparisons[side.runs[0]].result) for side in table.groups]
    return [
        name if len({*engines}) == 1 or engine in name else f"{name} ({engine})"
        for name, engine in zip(names, engines, strict=True)
    ]


def _better(at: Mapping[str, SideRow], compared: list[int], names: list[str]) -> str:
    """Compare the best configuration of each metric with the second best, then with the others."""
    by_relation: dict[str, list[str]] = {}
    noise_known = True
    for metric in _VERDICT_METRICS:
        row = at.get(metric.key)
        estimates = [(item, index) for index in compared if row and (item := row.estimates[index])]
        ranked = sorted(estimates, key=lambda pair: pair[0].mean, reverse=metric.higher_is_better)
        if len(ranked) < 2 or (moved := change(ranked[1][0], ranked[0][0])) is None:
            continue
        best, second = (names[index] for _, index in ranked[:2])
        both = f"{best} and {second}"
        noise_known = noise_known and moved.is_significant is not None
        further: list[tuple[Estimate, int]] = []
        if signed(moved.share) == "0 %":
            relation = f"{both} are equal"
        elif moved.is_significant is False:
            relation = f"{both} differ by no more than the noise"
        else:
            beyond = " by more than the noise" if moved.is_significant else ""
            relation, further = f"{best} is better than {second}{beyond}", ranked[2:]
        text = f"{metric.inline_title} {change_text(moved)}"
        for other, column in further:
            difference = change(other, ranked[0][0])
            text += f" and against {names[column]} {change_text(difference)}" if difference else ""
        by_relation.setdefault(relation, []).append(text)
    sentences = "; ".join(f"{relation}: {', '.join(values)}" for relation, values in by_relation.items())
    return sentences if noise_known else f"{sentences}; the noise is unknown, with one run each"


def _differing(at: Mapping[str, SideRow], compared: list[int], names: list[str]) -> str:
    """Describe the noise between two runs of one configuration."""
    moved = ((metric, at[metric.key].changes[1]) for metric in _VERDICT_METRICS if metric.key in at)
    text = ", ".join(f"{metric.inline_title} {change_text(item)}" for metric, item in moved if item is not None)
    both = " and ".join(names[index] for index in compared)
    difference = "differ only by noise, or by something that results do not record"
    return f"{both} have the same configuration and {difference}: {text}"


def _cached(at: Mapping[str, SideRow], compared: list[int], names: list[str]) -> str:
    """State the share of prompt tokens from the prefix cache, if it differs or only some sides report it."""
    if (row := at.get(metrics.CACHED.key)) is None:
        return ""
    shares = {names[index]: estimate_text(metrics.CACHED, row.estimates[index], "not reported") for index in compared}
    return "" if len({*shares.values()}) == 1 else f"; from cache {', '.join(f'{n} {s}' for n, s in shares.items())}"
