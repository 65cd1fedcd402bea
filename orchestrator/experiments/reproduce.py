"""The plan of `deploy reproduce`: the `deploy` commands that repeat a published measurement."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.bench.published import Ablation, Published, PublishedModel, ReproduceRun
from orchestrator.bench.workload import Workload, load_workload, require_context, workload_name
from orchestrator.core.errors import UsageError
from orchestrator.core.safe_paths import FileName
from orchestrator.core.subprocesses import quote
from orchestrator.core.suggest import did_you_mean
from orchestrator.evals import tau2
from orchestrator.evals.eval_result import eval_result_file
from orchestrator.evals.harness import require_questions
from orchestrator.evals.suites import find_suite, published_pace, suite_run, tau2_note
from orchestrator.experiments.reproduce_steps import Step, host_option
from orchestrator.kernels.coverage import uses_tuned_table
from orchestrator.kernels.plan_coverage import TUNING_HOURS, needs_table, tuning_options
from orchestrator.plan.diff import differences, flatten
from orchestrator.plan.plan import Plan
from orchestrator.planner.estimate import PULL, STEP_SECONDS, startup_seconds
from orchestrator.planner.planning import load
from orchestrator.runtimes import runtime_class

_TABLE_STAGES: Final = frozenset({"tune", "kernels"})  # stages for the table of tuned kernels
_NO_EXPERTS: Final = "the server uses no MXFP4 experts of aiter"
# Stages that may fail before the first measurement. The checkpoint, the longest download, comes last; without its
# config, the tuner measures both the fused and the unfused shape.
_EARLY_STAGES: Final = ("preflight", "kernels", "build", "stage")
_EARLY_STAGES_WITH_TUNING: Final = ("preflight", "stage", "tune", "kernels", "build")
_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {  # default: the name of the stage
    "tune": ("kernels", "tune"),
    "kernels": ("kernels", "build"),
}

_DRAIN: Final = 30.0  # seconds until the last response of a rate
_DOWNLOAD: Final = 400e6  # estimated bytes per second from the hub
_CLIMB: Final = 2  # estimated number of rates above the listed ones until the knee


@dataclass(frozen=True, kw_only=True)
class ReproducePlan:
    """The steps in order, and the reasons for skipped stages."""

    steps: tuple[Step, ...]
    skipped: tuple[str, ...]
    servers: tuple["MeasuredServer", ...]


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """The user's request; by default the published runs, with checkpoints from the hub, on this host."""

    published_name: str  # the published measurement: a name or a file
    overrides: tuple[str, ...] = ()
    host: str | None = None
    checkpoint: Path | None = None  # local directory with the published checkpoint
    ablations: tuple[str, ...] = ()
    prices: tuple[str, ...] = ()  # values of `--price`
    dataset: Path | None = None  # directory with local copies of the questions
    evals: bool = True  # run the suites of the published runs
    has_checkpoint: Callable[[Plan], bool] = lambda _: False  # whether the host has the checkpoint of a baseline
    tune: bool = False  # measure the MoE kernels that upstream tables lack
    model: PublishedModel | None = None  # replaces the model of a profile
    profile: str | None = None  # the only profile to measure
    running: tuple[str, Plan] | None = None  # the only server to measure, already started, with its plan


@dataclass(frozen=True, kw_only=True)
class MeasuredServer:
    """A server to start, with its workloads and suites."""

    name: str
    profile: str
    overrides: tuple[str, ...]
    plan: Plan
    workloads: tuple[str, ...]
    suites: tuple[str, ...]
    is_ablation: bool  # a server with one feature disabled
    is_baseline: bool  # its scores are the baseline of the other servers


