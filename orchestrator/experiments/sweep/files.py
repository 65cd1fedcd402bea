"""The output files of a sweep: the report, and a profile for each winner.

The profile extends the original one, with evidence for each setting.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.result import BenchResult
from orchestrator.bench.result_files import load_result
from orchestrator.bench.workload import workload_name
from orchestrator.core.catalog import EntryKind
from orchestrator.core.console import format_duration
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.files import atomic_write, atomic_write_all, read_file
from orchestrator.core.origin import Origin
from orchestrator.core.safe_paths import FileName, RelativePath
from orchestrator.core.subprocesses import quote
from orchestrator.core.yaml_document import Data
from orchestrator.experiments.sweep.confirm import confirmed, describe_difference, describe_runs, middle, runs_of
from orchestrator.experiments.sweep.report import (
    SweepReport,
    SweepRow,
    measured_points,
    render_sweep_html,
    render_sweep_json,
)
from orchestrator.experiments.sweep.run import Sweep
from orchestrator.experiments.sweep.search import Search, SweepTrial, TrialOutcome
from orchestrator.plan.plan import NAME
from orchestrator.planner.planning import is_path, read_draft
from orchestrator.profiles.layers import EXTENDS, Override, parent_of
from orchestrator.profiles.yaml_writer import YamlLine, yaml_text
from orchestrator.report.side_by_side import SINGLE_RUNS

REPORT: Final = "sweep.html"
_SWEEP_MARK: Final = "found by `deploy sweep`"  # in the header of a file that a sweep may overwrite
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Winner:
    """A best trial, and the profile written for it: None for the original profile."""

    trial: SweepTrial
    profile: Path | None


def best_trials(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """Return the best trial, or all trials of the Pareto front.

    Among equal trials the original profile wins, else the highest speed per user.
    """
    if len(sweep.goal.names) > 1:
        return search.best()
    best = confirmed(sweep, search)
    original = tuple(trial for trial in best if trial.is_baseline)
    return original or tuple(sorted(best, key=lambda trial: -_per_user(sweep, trial))[:1])


def _per_user(sweep: Sweep, trial: SweepTrial) -> float:
    result = _result(sweep, trial)
    point = sweep.goal.point(result) if result is not None else None
    return (metrics.PER_USER.value_of(point) if point is not None else None) or 0.0


def write_winners(sweep: Sweep, search: Search) -> tuple[Winner, ...]:
    """Write a profile for each winner, except for the original profile."""
    best, winners = best_trials(sweep, search), []
    for trial in best:
        path = None
        if not trial.is_baseline:
            number = trial.number if len(best) > 1 else None
            path = write_winner(sweep, trial, search, profile_path(sweep, number))
        winners.append(Winner(trial=trial, profile=path))
    return tuple(winners)


def write_sweep_report(sweep: Sweep, search: Search, winners: tuple[Winner, ...] = (), *, ended: str = "") -> Path:
    """Write sweep.html and sweep.json atomically, and return the path of sweep.html."""
    report = sweep_report(sweep, search, winners, ended)
    folder = sweep.request.output
    texts = {folder / REPORT: render_sweep_html(report), folder / "sweep.json": render_sweep_json(report)}
    atomic_write_all((path, text, 0o644) for path, text in texts.items())
    return folder / REPORT


def sweep_report(sweep: Sweep, search: Search, winners: tuple[Winner, ...], ended: str) -> SweepReport:
    """Return the report of the trials so far, or of an ended search."""
    trials = tuple(trial for trial in search.trials if trial.outcome is not TrialOutcome.INTERRUPTED)
    results = {trial.number: _result(sweep, trial) for trial in trials}
    best = {winner.trial.number for winner in winners} or {trial.number for trial in best_trials(sweep, search)}
    rows = tuple(
        SweepRow(
            trial=trial,
            settings=tuple(sweep.space.display(trial.point).values()),
            value=sweep.goal.text(trial.values) if trial.values else "",
            comparability_issues=_issues(results[trial.number]),
            best=trial.number in best,
        )
        for trial in trials
    )
    points = [measured_points(trial, result) for trial in trials if (result := results[trial.number]) is not None]
    return SweepReport(
        title=f"Sweep of {sweep.plan.profile}",
        headline=tuple(_headline(sweep, search, winners, ended)),
        parameters=tuple(parameter.key for parameter in sweep.space.parameters),
        values=" / ".join(sweep.goal.names),
        rows=rows,
        importances=search.importances(),
        points=tuple(point for item in points for point in item),
        notes=tuple(_notes(sweep, search, winners, results)),
        command=sweep.request.command,
    )


def _headline(sweep: Sweep, search: Search, winners: tuple[Winner, ...], ended: str) -> Iterator[str]:
    trials = search.trials
    counts = Counter(trial.outcome for trial in trials if trial.outcome is not TrialOutcome.INTERRUPTED)
    if sweep.description:
        yield f"{sweep.description[0].upper()}{sweep.description[1:].removesuffix('.')}."
    yield f"Objective: {sweep.goal.words}, under {workload_name(sweep.workload_ref)}."
    for winner in winners:
        settings = ", ".join(f"{key} {value}" for key, value in sweep.space.display(winner.trial.point).items())
        same = "; the same as the profile" if winner.trial.is_baseline else ""
        yield f"Best: {settings}: {value_text(sweep, winner.trial, search)}{same}."
        if difference := describe_difference(sweep, search, winner.trial):
            yield f"{difference}."
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none"
    seconds = sum(trial.seconds for trial in trials) + sum(
        confirmation.seconds for confirmation in search.confirmations
    )
    price = f", ${seconds / 3600 * sweep.usd_per_hour:.2f}" if sweep.usd_per_hour else ""
    end = f" {ended[0].upper()}{ended[1:]}." if ended else ""
    yield f"{counts.total()} trials of {sweep.space.size} points: {outcomes}; {format_duration(seconds)}{price}.{end}"


def _notes(
    sweep: Sweep, search: Search, winners: tuple[Winner, ...], results: dict[int, BenchResult | None]
) -> Iterator[str]:
    repeated = {confirmation.number for confirmation in search.confirmations}
    if not repeated and len(sweep.goal.names) > 1:
        yield f"{SINGLE_RUNS[0].upper()}{SINGLE_RUNS[1:]}"
    for trial in search.trials:
        if trial.values and trial.number in repeated:
            yield f"Trial {trial.number}: {describe_runs(sweep, search, trial)}."
    if repeated and any(trial.values and trial.number not in repeated for trial in search.trials):
        yield "Other trials were measured once."
    if sweep.baseline_point is None:
        yield "The space lacks the profile's own values, so no trial measured them."
    for winner in winners:
        yield f"{evidence(sweep, winner.trial, search)}."
        yield f"Answers before the load: {winner.trial.answers or 'not checked'}; smoke test after it: passed."
        if winner.profile is not None:
            explain = f"`deploy show {winner.profile} --explain` prints the origin of each value"
            yield f"It is saved as profile `{winner.profile}`; {explain}."
        if (command := tune_command(sweep, winner, results[winner.trial.number])) is not None:
            yield command


def tune_command(sweep: Sweep, winner: Winner, result: BenchResult | None) -> str | None:
    """Return a sentence with the command that tunes the kernels missing under a winner's load; None if none is."""
    misses = (result.run.provenance.kernel_gate or {}).get("misses") if result is not None else None
    if not isinstance(misses, list | tuple) or not misses:
        return None
    counts = sorted({int(key["token"]) for key in misses if isinstance(key, dict) and str(key.get("token")).isdigit()})
    tokens = f" --tokens {','.join(map(str, counts))}" if counts else ""
    settings = [word for override in sweep.request.overrides for word in ("--set", override)]
    profile = quote([sweep.request.profile, *settings])
    if winner.profile is not None:
        profile = winner.profile.stem if winner.profile.is_relative_to(sweep.home.root) else str(winner.profile)
    shapes = "shape has" if len(misses) == 1 else "shapes have"
    command = f"deploy kernels tune {profile}{tokens}"
    return f"{len(misses)} MoE {shapes} no tuned kernel under this load: `{command}` tunes them"


