"""The command `deploy kernels coverage`."""

from collections.abc import Sequence
from os import environ
from typing import Annotated, Final

import typer

from orchestrator.cli.kernels.options import ImageOption, ModelOption, TableOption
from orchestrator.cli.options import HostOption, Json, SetOption, complete_names
from orchestrator.core.command_hints import hints_for
from orchestrator.core.console import note, print_data
from orchestrator.core.errors import KernelsError, UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.hosts.daemon import remote_host
from orchestrator.kernels.coverage import Coverage, queries_aiter_tables, to_text, uses_tuned_table
from orchestrator.kernels.plan_coverage import (
    RowSources,
    compute_coverage,
    derived_hint,
    has_unquantized_experts,
    warn_mismatches,
)
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, usable_plans

OUTPUT: Final = JsonOutput(tuple[Coverage, ...])


def command(
    *,
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="PROFILE", help="profile name or file; default: all", autocompletion=complete_names("PROFILE")
        ),
    ] = None,
    tables: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    host: HostOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Show which token counts have a tuned kernel. Exits with 9 if the server would meet an untuned one."""
    if host is not None and image is None:
        raise UsageError("`--host` needs `--image`", hint="add `--image IMAGE`, or run the command on that host")
    home, remote = Home.from_environment(), remote_host(host, environ)
    sources = RowSources(tables=tuple(tables or ()), image=image, model=model, remote=remote)
    plans = _plans(profile, set_ or ())
    if model is not None and has_unquantized_experts(model):
        note(f"not applicable: the routed experts of `{model}` are not quantized; aiter has no tuned table for them")
        plans = []
    warn_mismatches(plans, sources, home)
    covered = []
    for plan in plans:
        with hints_for(profile or plan.profile, set_ or ()):
            covered.append(compute_coverage(plan, sources, home))
    if json:
        OUTPUT.show(tuple(covered))
    elif covered:
        print_data("\n\n".join(map(to_text, covered)))
    if profile is not None and plans and (text := derived_hint(plans[0], covered[0])):
        note(text)
    if short := [item for item in covered if item.untuned_keys]:
        names = ", ".join(f"{len(item.untuned_keys)} of `{item.profile}`" for item in short)
        hint = "`deploy kernels build PROFILE` adds known rows, `deploy kernels tune PROFILE` measures the others"
        if not any(map(uses_tuned_table, plans)):
            hint = "aiter chooses kernels by heuristics; `deploy` tunes tables only for MXFP4"
        with hints_for(profile or short[0].profile, set_ or ()):
            raise KernelsError(f"keys without a tuned kernel: {names}", hint=hint)


def _plans(profile: str | None, overrides: Sequence[str]) -> list[Plan]:
    """Return the plan of the profile, or the plans of all profiles with tunable kernels."""
    if profile is None:
        return [plan for plan in usable_plans(overrides) if queries_aiter_tables(plan)]
    plan = load(profile, overrides=overrides).plan
    if not queries_aiter_tables(plan):
        note(f"not applicable: `{plan.profile}` uses no table of tuned aiter kernels")
        return []
    return [plan]