def plan_steps(published: Published, directory: Path, request: ReproduceRequest) -> ReproducePlan:
    """Plan the steps: first the stages that may fail before a measurement, then all steps of each server.

    With `request.running`, plan only that server's measurements. Raises UsageError for an unknown ablation, and for a
    running server whose plan matches no published run.
    """
    servers = tuple(_servers(published, request))
    if request.running is not None:
        servers = (_running_server(servers, *request.running),)
        own_steps = _serve(servers[0], directory, published=published, request=request, baselines={})
        measured = tuple(step for step in own_steps if step.stage not in {"up", "down"})
        return ReproducePlan(steps=measured, skipped=tuple(_results_without_step(published, servers)), servers=servers)
    stages = _EARLY_STAGES_WITH_TUNING if request.tune else _EARLY_STAGES
    candidates = [
        (stage, server, _skip_reason(stage, server.plan, request.host)) for stage in stages for server in servers
    ]
    needed = [(stage, server) for stage, server, reason in candidates if reason is None]
    steps, baselines = list(_prepare(needed, request)), dict[str, Path]()
    for server in servers:
        if server.is_baseline:
            baselines |= {suite: directory / FileName(server.name) / eval_result_file(suite) for suite in server.suites}
        steps += _serve(server, directory, published=published, request=request, baselines=baselines)
    skipped = [f"no step `{stage}` for `{server.name}`: {reason}" for stage, server, reason in candidates if reason]
    skipped += [*_unmeasured(published, request), *_results_without_step(published, servers)]
    return ReproducePlan(steps=tuple(steps), skipped=tuple(skipped), servers=servers)


def _baselines(published: Published, request: ReproduceRequest) -> Iterator[tuple[Ablation, Plan]]:
    """Yield the baselines of the published scores that the user did not name, if suites run."""
    for ablation in published.reproduce.ablations if request.evals and request.profile is None else ():
        if ablation.is_baseline and ablation.name not in request.ablations:
            yield ablation, _server(ablation, request, suites=()).plan


def _unmeasured(published: Published, request: ReproduceRequest) -> Iterator[str]:
    """Yield the baselines that are not measured, each with the command that measures it."""
    for ablation, plan in _baselines(published, request):
        if not request.has_checkpoint(plan):
            command = quote(["deploy", "reproduce", request.published_name, "--ablation", ablation.name])
            yield (
                f"not measured: the baseline of {', '.join(ablation.suites)}, as `{plan.model.checkpoint.path}` is not "
                f"on the host; `{command}` measures it too (`--dry-run`: its time and cost)"
            )


def _servers(published: Published, request: ReproduceRequest) -> Iterator[MeasuredServer]:
    """Yield the servers of the publication, then one for each ablation."""
    defined = {ablation.name: ablation for ablation in published.reproduce.ablations}
    if unknown := next((name for name in request.ablations if name not in defined), None):
        raise UsageError(f"`{published.name}` has no ablation `{unknown}`", hint=did_you_mean(unknown, defined))
    staged = [ablation.name for ablation, plan in _baselines(published, request) if request.has_checkpoint(plan)]
    ablations = [defined[name] for name in dict.fromkeys((*request.ablations, *staged))]
    for run in _runs(published, request.profile):
        if (
            not run.workloads
            and not request.evals
            and run.server not in {ablation.full_server for ablation in ablations}
        ):
            continue
        compared = (suite for ablation in ablations if ablation.full_server == run.server for suite in ablation.suites)
        yield _server(run, request, suites=tuple(dict.fromkeys((*(run.suites if request.evals else ()), *compared))))
    for ablation in ablations:
        yield _server(ablation, request, suites=ablation.suites)


def _running_server(servers: Sequence[MeasuredServer], name: str, plan: Plan) -> MeasuredServer:
    """Return the published run that a running server repeats, under the server's name.

    Raises UsageError with the differences from the closest run if there is none.
    """
    compared = [(differences((_measured_keys(server.plan), _measured_keys(plan))), server) for server in servers]
    changed, closest = min(compared, key=lambda pair: len(pair[0]))
    if changed:
        differences_text = "; ".join(
            f"{item.key}: {item.values[1] or 'none'}, not {item.values[0] or 'none'}" for item in changed
        )
        raise UsageError(
            f"`{name}` runs another plan than `{closest.name}`: {differences_text}",
            hint="pass the same `--set` options as to `up`, or restart the profile without them",
        )
    return replace(closest, name=name)


