"""`deploy sweep`: the request, the resolved sweep, its budget and its journal.

Each trial is an `up`, a `bench` and a `down`. A journal records all trials, so that a later call resumes the sweep.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from orchestrator.bench.run import WorkloadChanges, apply_changes, parse_price
from orchestrator.bench.steady_state import unjudgeable_rates
from orchestrator.bench.workload import Workload, load_workload, read_text, require_context, workload_name
from orchestrator.core.catalog import Catalog
from orchestrator.core.console import format_duration
from orchestrator.core.errors import HostError, Problem, ProfileError, UsageError
from orchestrator.core.files import cut
from orchestrator.core.locks import LockHeldError, hold
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.validation import model_of, read_file
from orchestrator.engine.flags import FlagTable, flag_problems
from orchestrator.engine.options import Meaning
from orchestrator.experiments.reproduce import bench_seconds
from orchestrator.experiments.sweep.objective import Goal, Objective
from orchestrator.experiments.sweep.search import Search, SweepTrial, TrialOutcome
from orchestrator.experiments.sweep.space import SearchSpace, SpaceFile, default_space, search_space_from_file
from orchestrator.plan.plan import Plan
from orchestrator.planner.capacity import unfit
from orchestrator.planner.estimate import STEP_SECONDS, startup_seconds
from orchestrator.planner.planning import LoadedProfile, is_path, read_profile

JOURNAL: Final = "journal.log"
CONFIRM: Final = 2  # default number of repeated runs, for a median of three
_RESERVED: Final = 0.25  # maximum share of the budget reserved for repeated runs
TRIALS: Final = 20  # default number of trials without any budget
_JOURNAL_VERSION: Final = 4  # increased by each change of `SweepTrial`
_MAX_INFEASIBLE: Final = 1000  # consecutive infeasible points that end the search
_STREAM_TOK_S: Final = 50.0  # assumed speed of one stream, for estimates


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a sweep, including earlier calls; None for no limit."""

    trials: int | None = None
    hours: float | None = None
    usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The user's request, which overrides the space file."""

    profile: str
    space: Path | None
    output: Path
    budget: Budget
    winner_in_output: bool = False  # write the winner to `output` instead of the home
    overrides: tuple[str, ...] = ()
    objective: Objective | None = None
    at_rps: float | None = None
    workload: str | None = None
    request_rates: tuple[float, ...] | None = None
    repeats: int | None = None
    usd_per_gpu_hour: float | None = None
    host: str | None = None
    allow_untuned: bool = False
    resume: bool = False
    name: str | None = None  # name of the new profile
    command: str = ""  # command that resumes the sweep


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A resolved sweep: space, objective and load."""

    request: SweepRequest
    home: Home
    base: LoadedProfile
    plan: Plan  # plan of the original profile
    space: SearchSpace
    goal: Goal
    workload_ref: str
    workload: Workload
    changes: WorkloadChanges
    repeats: int  # number of repeated runs of the best trial
    description: str = ""  # from the space file

    @cached_property
    def baseline_point(self) -> dict[str, int] | None:
        """The point of the original profile; None if it is not in the space."""
        point = self.space.point_of_profile(self.base.profile)
        return dict(point) if point is not None else None

    @property
    def values(self) -> dict[str, list[str]]:
        """The values of each parameter as text."""
        return {
            parameter.key: [parameter.display(index) for index in range(len(parameter.values))]
            for parameter in self.space.parameters
        }

    @property
    def server(self) -> str:
        """The name of the servers of this sweep, unique by a digest of the output directory."""
        digest = hashlib.sha256(str(self.request.output.absolute()).encode()).hexdigest()[:8]
        return f"{self.plan.profile}-sweep-{digest}"

    @property
    def trial_seconds(self) -> float:
        """The estimated duration of one trial in seconds."""
        load = bench_seconds(self.workload, tok_s=_STREAM_TOK_S)
        return startup_seconds(self.plan) + load + STEP_SECONDS["down"]

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all GPUs of the server in USD per hour; None without a price."""
        price = self.request.usd_per_gpu_hour
        return price * self.plan.gpu_count if price is not None else None

    def infeasible_reason(self, point: dict[str, int]) -> str:
        """Return why a point cannot run; "" if it can. Ignores warnings of the original profile."""
        overrides = (*self.request.overrides, *self.space.overrides(point))
        try:
            base = read_profile(self.request.profile, overrides=overrides, catalog=self.base.catalog)
            plan = base.build()
        except ProfileError as error:
            return "; ".join(dict.fromkeys(problem.message for problem in error.problems_or_self()))
        needed, context = self.workload.input_tokens + self.workload.output_tokens, base.capacity.context
        if needed > context:
            return f"a request of the load has {needed:,} tokens; the context has {context:,}"
        of_profile = {warning.id for warning in unfit(self.plan)}
        return "; ".join(warning.summary for warning in unfit(plan) if warning.id not in of_profile)

    def identity(self) -> dict[str, object]:
        """Return the data that identifies the sweep in its journal."""
        return {
            "version of the journal": _JOURNAL_VERSION,
            "profile": self.plan.digest_without_port,
            "space": self.values,
            "objective": [self.goal.objective.value, self.goal.at_rps, self.goal.ttft_p95_s],
            "workload": self.workload.digest(),
            "price": self.request.usd_per_gpu_hour,
            "host": self.request.host,
        }


