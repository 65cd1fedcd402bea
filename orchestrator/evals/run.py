"""`deploy eval`: the forecast, then the score of each suite, with an optional baseline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.bench.benchmark import BenchTarget
from orchestrator.bench.published import published_evals
from orchestrator.bench.run import is_url, resume_command
from orchestrator.core.command_hints import left_running
from orchestrator.core.console import info, warn
from orchestrator.core.errors import BenchError, DeployError, Interrupted, SmokeError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home
from orchestrator.core.secrets import redact
from orchestrator.engine.client import EngineClient
from orchestrator.engine.options import Meaning
from orchestrator.engine.other_engines import choose_model
from orchestrator.engine.responses import NoResponseError, UnauthorizedError, UnexpectedResponseError
from orchestrator.evals import tau2
from orchestrator.evals.eval_result import (
    BASELINE_DIR,
    EvalResult,
    eval_result_file,
    eval_result_to_json,
    load_eval_result,
)
from orchestrator.evals.harness import EvalRequest, evaluate, harness_python, require_questions
from orchestrator.evals.report import SuiteScore
from orchestrator.evals.suites import PUBLISHED, Suite, SuiteRun, find_suite, suite_runs
from orchestrator.plan.plan import GREEDY_SPECULATION, Plan
from orchestrator.planner.planning import load
from orchestrator.runs.run_dir import latest_run, read_plan

OpenTarget = Callable[[str], BenchTarget]  # opens a server by name, or an endpoint by URL


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """The request of `deploy eval`: names or URLs of target and baseline, and the options."""

    target: str
    suite: str
    command: str
    output: Path
    baseline: str | None = None
    limit: int | None = None
    seeds: int | None = None  # None: the published number
    max_tokens: int | None = None  # length of an answer; None: default of the suite
    dataset: Path | None = None
    simulations: Path | None = None
    prices: tuple[str, ...] = ()
    resume: bool = False

    @property
    def resolved_suite(self) -> Suite:
        """The suite with the requested answer length. Raises UsageError for an unknown suite."""
        suite = find_suite(self.suite)
        return replace(suite, max_tokens=self.max_tokens or suite.max_tokens)

    @property
    def runs(self) -> tuple[SuiteRun, ...]:
        """The suites run by lm-evaluation-harness. Raises UsageError for an unknown suite."""
        if self.suite == tau2.NAME:
            return ()
        return suite_runs(self.suite, limit=self.limit, seeds=self.seeds, max_tokens=self.max_tokens)

    @property
    def is_all_published(self) -> bool:
        """Whether all published suites are requested."""
        return self.suite == PUBLISHED

    @property
    def prints_commands(self) -> bool:
        """Whether to print the tau2 commands instead of running a suite."""
        return self.suite == tau2.NAME and self.simulations is None

    @property
    def suites(self) -> tuple[str, ...]:
        """The names of all suites with a score."""
        with_tau2 = self.simulations is not None and self.suite in {tau2.NAME, PUBLISHED}
        return (*(run.suite.name for run in self.runs), *((tau2.NAME,) if with_tau2 else ()))

    @property
    def saved_baselines(self) -> Mapping[str, EvalResult]:
        """The saved baseline results by suite; empty if the baseline is a server."""
        if self.baseline is None:
            return {}
        results = {suite: load_baseline(self.baseline, suite) for suite in self.suites}
        return {suite: result for suite, result in results.items() if result is not None}


def plan_of_target(name: str, home: Home, *, planned: bool) -> Plan | None:
    """Return the plan of a server, or of the profile with its name; None for a URL.

    Raises ProfileError if `planned` is set and neither exists.
    """
    if is_url(name):
        return None
    if (plan := read_plan(latest_run(home, name))) is not None:
        return plan
    try:
        return load(name).plan
    except DeployError:
        if planned:
            raise
        return None


def run_suites(
    request: EvalOptions, home: Home, open_target: OpenTarget, notify: Callable[[str], None]
) -> tuple[SuiteScore, ...]:
    """Run each suite on target and baseline, after checking that all can run.

    Raises the errors of `score_suite` and `tau2.read_simulations`.
    """
    saved, scores = request.saved_baselines, list[SuiteScore]()
    if tau2.NAME in request.suites and request.simulations is not None:
        scores = [_score_tau2(request, request.simulations, saved.get(tau2.NAME))]
    return (*(_run_harness(request, saved, home, open_target, notify) if request.runs else ()), *scores)


def _run_harness(
    request: EvalOptions,
    saved: Mapping[str, EvalResult],
    home: Home,
    open_target: OpenTarget,
    notify: Callable[[str], None],
) -> list[SuiteScore]:
    candidate, baseline_server, scores = open_target(request.target), None, []
    if request.baseline is not None and not saved:
        baseline_server = open_target(request.baseline)
    suites = [replace(request, suite=run.suite.name, limit=run.limit, seeds=run.seeds) for run in request.runs]
    for options in suites:
        for server in filter(None, (candidate, baseline_server)):
            require_sampling(server, options.resolved_suite)
        require_questions(options.resolved_suite, options.dataset)
        folders = [options.output, *([options.output / BASELINE_DIR] if baseline_server is not None else [])]
        for folder in folders:
            _earlier_result(folder / eval_result_file(options.suite), options)
    for options in suites:
        result, file = score_suite(candidate, options, options.output, home=home, notify=notify)
        baseline = saved.get(options.suite)
        if baseline_server is not None:
            baseline, _ = score_suite(baseline_server, options, options.output / BASELINE_DIR, home=home, notify=notify)
        scores.append(SuiteScore(result=result, file=file, baseline=baseline, baseline_name=request.baseline))
    return scores


def _score_tau2(request: EvalOptions, simulations: Path, baseline: EvalResult | None) -> SuiteScore:
    """Read the simulations of the target, and of the baseline unless it is saved, and save the result."""
    reads_both = baseline is None and request.baseline is not None
    if baseline is None and request.baseline is not None:
        baseline = tau2.read_simulations(simulations, request.baseline, "", require_name=True).result
    runs = tau2.read_simulations(simulations, request.target, request.command, require_name=reads_both)
    if runs.skipped:
        message = (
            f"skipped {runs.skipped} of {runs.skipped + len(runs.result.answered)} tau2 simulations that never ran"
        )
        warn(message, hint="run them with `tau2 run --auto-resume`")
    file = save_eval_result(runs.result, request.output)
    return SuiteScore(result=runs.result, file=file, baseline=baseline, baseline_name=request.baseline)


def tau2_commands(request: EvalOptions, home: Home, open_target: OpenTarget) -> str:
    """Return the commands that run tau2 against a server; warn if the server parses no tool calls.

    Raises the errors of `open_target` and `served_model`.
    """
    plan = plan_of_target(request.target, home, planned=False)
    if plan is not None and plan.serving.tool_parser is None:
        warn("the server parses no tool calls", hint=f"`--set flags.{Meaning.TOOL_PARSER}=…` at `up`")
    target = open_target(request.target)
    return tau2.tau2_script(
        target.url,
        served_model(target),
        key_env=plan.server.api_key_env if plan else None,
        name="server" if is_url(request.target) else request.target,
        trials=request.seeds or tau2.TRIALS,
    )


def score_suite(
    target: BenchTarget, options: EvalOptions, folder: Path, *, home: Home, notify: Callable[[str], None]
) -> tuple[EvalResult, Path]:
    """Run the remaining seeds of a suite, save the result in `folder` after each, and return it with its file.

    Raises Interrupted after Ctrl-C, and the errors of `run_eval` and `save_eval_result`.
    """
    suite, file = options.resolved_suite, folder / eval_result_file(options.suite)
    result = _earlier_result(file, options)
    for seed in suite.seeds(options.seeds or 1):
        if result is not None and any(item.seed == seed for item in result.answered):
            continue
        notify(f"{suite.name}{f', seed {seed}' if seed is not None else ''}: {target.provenance.name or target.url}")
        try:
            answered = run_eval(target, options, home=home, notify=notify, seed=seed)
        except KeyboardInterrupt as error:
            saved = f"the {len(result.answered):,} answers in `{file}` are saved; " if result else ""
            running = left_running(target.provenance.name or target.url)
            command = resume_command(options.command, options.output)
            raise Interrupted("interrupted", hint=f"{saved}{running}; `{command}` continues") from error
        result = answered if result is None else merge_seeds(result, answered, location=str(file))
        save_eval_result(result, folder)
    if result is None:
        raise ValueError("a suite without seeds")
    if result.is_deterministic:
        warn(
            f"all seeds gave identical answers to `{suite.name}`: the server does not sample",
            hint="the score counts as that of one seed",
        )
    return result, file


def _earlier_result(file: Path, options: EvalOptions) -> EvalResult | None:
    """Return the earlier result, if any. Raises UsageError if it had other options, or without `--resume`."""
    if not file.exists():
        return None
    if not options.resume:
        raise UsageError("the directory already has a result", location=str(file), hint="continue with `--resume`")
    result = load_eval_result(file)
    for option, before, now in (
        ("--limit", result.limit, options.limit),
        ("--max-tokens", result.max_tokens, options.resolved_suite.max_tokens),
    ):
        if before != now:
            previous = f"`{option} {before}`" if before is not None else f"no `{option}`"
            raise UsageError(f"the previous run used {previous}", location=str(file), hint="choose another `--output`")
    return result


def merge_seeds(before: EvalResult, after: EvalResult, *, location: str) -> EvalResult:
    """Add the answers of another seed to a result. Raises BenchError if model, metric or harness differ."""
    for name in ("model", "metric", "harness"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            message = f"the {name} changed from `{old}` to `{new}`"
            raise BenchError(message, location=location, hint="choose another `--output`")
    return replace(after, answered=(*before.answered, *after.answered))


def load_baseline(baseline: str, suite: str) -> EvalResult | None:
    """Return the baseline result of a suite from a file or directory; None if `baseline` is a server.

    For tau2, it may also be tau2's own file or directory. Raises UsageError without a result of the suite.
    """
    path = Path(baseline)
    if is_url(baseline) or not (path.exists() or path.suffix == ".json"):
        return None
    file = path / eval_result_file(suite) if path.is_dir() else path
    if suite == tau2.NAME and (path.name == tau2.RESULTS or (path.is_dir() and not file.exists())):
        return tau2.read_simulations(path, path.name, "").result
    if not file.exists():
        hint = f"`deploy eval NAME --suite {suite} --output {file.parent}` writes one"
        raise UsageError(f"no baseline result of `{suite}` found", location=str(file), hint=hint)
    result = load_eval_result(file)
    if result.suite != suite:
        hint = f"use `--suite {result.suite}`, or another baseline"
        raise UsageError(f"the baseline is for `{result.suite}`, not `{suite}`", location=str(file), hint=hint)
    return result


def served_model(target: BenchTarget) -> str:
    """Return the name of an endpoint's model. Raises BenchError if the request fails or there is no model."""
    try:
        with EngineClient(target.url, key=target.key) as client:
            chosen = choose_model(client.models())
    except (NoResponseError, UnexpectedResponseError) as error:
        needs_key = isinstance(error, UnauthorizedError) and target.key is None
        hint = "name the variable of the key with `--api-key-env`" if needs_key else ""
        message = f"cannot read the model of the endpoint: {error}"
        raise BenchError(message, location=target.url, hint=hint) from error
    if chosen is None:
        hint = "pass the URL of a server that has loaded a model"
        raise BenchError("the endpoint serves no model", location=target.url, hint=hint)
    return chosen[0]


