"""`deploy sweep`: find a better configuration by measuring; what is sought, what it may cost, and the way there.

Every trial is an `up`, a `bench` and a `down`. What was found stands in a journal, from which a later call goes on.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from orchestrator.bench.run import WorkloadChanges, apply_changes, parse_price
from orchestrator.bench.steady_state import unjudgeable_rates
from orchestrator.bench.workload import Workload, load_workload, read_text, workload_name
from orchestrator.core.catalog import Catalog
from orchestrator.core.console import format_duration
from orchestrator.core.errors import HostError, Problem, ProfileError, UsageError
from orchestrator.core.files import cut
from orchestrator.core.locks import LockHeldError, hold
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.subprocesses import quote
from orchestrator.core.validation import model_of, read_file
from orchestrator.engine.flags import FlagTable, flag_problems
from orchestrator.engine.options import Meaning
from orchestrator.experiments.reproduce import bench_seconds
from orchestrator.experiments.sweep.objective import Goal, Objective
from orchestrator.experiments.sweep.search import Search, SweepTrial, TrialOutcome
from orchestrator.experiments.sweep.space import SearchSpace, SpaceFile, default_space, space_of
from orchestrator.plan.plan import Plan
from orchestrator.planner.capacity import unfit
from orchestrator.planner.estimate import STEP_SECONDS, startup_seconds
from orchestrator.planner.planning import LoadedProfile, is_path, read_profile

JOURNAL: Final = "journal.log"
CONFIRM: Final = 2  # runs, where nobody says how many: a median of three
_KEPT: Final = 0.25  # of a budget, at most, for measuring the best again
TRIALS: Final = 20  # where neither trials, hours nor money are named
_IN_A_ROW: Final = 1000  # points that cannot fit, after which nothing that fits is expected
_STREAM_TOK_S: Final = 50.0  # of one stream, before one was measured
_RAN: Final = (TrialOutcome.MEASURED, TrialOutcome.STOPPED, TrialOutcome.FAILED)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a sweep may take in all, earlier calls included; None is no limit."""

    trials: int | None = None
    hours: float | None = None
    usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """What the user asked for; what stands here goes before what the space file says."""

    profile: str
    space: Path | None
    output: Path
    budget: Budget
    beside: bool = False  # the winner is written there too, and not into the home
    overrides: tuple[str, ...] = ()
    objective: str | None = None
    at_rps: float | None = None
    ttft_p95_s: float | None = None
    workload: str | None = None
    request_rates: tuple[float, ...] | None = None
    repeats: int | None = None
    usd_per_gpu_hour: float | None = None
    seed: int = 1
    host: str | None = None
    allow_untuned: bool = False
    timeout: float | None = None
    resume: bool = False
    name: str | None = None  # of the profile that is written

    @property
    def again(self) -> str:
        """The command that goes on with it."""
        rates = ",".join(f"{rate:g}" for rate in self.request_rates) if self.request_rates else None
        given = {
            "--space": self.space,
            "--output": self.output if self.beside else None,
            "--objective": self.objective,
            "--at-rate": self.at_rps,
            "--max-ttft-p95": self.ttft_p95_s,
            "--workload": self.workload,
            "--request-rate": rates,
            "--repeats": self.repeats,
            "--max-trials": self.budget.trials,
            "--max-hours": self.budget.hours,
            "--max-cost": self.budget.usd,
            "--price": self.usd_per_gpu_hour,
            "--seed": self.seed,
            "--host": self.host,
            "--timeout": self.timeout,
            "--name": self.name,
        }
        words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
        words += [word for override in self.overrides for word in ("--set", override)]
        words += ["--allow-untuned"] if self.allow_untuned else []
        return quote(["deploy", "sweep", self.profile, *words, "--resume"])


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is sought, where, and with what load; nothing is started yet."""

    request: SweepRequest
    home: Home
    base: LoadedProfile
    plan: Plan  # of the profile as it is
    space: SearchSpace
    goal: Goal
    workload_named: str
    workload: Workload
    changes: WorkloadChanges
    repeats: int  # how often the best is measured again
    description: str = ""  # as the space file has it

    @cached_property
    def own(self) -> dict[str, int] | None:
        """The profile's own point; None where it is none of the space."""
        own = self.space.own(self.base.profile)
        return dict(own) if own is not None else None

    @property
    def values(self) -> dict[str, list[str]]:
        """What may vary, and between what; for people."""
        return {knob.key: [knob.shown(index) for index in range(len(knob.values))] for knob in self.space.knobs}

    @property
    def server(self) -> str:
        """The name of its servers, which no other server has: it follows from the directory."""
        place = hashlib.sha256(str(self.request.output.absolute()).encode()).hexdigest()[:8]
        return f"{self.plan.profile}-sweep-{place}"

    @property
    def about(self) -> float:
        """Seconds that one trial may take, as far as is known before one was made."""
        load = bench_seconds(self.workload, tok_s=_STREAM_TOK_S)
        return startup_seconds(self.plan) + STEP_SECONDS["smoke"] + load + STEP_SECONDS["down"]

    @property
    def usd_per_hour(self) -> float | None:
        """What an hour of the GPUs costs; None where no price was given."""
        price = self.request.usd_per_gpu_hour
        return price * len(self.plan.gpus) if price is not None else None

    def refusal(self, point: dict[str, int]) -> str:
        """Why a point cannot be started: what its rules refuse, or what does not fit beside the profile's own."""
        overrides = (*self.request.overrides, *self.space.overrides(point))
        try:
            base = read_profile(self.request.profile, overrides=overrides, catalog=self.base.catalog)
            plan = base.decide()
        except ProfileError as error:
            return "; ".join(dict.fromkeys(problem.message for problem in error.each()))
        needed, context = self.workload.input_tokens + self.workload.output_tokens, base.capacity.context
        if needed > context:
            return f"a request of the load has {needed:,} tokens, and the context {context:,}"
        own = {warning.id for warning in unfit(self.plan)}
        return "; ".join(warning.summary for warning in unfit(plan) if warning.id not in own)

    def begun(self) -> dict[str, object]:
        """What a journal was begun with, by which it is known again."""
        return {
            "profile": self.plan.digest_without_port,
            "space": self.values,
            "objective": [self.goal.objective.value, self.goal.at_rps, self.goal.ttft_p95_s],
            "workload": self.workload.digest,
            "price": self.request.usd_per_gpu_hour,
            "host": self.request.host,
        }