def default_output(profile: str) -> Path:
    """Return the default output directory of a sweep; the name of a profile may contain dots."""
    return Path("results") / FileName(f"sweep-{Path(profile).stem if is_path(profile) else profile}")


def plan_sweep(request: SweepRequest, home: Home) -> Sweep:
    """Resolve a sweep. Raises ProfileError with locations in the space file, UsageError for invalid options."""
    catalog = Catalog.of(home)
    base = read_profile(request.profile, overrides=request.overrides, catalog=catalog)
    plan = base.build()
    base.note_deprecated()
    file = _read_space(request.space, base.table) if request.space is not None else None
    flags = {name: setting.value for name, setting in base.profile.flags.items()}
    space = (
        search_space_from_file(file, flags)
        if file is not None
        else default_space(base.profile, tuple(base.table.flags))
    )
    if space.size < 2:
        raise UsageError("the space has only one point", hint="add values to the file of `--space`")
    space_file = file or SpaceFile(flags={Meaning.RUNNING_REQUESTS.value: (None,)})
    workload_name = request.workload or space_file.workload or base.profile.workload
    if workload_name is None:
        raise UsageError("no workload given", hint="set a workload with `-w`, or in the space or the profile")
    at_rps = request.at_rps or space_file.at_rps
    loaded = load_workload(workload_name, catalog=catalog)
    read_text(loaded, catalog=catalog)
    parse_price(request.usd_per_gpu_hour)
    changes = WorkloadChanges(
        request_rates=_ladder(loaded, request.request_rates or space_file.request_rates, at_rps),
        ttft_p95_s=space_file.ttft_p95_s,
    )
    workload, _ = apply_changes(loaded, changes)
    default = Objective.TOK_S if workload.load == "closed" else Objective.KNEE
    goal = Goal(
        objective=request.objective or space_file.objective or default,
        at_rps=at_rps,
        ttft_p95_s=workload.slo.ttft_p95_s,
        closed=workload.load == "closed",
    )
    sweep = Sweep(
        request=request,
        home=home,
        base=base,
        plan=plan,
        space=space,
        goal=goal,
        workload_ref=workload_name,
        workload=workload,
        changes=changes,
        repeats=next(item for item in (request.repeats, space_file.confirm, CONFIRM) if item is not None),
        description=space_file.description,
    )
    _require_sensible(sweep)
    return sweep


def _read_space(path: Path, table: FlagTable) -> SpaceFile:
    """Read a space file. Raises ProfileError with the location of each problem, including unknown sglang options."""
    document = read_file(path, str(path))
    file = model_of(document, SpaceFile)
    problems: list[Problem] = []
    for parameter in search_space_from_file(file).parameters:
        section, _, name = parameter.key.partition(".")
        if section == "flags":
            location = document.location((section, name))
            values = (value for value in parameter.values if isinstance(value, bool | int | float | str))
            problems += (problem for value in values for problem in flag_problems(name, value, table, location))
    if problems:
        raise ProfileError(f"`{path}` is not valid", problems=dict.fromkeys(problems))
    return file


def _ladder(workload: Workload, rates: tuple[float, ...] | None, at_rps: float | None) -> tuple[float, ...] | None:
    """Return the rates to measure, up to the objective's rate; None for the workload's rates."""
    if at_rps is None or workload.load == "closed":
        return rates
    return (*(rate for rate in rates or workload.request_rates if rate < at_rps), at_rps)


