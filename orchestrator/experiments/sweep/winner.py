"""The winner of a sweep as a profile that extends the original one, with evidence for each setting."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.bench.result_files import load_result
from orchestrator.bench.workload import workload_name
from orchestrator.core.catalog import EntryKind
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.files import atomic_write, read_file
from orchestrator.core.origin import Origin
from orchestrator.core.safe_paths import FileName, RelativePath
from orchestrator.core.yaml_document import Data
from orchestrator.experiments.sweep.confirm import describe_runs, middle, runs_of
from orchestrator.experiments.sweep.run import Sweep
from orchestrator.experiments.sweep.search import Search, SweepTrial
from orchestrator.plan.plan import NAME
from orchestrator.planner.planning import is_path, read_draft
from orchestrator.profiles.layers import EXTENDS, Override, parent_of
from orchestrator.profiles.yaml_writer import YamlLine, yaml_text

_SWEEP_MARK: Final = "found by `deploy sweep`"  # in the header of a file that a sweep may overwrite
_MAX_BYTES: Final = 1 << 20


def profile_name(sweep: Sweep) -> str:
    """Return the name of the profile to write."""
    return sweep.request.name or f"{sweep.plan.profile}-swept"


def profile_path(sweep: Sweep, number: int | None = None) -> Path:
    """Return the path of the winner, in the catalog of the home or next to the report; `number` is added to its name.

    Raises UsageError for an invalid name, and for the name of the extended profile or of one not written by a sweep.
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
        name == sweep.plan.profile or _SWEEP_MARK.encode() not in read_file(existing, most=_MAX_BYTES)
    ):
        raise UsageError(f"a profile `{name}` exists", location=str(existing), hint="choose another `--name`")
    return path


def write_winner(sweep: Sweep, best: SweepTrial, search: Search, path: Path) -> Path:
    """Write the profile of a winner: the extended profile, the overrides of all trials, and the winner's settings.

    It is resolved to a plan first, so that an invalid profile is never written.
    """
    source, trials = evidence(sweep, best, search), search.trials
    lines = [YamlLine(path=("description",), value=f"{sweep.plan.profile}, as measured by a sweep")]
    base = sweep.request.profile
    lines += [YamlLine(path=(EXTENDS,), value=str(Path(base).absolute()) if is_path(base) else base)]
    data: dict[str, Data] = {}
    for override in map(Override.parse, sweep.request.overrides):
        parent_of(data, override.path)[override.path[-1]] = override.value
    for path, value in sweep.space.settings(best.point).items():
        entry: Data = {"value": value, "origin": Origin.MEASURED.value, "source": source} if value is not None else None
        parent_of(data, path)[path[-1]] = entry
    lines += _lines(data)
    ran = sum(trial.ran for trial in trials)
    head = [
        "yaml-language-server: $schema=profile.schema.json",
        f"{_SWEEP_MARK} in {ran} trials of {sweep.space.size} points under `{workload_name(sweep.workload_ref)}`.",
        f"Best of: {sweep.goal.words}. {_describe_repeats(sweep, best, search)}.",
        f"Answers: {best.answers or 'not checked'}.",
        f"Measured: {sweep.request.output / RelativePath(best.directory)}",
    ]
    text = yaml_text([" ".join(line.split()) for line in head], lines)
    read_draft(text, path, sweep.base.catalog).decide()
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
    if len(trial.values) > 1 or not any(confirmation.number == trial.number for confirmation in search.confirmations):
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
    try:
        return load_result(sweep.request.output / RelativePath(trial.directory)).run.started_at[: len("2026-11-22")]
    except BenchError:
        return datetime.now(UTC).date().isoformat()


def _lines(data: Mapping[str, Data]) -> Iterator[YamlLine]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from (YamlLine(path=(key, name), value=inner) for name, inner in value.items())
        else:
            yield YamlLine(path=(key,), value=value)