def default_output(profile: str) -> Path:
    """Where a sweep of a profile is kept, where the user does not say; a name may hold a dot."""
    return Path("results") / FileName(f"sweep-{Path(profile).stem if is_path(profile) else profile}")


def plan_sweep(request: SweepRequest, home: Home) -> Sweep:
    """What is to be done. Raises ProfileError with the line of what is wrong in the space, UsageError."""
    catalog = Catalog.of(home)
    base = read_profile(request.profile, overrides=request.overrides, catalog=catalog)
    plan = base.decide()
    base.note_deprecated()
    file = _read_space(request.space, base.table) if request.space is not None else None
    space = space_of(file) if file is not None else default_space(base.profile, tuple(base.table.flags))
    if space.size < 2:
        raise UsageError("nothing varies: the space has one point", hint="name more values in the space")
    said = file or SpaceFile(flags={Meaning.RUNNING_REQUESTS.value: (None,)})
    named = request.workload or said.workload or base.profile.workload
    if named is None:
        raise UsageError("what is to be sent?", hint="name a workload with `-w`, or in the space or the profile")
    at_rps = request.at_rps or said.at_rps
    ttft = request.ttft_p95_s or said.ttft_p95_s
    loaded = load_workload(named, catalog=catalog)
    read_text(loaded, catalog=catalog)
    parse_price(request.usd_per_gpu_hour)
    changes = WorkloadChanges(
        request_rates=_ladder(loaded, request.request_rates or said.request_rates, at_rps),
        requests=None,
        duration_s=None,
        arrivals=None,
        seed=None,
        ttft_p95_s=ttft,
    )
    workload, _ = apply_changes(loaded, changes)
    usual = Objective.TOK_S if workload.load == "closed" else Objective.KNEE
    goal = Goal(
        objective=_objective(request.objective) if request.objective else said.objective or usual,
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
        workload_named=named,
        workload=workload,
        changes=changes,
        repeats=next(each for each in (request.repeats, said.confirm, CONFIRM) if each is not None),
        description=said.description,
    )
    _require_sensible(sweep)
    return sweep


def _read_space(path: Path, table: FlagTable) -> SpaceFile:
    """The space file. Raises ProfileError with the line of each fault, options that sglang does not know among them."""
    document = read_file(path, str(path))
    file = model_of(document, SpaceFile)
    problems: list[Problem] = []
    for knob in space_of(file).knobs:
        section, _, name = knob.key.partition(".")
        if section == "flags":
            where = document.place((section, name))
            values = (value for value in knob.values if isinstance(value, bool | int | float | str))
            problems += (problem for value in values for problem in flag_problems(name, value, table, where))
    if problems:
        raise ProfileError(f"`{path}` is not valid", problems=dict.fromkeys(problems))
    return file


def _objective(text: str) -> Objective:
    try:
        return Objective(text)
    except ValueError as error:
        raise UsageError(f"`--objective {text}` is not known", hint=", ".join(Objective)) from error


def _ladder(workload: Workload, rates: tuple[float, ...] | None, at_rps: float | None) -> tuple[float, ...] | None:
    """The rates to measure, up to the one at which the objective is read; None: the workload's own."""
    if at_rps is None or workload.load == "closed":
        return rates
    return (*(rate for rate in rates or workload.request_rates if rate < at_rps), at_rps)