def _measured_keys(plan: Plan) -> Mapping[str, str]:
    """Return the values that affect a measurement: neither runtime nor address, API key, pins or paths."""
    return flatten(
        {
            "hardware": plan.hardware.name,
            "model": plan.model.name,
            "engine": plan.engine.name,
            "layout": plan.layout.label,
            "replicas": plan.replicas,
            "flags": {flag.name: flag.values for flag in plan.flags},
            "env": {variable.name: variable.value for variable in plan.env},
            "patches": [patch.id for patch in plan.patches if patch.expected],
        }
    )


def _runs(published: Published, profile: str | None) -> Sequence[ReproduceRun]:
    """Return all published runs, the runs of one profile, or a run of an unpublished profile with the workload."""
    if profile is None:
        return published.reproduce.runs
    runs = [run for run in published.reproduce.runs if run.profile == profile]
    return runs or [ReproduceRun(profile=profile, workloads=(published.workload.name,))]


def _server(run: ReproduceRun, request: ReproduceRequest, *, suites: tuple[str, ...]) -> MeasuredServer:
    replaces_model = any(setting.startswith("model=") for setting in run.settings)  # not the checkpoint of `request`
    checkpoint = request.checkpoint.absolute() if request.checkpoint and not replaces_model else None
    local = ("model.checkpoint.source=local", f"model.checkpoint.path={checkpoint}") if checkpoint else ()
    overrides = (*request.overrides, *local, *run.settings)
    plan = load(run.profile, overrides=overrides).plan
    if request.model and plan.model.name == request.model.instead_of:
        overrides = (f"model={request.model.name}", *overrides)
        plan = load(run.profile, overrides=overrides).plan
    for workload in run.workloads:
        require_context(workload, load_workload(workload), plan.serving.context, run.profile)
    return MeasuredServer(
        name=run.server,
        profile=run.profile,
        overrides=overrides,
        plan=plan,
        workloads=run.workloads,
        suites=suites,
        is_ablation=isinstance(run, Ablation),
        is_baseline=replaces_model,
    )


def _skip_reason(stage: str, plan: Plan, host: str | None) -> str | None:
    """Return why a plan does not need a stage; None if it does."""
    if stage == "stage" and plan.model.checkpoint.source == "generated":
        return "`up` generates its checkpoint"
    if stage in _TABLE_STAGES and not needs_table(plan):
        return "its server reads the tables of aiter" if uses_tuned_table(plan) else _NO_EXPERTS
    if stage == "tune" and tuning_options(plan) is None:
        return "every batch of its workload has a tuned kernel"
    if stage == "build" and not runtime_class(plan.runtime).in_container:
        return "it does not run in a container"
    if stage in {"kernels", "build"} and host is not None:
        return f"`up` builds it on {host}"
    return None


def _prepare(needed: Sequence[tuple[str, MeasuredServer]], request: ReproduceRequest) -> Iterator[Step]:
    """Yield the steps before the first server; servers share downloads of checkpoints and images."""
    done: set[str] = set()
    for stage, server in needed:
        item, seconds = _download(stage, server.plan)
        host = host_option(request.host) if stage in {"preflight", "stage"} else ()
        options = (tuning_options(server.plan) or ()) if stage == "tune" else ()
        command = (*_COMMANDS.get(stage, (stage,)), "--profile", server.profile, *options, *_settings(server), *host)
        yield _step(stage, server.name, *command, extra_seconds=0.0 if item in done else seconds)
        done.add(item)


def _settings(server: MeasuredServer) -> Iterator[str]:
    for override in server.overrides:
        yield from ("--set", override)


def _download(stage: str, plan: Plan) -> tuple[str, float]:
    """Return the item that a stage downloads or tunes, and the estimated seconds."""
    if stage == "tune":  # the limit of the tuner; a second server of the same shape uses the measured rows
        layout = plan.layout
        return f"{plan.model.name}, {layout.tp} x {layout.ep}", TUNING_HOURS * 3600
    if stage == "stage" and plan.model.checkpoint.source == "hub":
        return plan.model.checkpoint.path, plan.model.weight_bytes / _DOWNLOAD
    if stage in {"kernels", "build"} and plan.engine.image:
        return plan.engine.image, PULL
    return "", 0.0


