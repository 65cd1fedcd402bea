"""The command `deploy compare`."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.cli.options import Json, PriceOption
from orchestrator.cli.published import published_option, warn_incomparable
from orchestrator.core.json_output import JsonOutput
from orchestrator.report.document import Report
from orchestrator.report.text import comparison_text
from orchestrator.report.write import find_results, make_report

PublishedOption: TypeAlias = Annotated[str | None, published_option("none")]

OUTPUT: Final = JsonOutput(Report, omits_null=True)


def command(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT", help="result files or directories of results")],
    *,
    published: PublishedOption = None,
    price: PriceOption = None,
    json: Json = False,
) -> None:
    """Compare results. Shows what differs, and by how much."""
    report = make_report(find_results(results), published=published or "none", prices=price or ())
    OUTPUT.show_or_print(report, lambda: comparison_text(report), json=json)
    warn_incomparable(report)
