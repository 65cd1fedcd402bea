"""The command `deploy reproduce`."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.bench.cost import CostEstimate, EstimateOutput, StepOutput
from orchestrator.bench.published import Published, PublishedModel, load_published
from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.verify import checkpoint_directory
from orchestrator.cli.options import (
    HostOption,
    Json,
    PriceOption,
    SetOption,
    complete_names,
    entry_option,
    server_names,
)
from orchestrator.core.command_hints import hints_for
from orchestrator.core.console import info, note, print_data
from orchestrator.core.errors import OutputError, UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import HUB_TOKEN
from orchestrator.core.streams import IGNORE_SIGPIPE
from orchestrator.core.subprocesses import python_module_argv, run_attached
from orchestrator.evals.harness import has_hub_token
from orchestrator.evals.suites import find_suite
from orchestrator.experiments.reproduce import ReproducePlan, ReproduceRequest, plan_steps, require_all_questions
from orchestrator.experiments.reproduce_steps import (
    STATE_FILE,
    Step,
    StepLog,
    StepRunner,
    might_exist,
    remaining_steps,
    reproduce,
)
from orchestrator.experiments.reproduce_steps import command as step_command
from orchestrator.kernels.plan_coverage import TUNING_HOURS, report_coverage, require_tuned
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.servers.servers import open_servers
from orchestrator.servers.start.host import resolve_host_ref, runner_for

PublishedArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        autocompletion=complete_names("PUBLISHED"),
        help="published measurement, such as wafer-glm52, or its file",
    ),
]
AblationOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--ablation", metavar="NAME", help="ablation to measure too, such as mtp-off (may be repeated)"),
]
OutputOption: TypeAlias = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="directory of the results; default: results/NAME")
]
DatasetOption: TypeAlias = Annotated[
    Path | None, typer.Option("--dataset", metavar="DIR", help="local questions of the suites, instead of a download")
]
OneProfileOption: TypeAlias = Annotated[
    str | None, entry_option("PROFILE", "--profile", "-p", help="measure this profile only, such as b200-tp8")
]
TuneOption: TypeAlias = Annotated[bool, typer.Option("--tune", help="measure missing MoE kernels first, on this host")]
NoEvalsOption: TypeAlias = Annotated[bool, typer.Option("--no-evals", help="skip the evaluations")]
CheckpointOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="checkpoint on the host, to verify instead of downloading"),
]
FromOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="SERVER",
        help="measure this running server, and leave it running",
        autocompletion=server_names,
    ),
]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="list the steps with their time and cost, and stop")
]


_TUNE = "`--tune` runs `deploy kernels tune` as a step for each layout"

OUTPUT: Final = JsonOutput(EstimateOutput)  # only with `--dry-run`


def command(
    name: PublishedArgument,
    *,
    ablation: AblationOption = None,
    dry_run: DryRunOption = False,
    price: PriceOption = None,
    checkpoint: CheckpointOption = None,
    dataset: DatasetOption = None,
    no_evals: NoEvalsOption = False,
    tune: TuneOption = False,
    output: OutputOption = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="keep a server whose measurement failed")] = False,
    profile_: OneProfileOption = None,
    from_: FromOption = None,
    host: HostOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Repeat a published measurement. Each layout runs from preflight to report; finished steps are skipped.

    The same command resumes an interrupted measurement.
    """
    _check(tune=tune, host=host, running=from_ is not None, needs_start=bool(checkpoint or ablation))
    published = load_published(name)
    running = (from_, _running_plan(from_, host)) if from_ is not None else None
    directory = output or Path("results") / FileName(published.name)
    prices = tuple(price or ())
    request = ReproduceRequest(
        published_name=name,
        overrides=tuple(set_ or ()),
        host=host,
        checkpoint=checkpoint,
        ablations=tuple(ablation or ()),
        prices=prices,
        dataset=dataset,
        evals=not no_evals,
        tune=tune,
        profile=profile_,
        model=_model(published, running, host, set_ or (), checkpoint),
        running=running,
        has_checkpoint=partial(_has_checkpoint, host=host),
    )
    planned = plan_steps(published, directory, request)
    _note_checkpoint(planned, published)
    state = StepLog(directory / STATE_FILE, planned.steps)
    bill = _estimate(published, planned, prices, own_node=profile_ is not None)
    todo = _estimates(remaining_steps(planned.steps, state.done))
    if running is None:
        _require_runnable(planned, host, covered=dry_run, tune=tune)
    notes = [*planned.skipped, *_gated(planned, dataset)]
    if dry_run and json:
        OUTPUT.show(bill.to_output(todo, notes))
        return
    _show(notes, bill, todo, dry_run=dry_run)
    if not dry_run:
        _run(planned, state, host, keep=keep_failed or running is not None, dataset=dataset)
        note(f"wrote `{directory / 'report.html'}`")


def _check(*, tune: bool, host: str | None, running: bool, needs_start: bool) -> None:
    """Raise UsageError for conflicting options; with `needs_start`, some apply only to servers not yet started."""
    if tune and host is not None:
        raise UsageError(
            "cannot use `--tune` with `--host`: it measures kernels on this host",
            hint=f"run `deploy reproduce` on {host}",
        )
    if running and (tune or needs_start):
        message = "`--tune`, `--checkpoint` and `--ablation` do not apply to a running server"
        raise UsageError(message, hint="omit them, or omit `--from`")


