"""The command `deploy profiles`."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli.options import Json
from orchestrator.core.catalog import Catalog
from orchestrator.core.console import print_data, print_json, table, terminal_width
from orchestrator.images.base import IMAGE_BYTES
from orchestrator.planner.listing import catalog_listing, tables
from orchestrator.planner.planning import usable_plans
from orchestrator.runtimes import runtime_class


class Format(StrEnum):
    """The output format."""

    TABLE = "table"
    GITHUB_MATRIX = "github-matrix"


def command(
    *,
    format_: Annotated[
        Format,
        typer.Option("--format", metavar="table|github-matrix", help="how to print them"),
    ] = Format.TABLE,
    json: Json = False,
) -> None:
    """List profiles, hardware, models and engines.

    `--format github-matrix` prints the profiles with an image as a GitHub Actions matrix, with the disk space of each
    build in GiB.
    """
    if format_ is Format.GITHUB_MATRIX:
        print_json({"include": [*_matrix()]})
        return
    found = catalog_listing(Catalog.from_environment())
    if json:
        print_json(found)
    else:
        width = terminal_width()
        print_data("\n\n".join(table(header, rows, width=width) for header, rows in tables(found)))


def _matrix() -> Iterator[dict[str, object]]:
    """Yield one entry for each profile with an image."""
    for plan in usable_plans():
        if runtime_class(plan.runtime).in_container:
            yield {
                "profile": plan.profile,
                "engine": plan.engine.name,
                "base": plan.engine.image,
                "disk_gib": IMAGE_BYTES >> 30,
            }