def run_eval(
    target: BenchTarget, options: EvalOptions, *, home: Home, notify: Callable[[str], None], seed: int | None = None
) -> EvalResult:
    """Run a suite against a served model, with one answer per question.

    Raises the errors of `harness_python` and `harness.evaluate`.
    """
    request = EvalRequest(
        model=served_model(target),
        python=harness_python(home),
        suite=options.resolved_suite,
        url=target.url,
        key=target.key,
        limit=options.limit,
        data=options.dataset,
        command=redact(options.command),
        seed=seed,
    )
    return evaluate(request, notify)


def require_gsm8k(target: BenchTarget, *, minimum: float, name: str, folder: Path, home: Home) -> None:
    """Run GSM8K with the published number of questions, and save the result in `folder`.

    Raises SmokeError if the score is below `minimum`, and the errors of `run_eval`.
    """
    command = f"deploy up --min-gsm8k {minimum:g}"
    limit = next(line.questions for line in published_evals() if line.suite == "gsm8k")
    options = EvalOptions(target=name, suite="gsm8k", limit=limit, command=command, output=folder)
    result = run_eval(target, options, home=home, notify=info)
    try:
        save_eval_result(result, folder)
    except BenchError as error:
        warn(str(error))
    info(f"{name}: {result.score:.3f} of {len(result.answered)} GSM8K questions correct")
    if result.score < minimum:
        message = f"{name} has a GSM8K score of {result.score:.3f}; `--min-gsm8k` is {minimum:g}"
        raise SmokeError(message, hint=f"the wrong answers are in `{folder}`")


def require_sampling(target: BenchTarget, suite: Suite) -> None:
    """Raise BenchError if a suite needs sampling but the server cannot sample."""
    greedy = next((warning for warning in target.warnings if warning.id == GREEDY_SPECULATION), None)
    if greedy is not None and suite.samples:
        raise BenchError(
            f"`{suite.name}` samples at temperature {suite.generation['temperature']}, which the server cannot",
            details=greedy.summary,
            location=target.url,
            hint=f"{greedy.hint}; or `--suite gsm8k`, which is greedy",
        )


def save_eval_result(result: EvalResult, directory: Path) -> Path:
    """Write a result to a directory and return its path. Raises BenchError if that fails."""
    try:
        return atomic_write(directory / eval_result_file(result.suite), eval_result_to_json(result))
    except OSError as error:
        raise BenchError(
            f"cannot write the result: {error.strerror}",
            location=str(error.filename),
            details=f"{result.suite}: {result.score:.4f} of {len(result.answered):,} answers",
        ) from error