def _result(sweep: Sweep, trial: SweepTrial) -> BenchResult | None:
    """Return the result of a trial; None if there is none, or if it was removed."""
    try:
        return load_result(sweep.request.output / RelativePath(trial.directory)) if trial.directory else None
    except BenchError:
        return None


def _issues(result: BenchResult | None) -> tuple[str, ...]:
    issues = result.comparability_issues if result is not None else ()
    return tuple(f"{issue.kind.value} at {issue.point}" if issue.point else issue.kind.value for issue in issues)


def profile_name(sweep: Sweep) -> str:
    """Return the name of the profile to write."""
    return sweep.request.name or f"{sweep.plan.profile}-swept"


def profile_path(sweep: Sweep, number: int | None = None) -> Path:
    """Return the winner's path, in the home's catalog or next to the report; its name ends in `number`.

    Raises UsageError for an invalid name, and for an existing profile that is extended or not written by a sweep.
    """
    name = profile_name(sweep)
    name = name if number is None else f"{name}-{number}"
    if not NAME.match(name):
        hint = "`--name NAME`, with lower-case letters and digits, separated by single `.`, `_` or `-`"
        raise UsageError(f"invalid profile name `{name}`", hint=hint)
    path = sweep.request.output / FileName(f"{name}.yaml")
    existing = path if path.exists() else None
    if not sweep.request.winner_in_output:
        path = sweep.home.root / EntryKind.PROFILE.file(name)
        existing = sweep.base.catalog.find(EntryKind.PROFILE, name)
    if existing is not None and (
        name == sweep.plan.profile or _SWEEP_MARK.encode() not in read_file(existing, max_bytes=_MAX_BYTES)
    ):
        raise UsageError(f"a profile `{name}` exists", location=str(existing), hint="choose another `--name`")
    return path