def _show(notes: Sequence[str], bill: CostEstimate, todo: Sequence[StepOutput], *, dry_run: bool) -> None:
    """Print the skipped steps, then the remaining ones with time and price."""
    for sentence in notes:
        note(sentence)
    (print_data if dry_run else info)(bill.to_table(todo))
    note(bill.terms)
    if any(step.argv[1:3] == ("kernels", "tune") for step in todo):
        note(f"the estimate includes {TUNING_HOURS:.0f} hours, the limit, for `kernels tune`: no duration is published")


def _gated(planned: ReproducePlan, dataset: Path | None) -> Iterator[str]:
    """Yield the suites with questions that require access on the hub, and how to get it."""
    suites = dict.fromkeys(suite for server in planned.servers for suite in server.suites)
    for suite in map(find_suite, suites if dataset is None else ()):
        if suite.gated is not None:
            state = "the token here must have access" if has_hub_token() else "no token is set"
            yield (
                f"the questions of `{suite.name}` are gated, and {state}: accept the terms at {suite.hub_page}, then "
                f"`hf auth login`, or set {HUB_TOKEN} to a token with read access; `--dataset` takes a local copy"
            )


def _model(
    published: Published,
    running: tuple[str, Plan] | None,
    host: str | None,
    overrides: Sequence[str],
    checkpoint: Path | None,
) -> PublishedModel | None:
    """Return the published model if the running server has it, or if the user chose no model and the host has it."""
    model = published.reproduce.published_model
    if model is not None and running is not None:
        return model if model.name == running[1].model.name else None
    if model is None or checkpoint or any(override.startswith("model") for override in overrides):
        return None
    plan = load(published.reproduce.runs[0].profile, overrides=[f"model={model.name}"]).plan
    return model if _has_checkpoint(plan, host) else None


def _has_checkpoint(plan: Plan, host: str | None) -> bool:
    """Return whether the host has a checkpoint for the plan, which may be incomplete."""
    home = Home.from_environment()
    host_ref, config = resolve_host_ref(plan.runtime, home, host), checkpoint_directory(plan.model, home) / CONFIG
    if host_ref.remote is None:
        return config.is_file()
    return runner_for(host_ref)(["test", "-f", str(config)]).code == 0


def _running_plan(name: str, host: str | None) -> Plan:
    """Return the plan of a running server. Raises StartError if it is not running or was started elsewhere."""
    with open_servers(Home.from_environment(), host) as servers:
        server = servers.open(name)
        server.require_running()
        return server.require_plan()


def _note_checkpoint(planned: ReproducePlan, published: Published) -> None:
    """Print the checkpoint, and whether it matches the published one."""
    model, published_model = planned.servers[0].plan.model, published.reproduce.published_model
    kind = published_model.describe(model.name) if published_model else ""
    note(f"checkpoint: `{model.name}`, {model.checkpoint.path}{', ' if kind else ''}{kind}")


def _estimate(published: Published, planned: ReproducePlan, prices: Sequence[str], *, own_node: bool) -> CostEstimate:
    """Return the hourly cost of the published node, or with `own_node` of the node of the profile."""
    hardware = planned.servers[0].plan.hardware
    own, other = (hardware.name, hardware.gpus), (published.rates_system.partition("×")[2], published.gpus)
    gpu, count = own if own_node else other
    return CostEstimate.for_gpus(gpu, count, prices)


def _estimates(steps: Sequence[Step]) -> list[StepOutput]:
    return [
        StepOutput(id=step.id, argv=("deploy", *step_command(step)), estimated_s=round(step.seconds)) for step in steps
    ]


def _require_runnable(planned: ReproducePlan, host: str | None, *, covered: bool, tune: bool) -> None:
    """Check that host and kernel coverage allow each plan to run. Raises a DeployError if not."""
    home = Home.from_environment()
    for server in planned.servers:
        with hints_for(server.profile, server.overrides):
            resolve_host_ref(server.plan.runtime, home, host)
            if covered and not server.is_ablation:
                report_coverage(server.plan, home)
    for server in planned.servers if not tune else ():
        with hints_for(server.profile, server.overrides):
            require_tuned(server.plan, home, tune=_TUNE, allow=None)


def _run_step(argv: Sequence[str]) -> int:
    """Run a step and return its exit code. A lost terminal does not end it: its GPU time is already paid for."""
    code = run_attached(python_module_argv("orchestrator", *argv), **{IGNORE_SIGPIPE: "1"})
    return 0 if code == OutputError.exit_code else code


def _run(planned: ReproducePlan, state: StepLog, host: str | None, *, keep: bool, dataset: Path | None) -> None:
    def exists(server: str) -> bool:
        with open_servers(Home.from_environment(), host) as servers:
            return might_exist(servers, server)

    require_all_questions(planned, remaining_steps(planned.steps, state.done), dataset)
    runner = StepRunner(run=_run_step, might_exist=exists, host=host)
    reproduce(planned.steps, state, runner, keep_failed=keep)