def _require_sensible(sweep: Sweep) -> None:
    """Raise UsageError if no trial could provide the objective or the budget."""
    goal, request = sweep.goal, sweep.request
    if goal.objective is Objective.USD and request.usd_per_gpu_hour is None:
        raise UsageError("`usd-per-million` needs a price", hint="`--price USD`, per GPU-hour")
    if goal.objective in {Objective.USD, Objective.PER_WATT} and not sweep.plan.gpus:
        message = f"`{goal.objective}` needs GPUs; this profile has none"
        raise UsageError(message, hint="choose another `--objective`")
    if request.budget.usd is not None and not sweep.usd_per_hour:
        raise UsageError("`--max-cost` needs a price per hour", hint="`--price USD`, per GPU-hour; or `--max-hours`")
    if sweep.workload.load == "closed" and (goal.at_rps is not None or goal.objective is Objective.KNEE):
        message = f"`{workload_name(sweep.workload_ref)}` is a closed-loop load without rates, so it has no knee"
        raise UsageError(message, hint="`--objective tok-s`, without `--at-rate`")
    if sweep.workload.trace is not None and sweep.workload.load == "open":
        message = f"`{workload_name(sweep.workload_ref)}` is replayed at its recorded arrivals, which is not judged"
        raise UsageError(
            message, hint="set `load: closed` and `concurrency` in a workload file, and `--objective tok-s`"
        )
    if f"flags.{Meaning.CONTEXT}" not in sweep.values:
        name = workload_name(sweep.workload_ref)
        require_context(name, sweep.workload, sweep.base.capacity.context, sweep.plan.profile)
    reasons = unjudgeable_rates(sweep.workload)
    if goal.at_rps is None and sweep.workload.load == "open" and reasons:
        at = "" if goal.objective is Objective.KNEE else f"; `{goal.objective}` is measured at the knee"
        hint = "either more `requests` or a longer `duration_s` in the workload, or a fixed rate with `--at-rate`"
        raise UsageError(f"cannot find a knee: {'; '.join(reasons)}{at}", hint=hint)


def spent(trials: tuple[SweepTrial, ...], sweep: Sweep, *, confirmed: float = 0.0) -> str:
    """Return the reason to stop; "" if another trial of mean duration fits into the budget.

    `confirmed` is the duration of repeated runs in seconds; the budget reserves time for future repeats.
    """
    budget = sweep.request.budget
    limit = budget.trials if budget.trials is not None or budget.hours or budget.usd else TRIALS
    trials_run = [trial for trial in trials if trial.ran]
    if limit is not None and len(trials_run) >= limit:
        return f"the limit of {limit} trials is reached"
    return budget_exhausted(trials, sweep, confirmed=confirmed, reserved_runs=sweep.repeats)


def budget_exhausted(trials: tuple[SweepTrial, ...], sweep: Sweep, *, confirmed: float, reserved_runs: int = 0) -> str:
    """Return why no further run fits into hours or cost after `reserved_runs`; "" if one fits."""
    budget, cost = sweep.request.budget, sweep.usd_per_hour
    durations = [trial.seconds for trial in trials if trial.ran]
    used_seconds = sum(trial.seconds for trial in trials) + confirmed
    mean_seconds = sum(durations) / max(len(durations), 1)
    limits: list[tuple[float, str]] = []
    if budget.hours is not None:
        limits.append((budget.hours * 3600, f"{budget.hours:g} hours: {format_duration(used_seconds)}"))
    if budget.usd is not None and cost:
        limits.append((budget.usd / cost * 3600, f"${budget.usd:g}: ${used_seconds / 3600 * cost:.2f}"))
    for limit, exceeded in limits:
        if used_seconds + mean_seconds + min(reserved_runs * mean_seconds, _RESERVED * limit) > limit:
            return f"one more trial would exceed {exceeded} were used"
    return ""


@contextmanager
def open_search(sweep: Sweep) -> Iterator[Search]:
    """Open the search in the sweep's directory, with an exclusive lock.

    Raises UsageError if a sweep exists without `--resume`, or does not exist with `--resume`; HostError if another
    command has the lock.
    """
    folder, request = sweep.request.output, sweep.request
    journal = folder / JOURNAL
    if journal.exists() != request.resume:
        message, hint = "no sweep to resume found", "omit `--resume`"
        if journal.exists():
            message, hint = "the directory already has a sweep", "`--resume` continues it"
        raise UsageError(message, location=str(folder), hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = hold(folder / ".lock")
    except LockHeldError as error:
        message = f"another `deploy sweep` is using this directory (pid {error.holder})"
        raise HostError(message, location=str(folder), hint="wait for it, or use another `--output`") from error
    with lock:
        _repair(journal)
        yield Search(journal, sweep.space, sweep.goal, sweep_identity=sweep.identity())


def _repair(journal: Path) -> None:
    """Remove an incomplete last line of a killed sweep, which Optuna cannot read."""
    if journal.exists() and (content := journal.read_bytes()) and not content.endswith(b"\n"):
        cut(journal, content.rfind(b"\n") + 1)


def too_many_infeasible(trials: tuple[SweepTrial, ...]) -> bool:
    """Return whether the last `_MAX_INFEASIBLE` points were all infeasible."""
    last = trials[-_MAX_INFEASIBLE:]
    return len(last) == _MAX_INFEASIBLE and all(trial.outcome is TrialOutcome.INFEASIBLE for trial in last)
