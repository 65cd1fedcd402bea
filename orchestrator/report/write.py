"""The report of `deploy compare` and `deploy report`: built from result directories, written to files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.bench.published import Published, all_published, load_published, price_book
from orchestrator.bench.result import RESULT_FILE, BenchResult, IssueKind
from orchestrator.bench.result_files import load_result
from orchestrator.core.errors import UsageError
from orchestrator.core.files import atomic_write_all
from orchestrator.evals.eval_result import BASELINE_DIR, load_eval_result
from orchestrator.report.compare import mismatch_reasons
from orchestrator.report.document import EvalPairs, Report, build_report
from orchestrator.report.render import render_html, render_json


def find_results(paths: Sequence[Path], *, required: bool = True) -> tuple[Path, ...]:
    """Return the result files among the given paths, and those in or below the given directories.

    Raises UsageError if a path has no result and `required` is set.
    """
    results: list[Path] = []
    for path in paths:
        files = sorted(path.rglob(RESULT_FILE)) if path.is_dir() else [path]
        if required and (not files or not files[0].exists()):
            raise UsageError(
                "no result of `deploy bench` found",
                location=str(path),
                hint=f"`deploy bench NAME --output {path}` writes one",
            )
        results += files
    return tuple(dict.fromkeys(results))


def find_evals(directories: Sequence[Path], baselines: Sequence[Path]) -> EvalPairs:
    """Return pairs of baseline and eval result for the results of `deploy eval` below directories.

    The baseline is the given one of the same suite, else the one saved in `baseline/` next to the result, else None.
    """
    latest = {(outcome := load_eval_result(path)).suite: outcome for path in baselines}
    excluded = {path.resolve() for path in baselines}
    pairs = []
    for path in dict.fromkeys(path for directory in directories for path in sorted(directory.rglob("eval-*.json"))):
        sibling = path.parent / BASELINE_DIR / path.name
        is_sibling = path.parent.name == BASELINE_DIR and (path.parent.parent / path.name).exists()
        if path.resolve() not in excluded and not is_sibling:
            outcome = load_eval_result(path)
            saved = load_eval_result(sibling) if sibling.exists() else None
            pairs.append((latest.get(outcome.suite, saved), outcome))
    return tuple(pairs)


def make_report(
    results: Sequence[Path],
    *,
    published: str | None,
    prices: Sequence[str],
    evals: EvalPairs = (),
    watts: Mapping[str, float] | None = None,
) -> Report:
    """Read results and build a report that compares them with published metrics.

    `published` is a name or a file, or "none" for no comparison. None selects the published measurement of the same
    workload and hardware, if there is one. Without a published measurement, several results are named after their
    directories. Raises UsageError for a mix of simulated and real acceptance of draft tokens.
    """
    measured = tuple(load_result(path) for path in results)
    _require_one_acceptance(measured, results)
    table = None if published else _matching(measured, evals)
    if published and published != "none":
        table = load_published(published)
    directories = _directories(results) if table is None and len(results) > 1 else ()
    return build_report(
        measured, published=table, prices=price_book(prices), directories=directories, evals=evals, watts=watts
    )


def _require_one_acceptance(measured: Sequence[BenchResult], results: Sequence[Path]) -> None:
    """Raise UsageError if some results have simulated and others real acceptance of draft tokens."""
    simulated = [
        str(path)
        for path, result in zip(results, measured, strict=True)
        if any(issue.kind is IssueKind.SIMULATED_ACCEPTANCE for issue in result.comparability_issues)
    ]
    if 0 < len(simulated) < len(measured):
        raise UsageError(
            "results with simulated acceptance of draft tokens cannot be compared with others",
            location=", ".join(simulated),
            hint="repeat `deploy compare` without these results",
        )


def _directories(results: Sequence[Path]) -> tuple[str, ...]:
    folders = [path.resolve().parent for path in results]
    above = Path(os.path.commonpath(folders))
    return tuple(folder.name if folder == above else str(folder.relative_to(above)) for folder in folders)


def _matching(measured: Sequence[BenchResult], evals: EvalPairs) -> Published | None:
    """Return the published measurement of the same workload and hardware; without results, of the same suite."""
    without_baseline = {outcome.suite for baseline, outcome in evals if baseline is None}
    for item in all_published(Published):
        if any(not [*mismatch_reasons(result, item)] for result in measured):
            return item
        if not measured and without_baseline & {line.suite for line in item.evals}:
            return item
    return None


def write_report(report: Report, directory: Path) -> tuple[Path, ...]:
    """Write report.html and report.json atomically, and return their paths in this order."""
    texts = {directory / "report.html": render_html(report), directory / "report.json": render_json(report)}
    atomic_write_all((path, text, 0o644) for path, text in texts.items())
    return tuple(texts)