def _serve(
    server: MeasuredServer,
    directory: Path,
    *,
    published: Published,
    request: ReproduceRequest,
    baselines: Mapping[str, Path],
) -> Iterator[Step]:
    name, host = server.name, host_option(request.host)
    up = ("up", "--profile", server.profile, "--name", name, *_settings(server), *host)
    yield _step("up", name, *up, extra_seconds=startup_seconds(server.plan) + (PULL if request.host else 0.0))
    yield _step("smoke", name, "smoke", name, *host)
    for workload in server.workloads:
        output = directory / FileName(name) / FileName(workload_name(workload))
        yield Step(
            id=f"{name}/bench/{workload}",
            stage="bench",
            server=name,
            argv=("bench", name, "--workload", workload, "--output", str(output), *host),
            seconds=bench_seconds(load_workload(workload), tok_s=published.single_stream.output_tok_s),
            output=output,
        )
    for suite in server.suites:
        yield _eval(server, suite, directory, published=published, request=request)
    files = (word for path in baselines.values() for word in ("--baseline", str(path)))
    prices = (word for price in request.prices for word in ("--price", price))
    yield _step("report", name, "report", str(directory), "--published", request.published_name, *prices, *files)
    yield _step("down", name, "down", name, *host)


def _eval(
    server: MeasuredServer, suite: str, directory: Path, *, published: Published, request: ReproduceRequest
) -> Step:
    """Return the evaluation step of a suite, with the published number of questions and seeds."""
    run, output = suite_run(suite, published.evals), directory / FileName(server.name)
    plan = load(server.profile).plan if server.is_baseline else server.plan  # the baseline's pace is not published
    argv = ["eval", server.name, "--suite", suite]
    argv += ["--limit", str(run.limit)] if run.limit else []
    argv += ["--seeds", str(run.seeds)] if run.seeds > 1 else []
    argv += ["--dataset", str(request.dataset)] if request.dataset else []
    return Step(
        id=f"{server.name}/eval/{suite}",
        stage="eval",
        server=server.name,
        argv=(*argv, "--output", str(output), *host_option(request.host)),
        seconds=run.seconds(published_pace(plan, published)) or STEP_SECONDS["eval"],
        output=output,
        result_file=eval_result_file(suite),
    )


def require_all_questions(planned: ReproducePlan, remaining: Sequence[Step], data: Path | None) -> None:
    """Raise UsageError if the questions of a remaining suite are unavailable."""
    ids = {step.id for step in remaining}
    suites = [suite for server in planned.servers for suite in server.suites if f"{server.name}/eval/{suite}" in ids]
    try:
        for suite in suites:
            require_questions(find_suite(suite), data)
    except UsageError as error:
        error.hint = "; ".join(filter(None, [error.hint, "`--no-evals` skips the suites"]))
        raise


def _results_without_step(published: Published, servers: Sequence[MeasuredServer]) -> Iterator[str]:
    name = next((server.name for server in servers if server.suites and not server.is_ablation), None)
    if name is not None and any(line.suite == tau2.NAME for line in published.evals):
        yield f"no step `eval` for `{tau2.NAME}`: {tau2_note(name)}"


def _step(stage: str, server: str, *argv: str, extra_seconds: float = 0.0) -> Step:
    """Return a step of a server; `extra_seconds` is added to its usual duration."""
    seconds = STEP_SECONDS.get(stage, 0.0) + extra_seconds
    return Step(id=f"{server}/{stage}", stage=stage, server=server, argv=argv, seconds=seconds)


def bench_seconds(workload: Workload, *, tok_s: float) -> float:
    """Return the duration of a workload: arrivals and drain at each rate, or sequential answers at `tok_s`."""
    if workload.load == "closed":
        return workload.requests * workload.output_tokens / tok_s / (workload.concurrency or 1)
    rates = list(workload.request_rates)
    if workload.ramp is not None:
        rates += [rates[-1] + workload.ramp.step_rps * (step + 1) for step in range(_CLIMB)]
    return sum(workload.requests_at(rate) / rate + _DRAIN for rate in rates)
