"""The command `deploy profiles`."""

from orchestrator.cli.options import Json
from orchestrator.core.catalog import Catalog
from orchestrator.core.console import print_data, print_json, table, terminal_width
from orchestrator.planner.listing import catalog_listing, tables


def command(*, json: Json = False) -> None:
    """List profiles, and the hardware, models and engines they name."""
    found = catalog_listing(Catalog.from_environment())
    if json:
        print_json(found)
    else:
        width = terminal_width()
        print_data("\n\n".join(table(header, rows, width=width) for header, rows in tables(found)))
