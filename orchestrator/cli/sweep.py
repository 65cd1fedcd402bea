"""The command `deploy sweep`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from orchestrator.cli.options import (
    AcceptUntuned,
    HostOption,
    Json,
    ProfileArgument,
    RatesOption,
    SetOption,
    WorkloadOption,
    read_rates,
)
from orchestrator.core.console import note, print_data, print_json, say
from orchestrator.core.errors import BenchError, DeployError
from orchestrator.core.paths import Home
from orchestrator.core.text import parse_json
from orchestrator.experiments.sweep.files import write_sweep_report, write_winners
from orchestrator.experiments.sweep.preview import dry_data, dry_text, scan_space
from orchestrator.experiments.sweep.run import Budget, Sweep, SweepRequest, default_output, open_search, plan_sweep
from orchestrator.experiments.sweep.trial import run_trials
from orchestrator.experiments.sweep.winner import profile_path

SpaceOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--space", metavar="FILE", help="what may vary; default: layouts, running requests, prefill chunks"),
]
ObjectiveOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="knee, tok-s, tok-s-per-watt, usd-per-million or pareto; default: the space's, else knee"
    ),
]
AtOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--at", min=0.001, metavar="RPS", help="read the objective at this rate; default: at the knee"),
]
TtftOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--ttft", min=0.001, metavar="SECONDS", help="the TTFT p95 to keep; default: the workload's"),
]
TrialsOption: TypeAlias = Annotated[int | None, typer.Option(min=1, metavar="N", help="at most so many trials")]
ConfirmOption: TypeAlias = Annotated[
    int | None,
    typer.Option(min=0, max=10, metavar="N", help="measure the best so often again before it is named; default: 2"),
]
HoursOption: TypeAlias = Annotated[float | None, typer.Option(min=0.001, metavar="H", help="at most so many hours")]
UsdOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0.01, metavar="USD", help="at most so much money; needs --price")
]
SweptOutput: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="journal, results, report and profile; default: results/sweep-PROFILE, the profile at home"
    ),
]
NameOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="what the winner is called; default: PROFILE-swept")
]
ResumeOption: TypeAlias = Annotated[bool, typer.Option("--resume", help="go on with the sweep in DIR")]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="the space, what cannot fit, time and price; starts nothing")
]
TimeoutOption: TypeAlias = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="give a start up after this long; default: as `up`")
]


def command(
    *,
    profile: ProfileArgument,
    space: SpaceOption = None,
    objective: ObjectiveOption = None,
    at: AtOption = None,
    ttft: TtftOption = None,
    workload: WorkloadOption = None,
    rates: RatesOption = None,
    trials: TrialsOption = None,
    confirm: ConfirmOption = None,
    hours: HoursOption = None,
    usd: UsdOption = None,
    price: Annotated[float | None, typer.Option(metavar="USD", help="the price of one GPU for an hour")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="of the search")] = 1,
    output: SweptOutput = None,
    name: NameOption = None,
    resume: ResumeOption = False,
    dry_run: DryRunOption = False,
    accept_untuned: AcceptUntuned = False,
    timeout: TimeoutOption = None,
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
        beside=output is not None,
        budget=Budget(trials=trials, hours=hours, usd=usd),
        overrides=tuple(set_ or ()),
        objective=objective,
        at_rps=at,
        ttft_p95_s=ttft,
        workload=workload,
        request_rates=read_rates(rates),
        confirm=confirm,
        usd_per_gpu_hour=price,
        seed=seed,
        host=host,
        accept_untuned=accept_untuned,
        timeout=timeout,
        resume=resume,
        name=name,
    )
    planned = plan_sweep(request, Home.from_environment())
    profile_path(planned)
    if dry_run:
        _preview(planned, json=json)
    else:
        _search(planned, json=json)


def _preview(planned: Sweep, *, json: bool) -> None:
    looked = scan_space(planned)
    if json:
        print_json(dry_data(planned, looked))
    else:
        print_data(dry_text(planned, looked))


def _search(planned: Sweep, *, json: bool) -> None:
    with open_search(planned) as search:
        write_sweep_report(planned, search)
        try:
            ended = run_trials(planned, search, lambda: write_sweep_report(planned, search))
        except DeployError:
            write_sweep_report(planned, search)
            raise
        winners = write_winners(planned, search)
        report = write_sweep_report(planned, search, winners, ended=ended)
        if json:
            print_json(parse_json(report.with_suffix(".json").read_bytes()))
        else:
            print_data(report.with_suffix(".md").read_text())
    note(f"the report is `{report}`, with `.md` and `.json` beside it")
    for winner in winners:
        say(f"wrote {winner.profile}" if winner.profile else f"`{planned.plan.profile}` is the best as it is")
    if not winners:
        hint = f"`{report}` says of each of them what came of it"
        raise BenchError("no configuration was measured that sustains a rate", hint=hint)
