"""The command `deploy kernels build`."""

from typing import Annotated

import typer

from orchestrator.cli.kernels.options import ImageOption, ModelOption, TableOption
from orchestrator.cli.options import HostOption, Json, ProfileArgument, SetOption
from orchestrator.core.console import print_data, print_json, say
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.kernels.coverage import to_dict
from orchestrator.kernels.plan_coverage import RowSources
from orchestrator.kernels.plan_table import build_table
from orchestrator.planner.planning import load
from orchestrator.servers.start.host import host_ref


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
        raise UsageError("`--host` needs `--image`", hint="without `--image`, tables are read on this host")
    plan, home = load(profile, overrides=set_ or ()).plan, Home.from_environment()
    far = host_ref(plan.runtime, home, host).remote
    given = RowSources(tables=tuple(tables or ()), image=image, model=model, remote=far)
    built = build_table(plan, given, home, upstream=upstream)
    say(built.summary)
    if json:
        origins = {origin.value: count for origin, count in built.table.origins.items()}
        print_json({"path": str(built.path), "rows": origins, "coverage": to_dict(built.coverage)})
    else:
        print_data(str(built.path))
