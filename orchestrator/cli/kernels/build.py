"""The command `deploy kernels build`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.kernels.options import ImageOption, ModelOption, TableOption
from orchestrator.cli.options import HostOption, Json, ProfileArgument, SetOption
from orchestrator.core.console import info
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.kernels.coverage import Coverage
from orchestrator.kernels.plan_coverage import RowSources
from orchestrator.kernels.plan_table import build_table
from orchestrator.planner.planning import load
from orchestrator.servers.start.host import resolve_host_ref


@dataclass(frozen=True, kw_only=True)
class TableOutput:
    """A written table, its number of rows by origin, and its coverage of the plan."""

    path: Path
    rows: dict[str, int]
    coverage: Coverage


OUTPUT: Final = JsonOutput(TableOutput)


def command(
    *,
    profile: ProfileArgument,
    tables: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    upstream: Annotated[
        bool, typer.Option("--upstream/--no-upstream", help="include rows of the pinned upstream table")
    ] = True,
    host: HostOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Build a profile's merged kernel table. Prints its path.

    The built-in rows are read from the profile's image, or from copies of its tables given with `--table`.
    """
    if host is not None and tables:
        raise UsageError("`--host` needs `--image`", hint="add `--image IMAGE`, or run the command on that host")
    plan, home = load(profile, overrides=set_ or ()).plan, Home.from_environment()
    remote = resolve_host_ref(plan.runtime, home, host).remote
    sources = RowSources(tables=tuple(tables or ()), image=image, model=model, remote=remote)
    built = build_table(plan, sources, home, upstream=upstream)
    info(built.summary)
    rows = {origin.value: count for origin, count in built.table.origins.items()}
    output = TableOutput(path=built.path, rows=rows, coverage=built.coverage)
    OUTPUT.show_or_print(output, lambda: str(built.path), json=json)
