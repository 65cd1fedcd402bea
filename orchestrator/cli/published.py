"""Options of the commands that compare results with published numbers."""

from typing import Any

from orchestrator.cli.options import entry_option
from orchestrator.core.console import warn
from orchestrator.report.document import Report


def published_option(default: str) -> Any:  # noqa: ANN401 - as typer declares its options
    """Return the option `--published` with its default."""
    help_text = f"published results to compare with; default: {default}"
    return entry_option("PUBLISHED", "--published", help=help_text, metavar="NAME|FILE|none")


def warn_incomparable(report: Report) -> None:
    """Warn of each result that is not comparable, with the reasons."""
    for comparison in report.comparisons:
        if not comparison.comparable:
            kinds = ", ".join(dict.fromkeys(reason.kind for reason in comparison.reasons))
            warn(f"NOT COMPARABLE: {comparison.label}, {comparison.result.run.workload_name}: {kinds}")
