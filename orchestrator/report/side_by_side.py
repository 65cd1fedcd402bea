"""Configurations side by side, with means and intervals over their runs, and changes between them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.confidence import Change, Estimate, change, estimate
from orchestrator.bench.metrics import ReportMetric
from orchestrator.bench.published import PriceBook
from orchestrator.bench.result import BenchResult
from orchestrator.report.compare import Comparison, RateRow, compare
from orchestrator.report.configuration import same_configuration, same_load

SINGLE_RUNS: Final = "One run each: the noise is unknown. Measure each several times."
ONE_CONFIGURATION: Final = (
    "Both have the same configuration: the differences are noise, or a change that no result records."
)
_ONE_HAS_ISSUES: Final = "Both have the same configuration; the reason for NOT COMPARABLE may explain the differences."
_PAIR: Final = 2  # runs; the interval of two runs would be twelve times as wide as their difference


@dataclass(frozen=True, kw_only=True)
class ConfigurationGroup:
    """One configuration; `runs` are the indices of its results."""

    name: str
    label: str
    workload: str
    runs: tuple[int, ...]
    comparable: bool


@dataclass(frozen=True, kw_only=True)
class SideRow:
    """One metric at one load: the estimate of each configuration, and its change from the first configuration."""

    metric: str  # a metric key
    load: str
    estimates: tuple[Estimate | None, ...]
    changes: tuple[Change | None, ...]


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """All configurations of a report, and the metrics shown side by side."""

    groups: tuple[ConfigurationGroup, ...]
    rows: tuple[SideRow, ...]
    one_configuration: bool = False  # two runs of one configuration, shown as two groups

    @property
    def shared(self) -> tuple[SideRow, ...]:
        """The rows with values from several configurations or runs."""
        return tuple(row for row in self.rows if sum(estimate.runs for estimate in row.estimates if estimate) > 1)

    @property
    def noise(self) -> str:
        """One sentence about the noise of the metrics; "" if there is no comparison."""
        if any(len(side.runs) > 1 for side in self.groups):
            return "± and the ranges behind changes are 95 % intervals, from several runs of one configuration."
        if self.one_configuration:
            same = len({side.comparable for side in self.groups}) == 1
            return (
                f"{ONE_CONFIGURATION if same else _ONE_HAS_ISSUES}\nThree or more runs are one column, with intervals."
            )
        if any(change is not None for row in self.rows for change in row.changes):
            return SINGLE_RUNS
        return ""


def side_by_side(comparisons: tuple[Comparison, ...]) -> SideBySide:
    """Group results by configuration, in order of first appearance.

    Exactly two runs of one configuration stay separate, since the user wants to compare them.
    """
    groups: dict[object, list[int]] = {}
    for index, comparison in enumerate(comparisons):
        key = same_configuration(comparison)
        groups.setdefault(index if key is None else key, []).append(index)
    is_pair = len(groups) == 1 and len(comparisons) == _PAIR
    if is_pair:
        groups = {index: [index] for index in range(_PAIR)}
    members = [[comparisons[index] for index in group] for group in groups.values()]
    sides = tuple(_side(tuple(group), member) for group, member in zip(groups.values(), members, strict=True))
    return SideBySide(groups=sides, rows=tuple(_rows(members)), one_configuration=is_pair)


def compare_two(one: BenchResult, other: BenchResult) -> SideBySide:
    """Compare two results, without published metrics."""
    prices = PriceBook(user_prices={}, published=())
    return side_by_side((compare(one, None, prices), compare(other, None, prices)))


def _side(runs: tuple[int, ...], members: list[Comparison]) -> ConfigurationGroup:
    first = members[0]
    name, label = first.name, first.label
    if len(members) > 1:
        name = _beginning([member.name for member in members]) or name
        label = f"{name}, {len(members)} runs"
    return ConfigurationGroup(
        name=name,
        label=label,
        workload=first.result.run.workload_name,
        runs=runs,
        comparable=all(member.comparable for member in members),
    )


def _beginning(names: list[str]) -> str:
    """Return the common prefix of names, without the digits that distinguish them."""
    common = takewhile(lambda letters: len({*letters}) == 1, zip(*names, strict=False))
    shared = "".join(letters[0] for letters in common)
    if any(name[len(shared) :][:1].isdigit() for name in names):
        shared = shared.rstrip("0123456789")
    return shared.rstrip(" -_./(")


def _rows(members: list[list[Comparison]]) -> Iterator[SideRow]:
    at = [[{row.load: row for row in item.rows} for item in group] for group in members]
    order = {
        row.load: (row.rate_rps or 0.0, row.concurrency or 0) for group in members for c in group for row in c.rows
    }
    loads = sorted(order, key=lambda load: order[load])
    for metric in metrics.metrics_for(metrics.DisplayIn.COMPARE):
        for load in loads:
            estimates = tuple(_estimate(runs, load, metric) for runs in at)
            if any(item is not None for item in estimates):
                changes = _changes(estimates, members) if metric.relative else (None,) * len(estimates)
                yield SideRow(metric=metric.key, load=load, estimates=estimates, changes=changes)


def _estimate(runs: list[dict[str, RateRow]], load: str, metric: ReportMetric) -> Estimate | None:
    values = [rows[load].of(metric).measured for rows in runs if load in rows]
    return estimate([value for value in values if value is not None])


def _changes(estimates: tuple[Estimate | None, ...], members: list[list[Comparison]]) -> tuple[Change | None, ...]:
    """Return the change of each estimate from the first; None for the first, and for another load."""
    base = estimates[0]
    return tuple(
        change(base, other) if index and base and other and same_load(members[0][0], group[0]) else None
        for index, (other, group) in enumerate(zip(estimates, members, strict=True))
    )


def signed(value: float) -> str:
    """Format a relative change as a signed percentage."""
    text = f"{value * 100:+.0f} %".replace("-", "−")
    return "0 %" if text[1:] == "0 %" else text


def change_text(change: Change) -> str:
    """Format a change with its interval, if known."""
    if change.low is None or change.high is None or signed(change.low) == signed(change.high):
        return signed(change.share)
    noise = "" if change.is_significant else ", noise"
    return f"{signed(change.share)} ({signed(change.low).removesuffix(' %')} to {signed(change.high)}{noise})"


def estimate_text(metric: ReportMetric, estimate: Estimate | None, absent: str = "-") -> str:
    """Format a metric, with half of its interval if there are several runs."""
    if estimate is None or estimate.margin is None or metric.format(estimate.margin) == metric.format(0.0):
        return metric.text(estimate.mean if estimate else None, absent)
    return f"{metric.format(estimate.mean)} ± {metric.format(estimate.margin)}"
