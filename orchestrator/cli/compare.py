"""The command `deploy compare`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from orchestrator.cli.options import Json
from orchestrator.cli.published import PriceOption, published_option, warn_incomparable
from orchestrator.core.console import print_data, print_json
from orchestrator.core.text import parse_json
from orchestrator.report.render import render_json
from orchestrator.report.text import comparison_text
from orchestrator.report.write import find_results, make_report

PublishedAskedOption: TypeAlias = Annotated[str | None, published_option("none")]


def command(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT", help="result files or directories of results")],
    *,
    published: PublishedAskedOption = None,
    price: PriceOption = None,
    json: Json = False,
) -> None:
    """Compare results. Shows what differs, and by how much."""
    made = make_report(find_results(results), published=published or "none", prices=price or ())
    if json:
        print_json(parse_json(render_json(made)))
    else:
        print_data(comparison_text(made))
    warn_incomparable(made)
