"""`deploy diff`: the differences between two runs, profiles, locks or results, including their metrics."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.bench import metrics
from orchestrator.bench.result import RESULT_FILE, BenchResult, ServerProvenance
from orchestrator.bench.result_files import load_result, provenance_of
from orchestrator.bench.run import is_url
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import table
from orchestrator.core.errors import DeployError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.text import objects_in
from orchestrator.plan.diff import differences
from orchestrator.plan.lock import LOCK_FILE
from orchestrator.planner.explain import explained
from orchestrator.planner.planning import load
from orchestrator.profiles.layers import ENTRY_KEYS
from orchestrator.report.configuration import DERIVED, configuration_of, started_with
from orchestrator.report.history import RunSummary, summarize_run
from orchestrator.report.side_by_side import (
    ONE_CONFIGURATION,
    SINGLE_RUNS,
    SideBySide,
    change_text,
    compare_two,
    estimate_text,
)
from orchestrator.runs.run_dir import RunDir, find_run, known_names, latest_run, load_lock, require_version

if TYPE_CHECKING:
    from orchestrator.planner.planning import LoadedProfile

_AREAS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("image", "patched", "engine", "patches", "prebuilt_image"), "image"),
    **dict.fromkeys(("weights", "model"), "weights"),
    "locked": "image",
    **dict.fromkeys(("host", "hardware"), "host"),
    "workload": "load",
}
_ORDER: Final = ("configuration", "image", "weights", "host", "load", "outcome")
_OBSERVED: Final = ("image", "patched", "weights", "host", "workload", "outcome", "locked")  # not in a plan
_LABELS: Final = {"layout": "plan", "patched": "detected patches", "workload": "load", "locked": "lock"}  # by group
_MAX_NAMED: Final = 4
_CAUSES: Final = ("configuration", "image", "weights", "host")


@dataclass(frozen=True, kw_only=True)
class DiffSide:
    """One side of a diff: its label, its values by dotted key, and its results.

    `reasons` hold the origin and source of values, by key or by group (the first part of a key).
    """

    label: str
    values: Mapping[str, str]
    results: tuple[BenchResult, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    def reason(self, key: str) -> str:
        """Return the origin and source of a value; "" if unknown or without a value."""
        return self.reasons.get(key, self.reasons.get(key.partition(".")[0], "")) if key in self.values else ""

    def knows(self, group: str) -> bool:
        """Return whether any key of a group is known."""
        return any(key.partition(".")[0] == group for key in self.values)


@dataclass(frozen=True, kw_only=True)
class DifferentMetric:
    """One metric of one workload and load on both sides; `change` is that from A to B, "" if unknown."""

    workload: str
    load: str
    metric: str
    a: str
    b: str
    change: str


@dataclass(frozen=True, kw_only=True)
class DifferentReason:
    """The origin and source of different values on both sides; "" if unknown or without a value."""

    keys: tuple[str, ...]
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class DifferentValue:
    """A value that differs between the sides A and B; "" on a side without it."""

    area: str = field(metadata={"serialization_alias": "in"})
    key: str
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class DiffOutput:
    """The sides `a` and `b`, and their differences by area; `unknown` names the groups that only one side has.

    `same_configuration` tells whether the results are of one configuration.
    """

    a: str
    b: str
    differences: tuple[DifferentValue, ...]
    reasons: tuple[DifferentReason, ...]
    metrics: tuple[DifferentMetric, ...]
    same_configuration: bool
    unknown: tuple[str, ...]


def resolve_side(text: str, home: Home) -> DiffSide:
    """Resolve an argument: a result, a lock, a run directory, `NAME/RUN`, a profile, or a server (its last run).

    Raises UsageError if nothing matches, ProfileError and BenchError for an invalid file.
    """
    if is_url(text):
        hint = f"`deploy bench {text}` writes a result; two results can be compared"
        raise UsageError(f"`{text}` is a URL; `deploy diff` compares profiles, runs and results", hint=hint)
    path = Path(text)
    if (path / RESULT_FILE).is_file() or (path.is_file() and path.suffix == ".json"):
        return _of_result(path)
    if path.name.endswith(LOCK_FILE) and path.is_file():
        return _side_from_lock(path)
    if (run := find_run(home, text)) is not None:
        return _of_run(run)
    catalog = Catalog.of(home)
    if path.is_file() or catalog.find(EntryKind.PROFILE, text) is not None:
        loaded = load(text, catalog=catalog)
        plan = loaded.plan
        provenance = ServerProvenance(plan=plan.to_dict(), plan_digest=plan.digest)
        reasons = {**_of_settings(plan.to_dict()), **_entry_origins(loaded)}
        return DiffSide(label=f"profile `{text}`", values=started_with(provenance), reasons=reasons)
    if (last := latest_run(home, text)) is not None:
        return _of_run(last)
    suggestion = did_you_mean(text, {*catalog.names(EntryKind.PROFILE), *known_names(home)})
    forms = "a profile, a result, a run directory, or `NAME/RUN` as `deploy history` shows it"
    raise UsageError(f"`deploy diff` cannot compare `{text}`", hint=suggestion or forms)


def diff(a: DiffSide, b: DiffSide) -> DiffOutput:
    """Compare two sides; a group that only one side has is reported as unknown, not as a difference."""
    one_sided = [group for group in (*_OBSERVED, "layout") if a.knows(group) != b.knows(group)]
    differing = differences([_comparable(side, one_sided) for side in (a, b)])
    values = [
        DifferentValue(area=_area(item.key), key=item.key, a=item.values[0], b=item.values[1]) for item in differing
    ]
    values.sort(key=lambda value: _ORDER.index(value.area))
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in values:
        reasons.setdefault((a.reason(entry.key), b.reason(entry.key)), []).append(entry.key)
    reason_lines = tuple(
        DifferentReason(keys=tuple(keys), a=a_value, b=b_value)
        for (a_value, b_value), keys in reasons.items()
        if a_value or b_value
    )
    compared = _last_per_workload(a.results, b.results)
    unknown = [
        f"{'B' if a.knows(group) else 'A'} has no record of its {_LABELS.get(group, group)}" for group in one_sided
    ]
    if bool(a.results) != bool(b.results):
        unknown.append(f"{'B' if a.results else 'A'} has no measurement")
    return DiffOutput(
        a=a.label,
        b=b.label,
        differences=tuple(values),
        reasons=reason_lines,
        metrics=tuple(_metrics(compared)),
        same_configuration=bool(compared) and all(item.one_configuration for item in compared.values()),
        unknown=tuple(unknown),
    )


def diff_text(output: DiffOutput, *, width: int | None = None) -> str:
    """Format the differences for a terminal."""
    parts = [f"A: {output.a}\nB: {output.b}"]
    if output.differences:
        rows = [
            (difference.area, difference.key, difference.a or "-", difference.b or "-")
            for difference in output.differences
        ]
        parts.append(table(("in", "differs", "A", "B"), rows, width=width))
    else:
        parts.append("no differences in what both sides record")
    parts += (
        ["\n".join(line for reason in output.reasons for line in _reason_lines(reason, width))]
        if output.reasons
        else []
    )
    if output.metrics:
        metric_rows = [
            (metric.workload, metric.load, metric.metric, metric.a, metric.b, metric.change)
            for metric in output.metrics
        ]
        parts.append(table(("workload", "load", "metric", "A", "B", "B against A"), metric_rows, width=width))
        parts.append(_explanation(output))
    parts += ["\n".join(f"note: {text}" for text in output.unknown)] if output.unknown else []
    return "\n\n".join(parts)


def _reason_lines(item: DifferentReason, width: int | None) -> Iterator[str]:
    sides = [("A and B", item.a)] if item.a == item.b else [("A", item.a), ("B", item.b)]
    texts = [(", ".join(item.keys), ""), *((f"{side}: {reason}", "    ") for side, reason in sides if reason)]
    for text, indent in texts:
        folded = width or len(indent) + len(text) + 1
        yield from textwrap.wrap(
            text,
            folded,
            initial_indent=indent,
            subsequent_indent="    ",
            break_on_hyphens=False,
            break_long_words=False,
        )


def _explanation(output: DiffOutput) -> str:
    """Describe the noise of the metrics, and the known differences that may have caused their changes."""
    if output.same_configuration:
        return ONE_CONFIGURATION
    causes = [difference.key for difference in output.differences if difference.area in _CAUSES]
    if any(difference.area == "load" for difference in output.differences):
        return f"{SINGLE_RUNS}\nThe loads differ, so the metrics are not comparable, whatever else differs."
    noise = f"{SINGLE_RUNS} `deploy compare` accepts several."
    if not causes:
        return noise
    if len(causes) == 1:
        return f"{noise}\nOnly `{causes[0]}` can explain differences beyond noise."
    names = ", ".join(f"`{key}`" for key in causes[:_MAX_NAMED]) + (", …" if len(causes) > _MAX_NAMED else "")
    return (
        f"{noise}\n{len(causes)} differences can explain the metrics ({names}): measure with only one of them changed."
    )


def _comparable(side: DiffSide, one_sided: Sequence[str]) -> dict[str, str]:
    """Return the values that both sides have; plan values are excluded if one side has no plan."""
    planless = "layout" in one_sided
    return {
        key: value
        for key, value in side.values.items()
        if not key.startswith(DERIVED)
        and (group := key.partition(".")[0]) not in one_sided
        and not (planless and group not in _OBSERVED)
    }


def _area(key: str) -> str:
    group = key.partition(".")[0]
    if key.startswith("locked.checkpoint"):
        return "weights"
    return "outcome" if group == "outcome" else _AREAS.get(group, "configuration")


def _of_settings(plan: Mapping[str, object]) -> dict[str, str]:
    """Return the origin and source of each flag and variable of a plan, which another version may have written."""
    return {
        f"{section}.{setting.get('name')}": _origin_text(str(setting["origin"]), str(setting.get("source", "")))
        for section in ("flags", "env")
        for setting in objects_in(plan, section)
        if setting.get("origin")
    }


def _entry_origins(loaded: "LoadedProfile") -> dict[str, str]:
    """Return the origin and source of the other keys of a profile, and the source of each catalog entry."""
    rows = explained(loaded)
    entries = {entry_key: loaded.composed.data.get(entry_key) for entry_key in ENTRY_KEYS}
    sources = {
        entry_key: str(data["source"])
        for entry_key, data in entries.items()
        if isinstance(data, dict) and "source" in data
    }
    return {**sources, **{row.key: _origin_text(row.origin, row.source) for row in rows if row.origin or row.source}}


def _origin_text(origin: str, source: str) -> str:
    return ": ".join(filter(None, [origin, source]))


def _of_result(path: Path) -> DiffSide:
    result = load_result(path)
    provenance = result.run.provenance
    owner = f" of `{provenance.name}`" if provenance.name else ""
    plan = f", plan {provenance.plan_digest[:8]}" if provenance.plan_digest else ""
    marked = "" if result.comparable else ", NOT COMPARABLE"
    label = f"result `{path}`{owner}{plan}, {result.run.started_at}{marked}"
    return DiffSide(label=label, values=configuration_of(result), results=(result,))


def _side_from_lock(path: Path) -> DiffSide:
    lock, _ = load_lock(path)
    plan = {key: value for key, value in lock.plan.items() if value != "none"}
    return DiffSide(label=f"lock `{path}` of `{Path(lock.profile).stem}`", values={**plan, **lock.summary})


def _of_run(run: RunDir) -> DiffSide:
    require_version(run)
    plan = run.read("plan.json")
    if not plan:
        hint = "compare another run; `deploy history` lists them"
        raise StartError("cannot read the plan of this run", location=str(run.path / "plan.json"), hint=hint)
    start, measured = summarize_run(run)
    settings = "".join(f" --set {override}" for override in start.overrides)
    label = f"run `{start.name}/{start.run}` of `{start.profile or plan.get('profile')}{settings}`"
    provenance = replace(provenance_of(run, None), plan=plan)
    values = {**started_with(provenance), **_locked(run), **{f"outcome.{key}": text for key, text in _outcome(start)}}
    return DiffSide(label=label, values=values, results=measured, reasons=_of_settings(plan))


def _locked(run: RunDir) -> dict[str, str]:
    """Return the summary of a run's lock; empty if the run has none, as in older versions."""
    try:
        return load_lock(run.path / LOCK_FILE)[0].summary
    except DeployError:
        return {}


