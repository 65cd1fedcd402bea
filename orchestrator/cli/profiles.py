"""The command `deploy profiles`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer

from orchestrator.cli.options import Json
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import note, print_data, table, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.images.base import IMAGE_BYTES
from orchestrator.planner.listing import CatalogListing, catalog_listing, chosen_profiles, tables
from orchestrator.planner.planning import usable_plans
from orchestrator.runtimes import runtime_class


@dataclass(frozen=True, kw_only=True)
class MatrixEntry:
    """A profile with an image, its base image, and the disk space of a build."""

    profile: str
    engine: str
    base: str | None
    disk_gib: int


@dataclass(frozen=True, kw_only=True)
class MatrixOutput:
    """With `--format github-matrix`: a matrix of GitHub Actions."""

    include: tuple[MatrixEntry, ...]


OUTPUT: Final = JsonOutput[CatalogListing | MatrixOutput](CatalogListing, MatrixOutput)


def command(
    *,
    format_: Annotated[
        Literal["table", "github-matrix"],
        typer.Option("--format", metavar="table|github-matrix", help="how to print them"),
    ] = "table",
    hardware: Annotated[str | None, typer.Option(metavar="NAME", help="only profiles for this hardware")] = None,
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="only profiles whose model contains this")] = None,
    json: Json = False,
) -> None:
    """List profiles, hardware, models and engines.

    `--format github-matrix` prints the profiles with an image as a GitHub Actions matrix, with the disk space of each
    build in GiB.
    """
    if format_ == "github-matrix":
        OUTPUT.show(MatrixOutput(include=tuple(_matrix())))
        return
    catalog = Catalog.from_environment()
    if hardware is not None:
        catalog.path(EntryKind.HARDWARE, hardware)
    listing = catalog_listing(catalog)
    if hardware is not None or model is not None:
        listing = chosen_profiles(listing, hardware=hardware, model=model)
        if not listing.profiles:
            note("no such profile; `deploy profiles` lists all, `deploy up --model CHECKPOINT` writes one")
    if json:
        OUTPUT.show(listing)
    elif listing.profiles:
        width = terminal_width()
        print_data("\n\n".join(table(header, rows, width=width) for header, rows in tables(OUTPUT.data(listing))))


def _matrix() -> Iterator[MatrixEntry]:
    """Yield one entry for each profile with an image."""
    for plan in usable_plans():
        if runtime_class(plan.runtime).in_container:
            yield MatrixEntry(
                profile=plan.profile, engine=plan.engine.name, base=plan.engine.image, disk_gib=IMAGE_BYTES >> 30
            )