def write_winner(sweep: Sweep, best: SweepTrial, search: Search, path: Path) -> Path:
    """Write a winner's profile: the extended profile, the overrides of all trials, and the winner's settings.

    Resolves the profile to a plan first, to avoid writing an invalid profile.
    """
    source, trials = evidence(sweep, best, search), search.trials
    lines = [YamlLine(path=("description",), value=f"{sweep.plan.profile}, as measured by a sweep")]
    base = sweep.request.profile
    lines += [YamlLine(path=(EXTENDS,), value=str(Path(base).absolute()) if is_path(base) else base)]
    data: dict[str, Data] = {}
    for override in map(Override.parse, sweep.request.overrides):
        parent_of(data, override.path)[override.path[-1]] = override.value
    for keys, value in sweep.space.settings(best.point).items():
        entry: Data = {"value": value, "origin": Origin.MEASURED.value, "source": source} if value is not None else None
        parent_of(data, keys)[keys[-1]] = entry
    lines += _lines(data)
    runs = sum(trial.ran for trial in trials)
    head = [
        "yaml-language-server: $schema=profile.schema.json",
        f"{_SWEEP_MARK} in {runs} trials of {sweep.space.size} points under `{workload_name(sweep.workload_ref)}`.",
        f"Best of: {sweep.goal.words}. {_describe_repeats(sweep, best, search)}.",
        f"Answers: {best.answers or 'not checked'}.",
        f"Measured: {sweep.request.output / RelativePath(best.directory)}",
    ]
    text = yaml_text([" ".join(line.split()) for line in head], lines)
    read_draft(text, path, sweep.base.catalog).build()
    return atomic_write(path, text)


def evidence(sweep: Sweep, best: SweepTrial, search: Search) -> str:
    """Return one line with the values of the winner and of the original profile, and the date."""
    baseline = next((trial for trial in search.trials if trial.is_baseline and trial.values), None)
    original = (
        f", {value_text(sweep, baseline, search)} for `{sweep.plan.profile}` itself" if baseline is not None else ""
    )
    values = f"{', '.join(sweep.goal.names)} {value_text(sweep, best, search)}{original}"
    return f"deploy sweep, {_date(sweep, best)}, trial {best.number}: {values}"


def value_text(sweep: Sweep, trial: SweepTrial, search: Search) -> str:
    """Format the values of a trial; the median and range if it has several runs."""
    if len(trial.values) > 1 or not search.repeats_of(trial):
        return sweep.goal.text(trial.values)
    runs, value = runs_of(search, trial), middle(sweep, search, trial)
    if len(runs) == 1 or not math.isfinite(value):
        return describe_runs(sweep, search, trial)
    ends = " to ".join(sweep.goal.text((item,)) for item in (min(runs), max(runs)))
    return f"{sweep.goal.text((value,))} (median of {len(runs)} runs, {ends})"


def _describe_repeats(sweep: Sweep, best: SweepTrial, search: Search) -> str:
    if len(best.values) > 1 or len(runs_of(search, best)) == 1:
        return "One run each; noise unknown"
    return describe_runs(sweep, search, best)


def _date(sweep: Sweep, trial: SweepTrial) -> str:
    """Return the date of the measurement (UTC); today if the result was removed."""
    result = _result(sweep, trial)
    return result.run.started_at[: len("2026-11-22")] if result else datetime.now(UTC).date().isoformat()


def _lines(data: Mapping[str, Data]) -> Iterator[YamlLine]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from (YamlLine(path=(key, name), value=inner) for name, inner in value.items())
        else:
            yield YamlLine(path=(key,), value=value)