def _outcome(start: RunSummary) -> Iterator[tuple[str, str]]:
    if start.ready_seconds is not None:
        yield "ready", f"{start.ready_seconds:.0f} s"
    for verdict, count in start.smoke.items():
        yield f"smoke.{verdict}", str(count)
    if start.failed:
        yield "smoke.checks that failed", ", ".join(start.failed)
    for kind, count in start.kernels.items():
        yield f"kernels.{kind}", str(count)
    if start.ended:
        yield "ended", start.ended


def _last_per_workload(a: Sequence[BenchResult], b: Sequence[BenchResult]) -> dict[str, SideBySide]:
    by_time = (sorted(side, key=lambda result: result.run.started_at) for side in (a, b))
    last = [{result.run.workload_name: result for result in side} for side in by_time]
    return {name: compare_two(last[0][name], last[1][name]) for name in sorted(last[0].keys() & last[1].keys())}


def _metrics(compared: Mapping[str, SideBySide]) -> Iterator[DifferentMetric]:
    for workload, sides in compared.items():
        for row in sides.rows:
            metric, (estimate, other_estimate) = metrics.BY_KEY[row.metric], row.estimates
            changed = row.changes[1]
            yield DifferentMetric(
                workload=workload,
                load=row.load,
                metric=metric.title,
                a=estimate_text(metric, estimate),
                b=estimate_text(metric, other_estimate),
                change=change_text(changed) if changed is not None else "",
            )