def _require_sensible(sweep: Sweep) -> None:
    """Raise UsageError for what could not be told after any trial."""
    goal, request = sweep.goal, sweep.request
    for option, value in (("--max-hours", request.budget.hours), ("--max-cost", request.budget.usd)):
        if value is not None and not math.isfinite(value):
            raise UsageError(
                f"`{option} {value}` is no budget", hint="leave it out for none; then `--max-trials` counts"
            )
    if goal.objective is Objective.USD and request.usd_per_gpu_hour is None:
        raise UsageError("`usd-per-million` needs a price", hint="`--price USD`, of one GPU for an hour")
    if goal.objective in {Objective.USD, Objective.PER_WATT} and not sweep.plan.gpus:
        what = f"`{goal.objective}` counts GPUs, and this profile has none"
        raise UsageError(what, hint="take another `--objective`")
    if request.budget.usd is not None and not sweep.usd_per_hour:
        raise UsageError(
            "`--max-cost` needs what an hour costs", hint="`--price USD`, of one GPU for an hour; or `--max-hours`"
        )
    if sweep.workload.load == "closed" and (goal.at_rps is not None or goal.objective is Objective.KNEE):
        what = f"`{workload_name(sweep.workload_named)}` is a closed load, which has no rates and no knee"
        raise UsageError(what, hint="`--objective tok-s`, without `--at-rate`")
    reasons, _ = unjudgeable_rates(sweep.workload)
    if goal.at_rps is None and sweep.workload.load == "open" and reasons:
        hint = (
            "take a workload with more `requests`, or a longer `duration_s`; or read the objective `--at-rate` a rate"
        )
        raise UsageError(f"no knee would be found: {'; '.join(reasons)}", hint=hint)


def spent(trials: tuple[SweepTrial, ...], sweep: Sweep, *, confirmed: float = 0.0) -> str:
    """Why no further trial is begun; "" where one fits into the budget, by what trials took so far.

    `confirmed` are the seconds for which trials were measured again; for what of that is to come, some is kept.
    """
    budget = sweep.request.budget
    most = budget.trials if budget.trials is not None or budget.hours or budget.usd else TRIALS
    ran = [trial for trial in trials if trial.outcome in _RAN]
    if most is not None and len(ran) >= most:
        return f"{most} trials were made"
    return budget_exhausted(trials, sweep, confirmed=confirmed, kept=sweep.repeats)


def budget_exhausted(trials: tuple[SweepTrial, ...], sweep: Sweep, *, confirmed: float = 0.0, kept: int = 0) -> str:
    """Why no further run fits into hours or money, with so many `kept` for later; "" where one does."""
    budget, cost = sweep.request.budget, sweep.usd_per_hour
    ran = sum(trial.outcome in _RAN for trial in trials)
    if not ran:
        return ""
    tried = sum(trial.seconds for trial in trials)
    used, each = tried + confirmed, tried / ran
    then = used + each
    if budget.hours is not None and then + min(kept * each, _KEPT * budget.hours * 3600) > budget.hours * 3600:
        return f"one more trial would exceed {budget.hours:g} hours: {format_duration(used)} were used"
    if budget.usd is not None and cost:
        most = budget.usd / cost * 3600
        if then + min(kept * each, _KEPT * most) > most:
            return f"one more trial would exceed ${budget.usd:g}: ${used / 3600 * cost:.2f} were used"
    return ""


@contextmanager
def open_search(sweep: Sweep) -> Iterator[Search]:
    """The search in the sweep's directory, of which this is then the only one.

    Raises UsageError where there is a sweep and it is not to be resumed, or none and it is; HostError where another
    command is at it.
    """
    folder, request = sweep.request.output, sweep.request
    journal = folder / JOURNAL
    if journal.exists() != request.resume:
        what, hint = ("a sweep", "go on with it: --resume") if journal.exists() else ("nothing to resume", "")
        hint = hint or "leave out --resume"
        raise UsageError(f"there is {what}{' already' if journal.exists() else ''}", where=str(folder), hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = hold(folder / ".lock")
    except LockHeldError as error:
        message = f"another `deploy sweep` works here (pid {error.holder})"
        raise HostError(message, where=str(folder), hint="wait for it, or use another --output") from error
    with lock:
        _mend(journal)
        yield Search(journal, sweep.space, sweep.goal, seed=request.seed, begun=sweep.begun())


def _mend(journal: Path) -> None:
    """Cut a last line that was half written when the sweep was killed: Optuna reads whole ones."""
    if journal.exists() and (written := journal.read_bytes()) and not written.endswith(b"\n"):
        cut(journal, written.rfind(b"\n") + 1)


def too_many_refused(trials: tuple[SweepTrial, ...]) -> bool:
    """Whether nothing that fits is to be expected any more."""
    return len(trials) >= _IN_A_ROW and all(trial.outcome is TrialOutcome.REFUSED for trial in trials[-_IN_A_ROW:])
