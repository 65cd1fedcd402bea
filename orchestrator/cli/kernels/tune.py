"""The command `deploy kernels tune`."""

from typing import Annotated

import typer

from orchestrator.bench.cost import CostEstimate
from orchestrator.cli.kernels.options import ImageOption, ModelOption, TableOption
from orchestrator.cli.options import PriceOption, ProfileArgument, SetOption
from orchestrator.core.console import Progress, info, note, print_data
from orchestrator.core.errors import KernelsError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import quote
from orchestrator.kernels.plan_coverage import RowSources
from orchestrator.kernels.rows import write_untuned
from orchestrator.kernels.tuning import prepare_tuning, run_tuning
from orchestrator.planner.planning import load


def command(
    *,
    profile: ProfileArgument,
    tables: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    hours: Annotated[
        float, typer.Option(min=0.01, metavar="HOURS", help="maximum duration (hours); finished keys are kept")
    ] = 12,
    retune_derived: Annotated[
        bool, typer.Option("--retune-derived", help="also tune keys that have derived rows")
    ] = False,
    tokens: Annotated[str, typer.Option(metavar="N,N", help="token counts to tune; default: all")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print command, keys and cost, and stop")] = False,
    price: PriceOption = None,
    set_: SetOption = None,
) -> None:
    """Run aiter's tuner for missing kernels.

    Needs a host with the profile's GPU, which nothing else may use. The same command resumes an interrupted tuning.
    """
    plan = load(profile, overrides=set_ or ()).plan
    counts = _counts(tokens)
    sources = RowSources(tables=tuple(tables or ()), image=image, model=model)
    tuning = prepare_tuning(
        plan, sources, Home.from_environment(), hours=hours, retune_derived=retune_derived, tokens=counts
    )
    if not tuning.job.keys:
        note("nothing to tune: every key has a row")
        return
    if dry_run:
        info(quote(tuning.job.argv))
        print_data(write_untuned(tuning.job.keys))
        cost = CostEstimate.for_gpus(plan.hardware.name, plan.hardware.gpus, price or ())
        limit = f"{len(tuning.job.keys)} keys, at most {hours:g} hours; no duration is published"
        note(f"{limit}; up to {cost.format_cost(hours * 3600)} USD, {cost.terms}")
        return
    with Progress() as progress:
        tuned = run_tuning(
            tuning, lambda done, total: progress.update(f"tuning: {done} of {total} keys have a row", stage="tuning")
        )
    info(f"{len(tuned.accepted)} rows measured and saved, {len(tuned.remaining)} keys left")
    if tuned.remaining or tuned.problems:
        raise KernelsError("tuning is incomplete", problems=tuned.problems, hint="repeat the command to continue")
    note("next: `deploy kernels build PROFILE`; measure accuracy with the new table before you use it")


def _counts(text: str) -> list[int]:
    """Parse token counts such as `8,64`. Raises UsageError."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() and int(word) for word in words):
        raise UsageError(f"`{text}` is not a list of token counts", hint="for example `--tokens 8,64,2048`")
    return [int(word) for word in words]
