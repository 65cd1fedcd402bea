"""The command `deploy sweep`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.cli.options import (
    AllowUntuned,
    HostOption,
    Json,
    ProfileArgument,
    RequestRateOption,
    SetOption,
    WorkloadOption,
    read_rates,
)
from orchestrator.core.console import info, note
from orchestrator.core.errors import BenchError, DeployError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.experiments.sweep.confirm import describe_difference
from orchestrator.experiments.sweep.files import (
    profile_name,
    profile_path,
    sweep_report,
    write_sweep_report,
    write_winners,
)
from orchestrator.experiments.sweep.objective import Objective
from orchestrator.experiments.sweep.preview import SweepPreview, preview_sweep, preview_text
from orchestrator.experiments.sweep.report import SweepReport, sweep_text
from orchestrator.experiments.sweep.run import Budget, Sweep, SweepRequest, default_output, open_search, plan_sweep
from orchestrator.experiments.sweep.trial import run_trials

SpaceOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--space", metavar="FILE", help="search space; default: layouts, running requests, prefill chunks"),
]
ObjectiveOption: TypeAlias = Annotated[
    Objective | None,
    typer.Option(metavar="NAME", help="knee, tok-s, tok-s-per-watt, usd-per-million or pareto; default: knee"),
]
AtRateOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--at-rate", min=0.001, metavar="RPS", help="request rate to optimize for (requests/s); default: the knee"
    ),
]
MaxTrialsOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="maximum number of trials, without repeats")
]
RepeatsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(min=0, max=10, metavar="N", help="repeat measurements of the best configuration; default: 2"),
]
MaxHoursOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0.001, metavar="H", help="maximum duration (hours)")
]
MaxCostOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0.01, metavar="USD", help="maximum cost (USD); needs `--price`")
]
SweptOutput: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="directory of the sweep; default: results/sweep-PROFILE")
]
NameOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="name of the best profile; default: PROFILE-swept")
]
ResumeOption: TypeAlias = Annotated[bool, typer.Option("--resume", help="resume the sweep in DIR")]
DryRunOption: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="print search space, time and cost, and stop")]
OUTPUT: Final = JsonOutput[SweepReport | SweepPreview](SweepReport, SweepPreview)


def command(
    *,
    profile: ProfileArgument,
    space: SpaceOption = None,
    objective: ObjectiveOption = None,
    at_rate: AtRateOption = None,
    workload: WorkloadOption = None,
    request_rate: RequestRateOption = None,
    max_trials: MaxTrialsOption = None,
    repeats: RepeatsOption = None,
    max_hours: MaxHoursOption = None,
    max_cost: MaxCostOption = None,
    price: Annotated[float | None, typer.Option(metavar="USD", help="price per GPU hour (USD)")] = None,
    output: SweptOutput = None,
    name: NameOption = None,
    resume: ResumeOption = False,
    dry_run: DryRunOption = False,
    allow_untuned: AllowUntuned = False,
    host: HostOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Search for a better configuration. The best one is written as a profile, with a report.

    Each trial is an `up`, a `bench` and a `down` of the sweep's own server.
    """
    request = SweepRequest(
        profile=profile,
        space=space,
        output=output or default_output(profile),
        winner_in_output=output is not None,
        budget=Budget(trials=max_trials, hours=max_hours, usd=max_cost),
        overrides=tuple(set_ or ()),
        objective=objective,
        at_rps=at_rate,
        workload=workload,
        request_rates=read_rates(request_rate),
        repeats=repeats,
        usd_per_gpu_hour=price,
        host=host,
        allow_untuned=allow_untuned,
        resume=resume,
        name=name,
        command=shlex.join(["deploy", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"]),
    )
    planned = plan_sweep(request, Home.from_environment())
    profile_path(planned)
    if dry_run:
        _preview(planned, json=json)
    else:
        _search(planned, json=json)


def _preview(planned: Sweep, *, json: bool) -> None:
    if planned.request.resume:
        with open_search(planned):  # raises UsageError for the options of another sweep
            pass
    preview = preview_sweep(planned)
    OUTPUT.show_or_print(preview, lambda: preview_text(planned, preview), json=json)


def _search(planned: Sweep, *, json: bool) -> None:
    with open_search(planned) as search:
        write_sweep_report(planned, search)
        try:
            ended = run_trials(planned, search, lambda: write_sweep_report(planned, search))
        except DeployError as error:
            write_sweep_report(planned, search, ended=f"ended early: {error.message}")
            raise
        winners = write_winners(planned, search)
        report = write_sweep_report(planned, search, winners, ended=ended)
        summary = sweep_report(planned, search, winners, ended)
        OUTPUT.show_or_print(summary, lambda: sweep_text(summary), json=json)
    note(f"wrote `{report}`, and the same report as `.json`")
    for winner in winners:
        info(
            f"wrote {winner.profile}"
            if winner.profile
            else f"no profile `{profile_name(planned)}` written: the baseline `{planned.plan.profile}` is the best"
        )
        if difference := describe_difference(planned, search, winner.trial):
            info(difference)
    if not winners:
        raise BenchError("no trial has a value", hint=f"`{report}` has the reason of each")
