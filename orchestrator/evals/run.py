"""`deploy eval`: from a server's name or a URL to an outcome, and what it says beside a baseline."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.bench.published import Published, PublishedEval, entries_of_kind, load_all_published
from orchestrator.bench.run import BenchTarget, is_url, resume_command
from orchestrator.core.console import Progress, say, warn
from orchestrator.core.errors import BenchError, Interrupted, SmokeError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home, data_root
from orchestrator.core.secrets import redact
from orchestrator.engine.client import EngineClient
from orchestrator.engine.options import Meaning
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.evals import tau2
from orchestrator.evals.eval_result import BASELINE_FOLDER, EvalResult, outcome_file, outcome_to_json
from orchestrator.evals.harness import REQUIREMENTS, EvalRequest, evaluate, require_questions
from orchestrator.evals.quality import beside_published
from orchestrator.evals.result_files import load_outcome
from orchestrator.evals.significance import SignificanceTest, judge_outcomes, minimum_detectable_difference
from orchestrator.evals.suites import Suite, find_suite
from orchestrator.hosts.venvs.venv import ensure_venv
from orchestrator.plan.plan import GREEDY, Plan


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What the command line says of an evaluation, but for who is asked."""

    suite: str
    limit: int | None
    dataset: Path | None
    command: str
    output: Path
    seeds: int = 1
    resume: bool = False
    max_tokens: int | None = None  # of an answer; None: as the suite has it

    @property
    def asked(self) -> Suite:
        """The suite with answers of that length. Raises UsageError for one that there is not."""
        suite = find_suite(self.suite)
        return replace(suite, most_tokens=self.max_tokens or suite.most_tokens)


def evaluate_beside(
    candidate: BenchTarget,
    beside: BenchTarget | None,
    before: EvalResult | None,
    options: EvalOptions,
    *,
    home: Home,
    say: Callable[[str], None],
) -> tuple[EvalResult, EvalResult | None, Path]:
    """The outcome, that of the baseline, and the outcome's file.

    The baseline is `before`, or the server `beside`, which is asked the same questions and kept in a folder of its own.
    Neither is asked anything where one of them cannot sample. Raises what `run_eval` and `save_outcome` raise.
    """
    require_askable(find_suite(options.suite), candidate, beside, data=options.dataset)
    outcome, file = _score(candidate, options, options.output, home=home, say=say)
    if beside is not None:
        before, _ = _score(beside, options, options.output / BASELINE_FOLDER, home=home, say=say)
    return outcome, before, file


def _score(
    target: BenchTarget, options: EvalOptions, folder: Path, *, home: Home, say: Callable[[str], None]
) -> tuple[EvalResult, Path]:
    """Ask what was not asked before, seed by seed; each is kept as soon as it is done."""
    suite, file = options.asked, folder / outcome_file(options.suite)
    outcome = _earlier(file, options)
    for seed in suite.seeds(options.seeds):
        if outcome is not None and any(item.seed == seed for item in outcome.items):
            continue
        say(f"{suite.name}{f', seed {seed}' if seed is not None else ''}: {target.provenance.name or target.url}")
        try:
            answered = run_eval(target, options, home=home, say=say, seed=seed)
        except KeyboardInterrupt as error:
            kept = f"the {len(outcome.items):,} answers in `{file}` are kept; " if outcome else ""
            again = resume_command(options.command, options.output)
            raise Interrupted("interrupted", hint=f"{kept}`{again}` goes on") from error
        outcome = answered if outcome is None else merge_seeds(outcome, answered, where=str(file))
        save_outcome(outcome, folder)
    if outcome is None:
        raise ValueError("a suite without seeds")
    if outcome.repeats_itself:
        warn(
            f"every seed gave the same answers to `{suite.name}`, word for word: this server does not sample",
            hint="its score is that of one seed",
        )
    return outcome, file


def require_room(options: EvalOptions, *, beside: bool) -> None:
    """Raise UsageError where an outcome stands in the way, before anybody is asked; `beside` is a second server's."""
    folders = [options.output, *([options.output / BASELINE_FOLDER] if beside else [])]
    for folder in folders:
        _earlier(folder / outcome_file(options.suite), options)


def _earlier(file: Path, options: EvalOptions) -> EvalResult | None:
    """What was answered before. Raises UsageError where that is not gone on with, or was asked otherwise."""
    if not file.exists():
        return None
    if not options.resume:
        raise UsageError("there is an outcome already", where=str(file), hint="continue it with --resume")
    there = load_outcome(file)
    for option, then, now in (
        ("--limit", there.limit, options.limit),
        ("--max-tokens", there.most_tokens, options.asked.most_tokens),
    ):
        if then != now and not (option == "--max-tokens" and then is None):  # one of an older version
            said = f"with `{option} {then}`" if then is not None else f"without `{option}`"
            raise UsageError(f"this outcome was begun {said}", where=str(file), hint="use another --output")
    return there


def merge_seeds(before: EvalResult, more: EvalResult, *, where: str) -> EvalResult:
    """The answers of another seed with those before it. Raises BenchError where something else was asked of another."""
    for what, one, other in (
        ("model", before.model, more.model),
        ("metric", before.metric, more.metric),
        ("harness", before.harness, more.harness),
    ):
        if one != other:
            raise BenchError(f"the {what} was `{one}`, and is `{other}` now", where=where, hint="use another --output")
    return replace(more, items=(*before.items, *more.items))


def tau2_commands(target: BenchTarget, name: str, plan: Plan | None, trials: int | None) -> str:
    """The commands that ask a server tau2's tasks. Warns where it calls no tools. Raises what `served_model` raises."""
    if plan is not None and plan.serving.tool_parser is None:
        warn(
            "this server reads no tool calls out of its answers",
            hint=f"`--set flags.{Meaning.TOOL_PARSER}=…` at `up`",
        )
    request = tau2.Tau2Request(
        url=target.url,
        model=served_model(target),
        key_env=plan.server.api_key_env if plan else None,
        name="server" if is_url(name) else name,
        trials=trials or tau2.TRIALS,
    )
    return tau2.tau2_script(request)


def read_tau2(folder: Path, name: str, options: EvalOptions, *, compared: bool) -> tuple[EvalResult, Path]:
    """What tau2 has left of a server, and its file. Raises what `read_simulations` and `save_outcome` raise."""
    runs = tau2.read_simulations(folder, name, options.command, compared=compared)
    if runs.left_out:
        every = runs.left_out + len(runs.outcome.items)
        told = f"{runs.left_out} of {every} simulations of tau2 never ran, and are left out"
        warn(told, hint="`tau2 run --auto-resume` runs them")
    return runs.outcome, save_outcome(runs.outcome, options.output)


def earlier_outcome(baseline: str, suite: str) -> EvalResult | None:
    """The outcome in a file, or that of the suite in a folder of outcomes; None for a server.

    For tau2 it may be its own results too. Raises UsageError where the folder has none.
    """
    path = Path(baseline)
    if is_url(baseline) or not (path.exists() or path.suffix == ".json"):
        return None
    file = path / outcome_file(suite) if path.is_dir() else path
    if suite == tau2.NAME and (path.name == tau2.RESULTS or (path.is_dir() and not file.exists())):
        return tau2.read_simulations(path, path.name, "").outcome
    if not file.exists():
        raise UsageError(f"there is no outcome of `{suite}` to compare with", where=str(file))
    outcome = load_outcome(file)
    if outcome.suite != suite:
        raise UsageError(f"the baseline is of `{outcome.suite}`, not of `{suite}`", where=str(file))
    return outcome


def served_model(target: BenchTarget) -> str:
    """The name of the model an endpoint serves. Raises BenchError where it does not answer."""
    try:
        with EngineClient(target.url, key=target.key) as server:
            return next(iter(server.models()))
    except (NoResponseError, UnexpectedResponseError) as error:
        raise BenchError(f"the endpoint does not say which model it serves: {error}", where=target.url) from error
    except StopIteration as error:
        raise BenchError("the endpoint serves no model", where=target.url) from error


def run_eval(
    target: BenchTarget,
    options: EvalOptions,
    *,
    home: Home,
    say: Callable[[str], None],
    seed: int | None = None,
) -> EvalResult:
    """Ask a served model the questions of a suite, once.

    The harness has an environment of its own in the tool's home, built at the first call. Raises BuildError where that
    fails, and what `harness.evaluate` raises.
    """
    chosen = options.asked
    require_sampling(target, chosen)
    model = served_model(target)
    environment = ensure_venv(data_root() / "images" / REQUIREMENTS, home=home, progress=Progress())
    request = EvalRequest(
        python=environment.python,
        suite=chosen,
        url=target.url,
        model=model,
        key=target.key,
        limit=options.limit,
        data=options.dataset,
        command=redact(options.command),
        seed=seed,
    )
    return evaluate(request, say)


def require_gsm8k(target: BenchTarget, *, least: float, called: str, folder: Path, home: Home) -> None:
    """Ask a server as many questions of GSM8K as were published, and keep the outcome in `folder`.

    Raises SmokeError for a score below `least`, and what `run_eval` raises.
    """
    command = f"deploy up --min-gsm8k {least:g}"
    asked = next(line.items for line in published_evals() if line.suite == "gsm8k")
    options = EvalOptions(suite="gsm8k", limit=asked, dataset=None, command=command, output=folder)
    outcome = run_eval(target, options, home=home, say=say)
    try:
        save_outcome(outcome, folder)
    except BenchError as error:
        warn(str(error))
    say(f"{called}: {outcome.score:.3f} of {len(outcome.items)} questions of GSM8K right")
    if outcome.score < least:
        raise SmokeError(f"{called} has {outcome.score:.3f} of GSM8K right, and `--min-gsm8k` is {least:g}")


def prepare_harness(home: Home) -> None:
    """Build what asks the questions, before a server is stopped for one that is asked. Raises BuildError."""
    ensure_venv(data_root() / "images" / REQUIREMENTS, home=home, progress=Progress())


def require_askable(suite: Suite, *targets: BenchTarget | None, data: Path | None) -> None:
    """Raise BenchError where one of them cannot be asked the suite, UsageError where its questions cannot be had."""
    for target in filter(None, targets):
        require_sampling(target, suite)
    require_questions(suite, data)


def require_sampling(target: BenchTarget, suite: Suite) -> None:
    """A suite above temperature 0 is asked of a server that samples. Raises BenchError for one that cannot."""
    greedy = next((warning for warning in target.warnings if warning.id == GREEDY), None)
    if greedy is not None and float(suite.generation["temperature"]) > 0:
        raise BenchError(
            f"`{suite.name}` samples at temperature {suite.generation['temperature']}, and this server cannot",
            details=greedy.summary,
            where=target.url,
            hint=f"{greedy.hint}; `gsm8k` is greedy",
        )


def what_it_can_tell(suite: Suite, *, limit: int | None, near: float | None, seeds: int = 1) -> str:
    """Which difference from another score so many questions show, and all of them: before any is asked.

    `near` is about the score that is expected; None where nobody knows, which takes the least certain, one half. The
    questions are judged in pairs where both sides answered them, which shows no less. Of several seeds nobody knows
    beforehand how far they agree: they are worth between one answer a question and one a seed.
    """
    asked, share = min(limit or suite.size, suite.size), 0.5 if near is None else near
    shown = f"{asked:,} questions of `{suite.name}`{f' x {seeds} seeds' if seeds > 1 else ''} show a difference of"
    least, most = (f"{minimum_detectable_difference(share, asked * each):.3f}" for each in (seeds, 1))
    told = f"{shown} {f'{least} to {most}' if seeds > 1 else least} or more near {share:.3g} (80 % power)"
    if asked == suite.size:
        return told
    return f"{told}; all {suite.size:,} show {minimum_detectable_difference(share, suite.size):.3f}"


def published_evals() -> tuple[PublishedEval, ...]:
    """Every published pair of scores, the first of each suite."""
    lines = [line for table in entries_of_kind(load_all_published(), Published) for line in table.evals]
    return tuple({line.suite: line for line in reversed(lines)}.values())[::-1]


def expected_score(suite: str, baseline: EvalResult | None) -> float | None:
    """About what a model may score: as the baseline did, else as was published; None where neither is known."""
    if baseline is not None:
        return baseline.score
    line = next((line for line in published_evals() if line.suite == suite), None)
    return (line.baseline.score + line.candidate.score) / 2 if line else None


def save_outcome(outcome: EvalResult, directory: Path) -> Path:
    """Write it where `deploy report` finds it. Raises BenchError where the disk does not take it."""
    try:
        return atomic_write(directory / outcome_file(outcome.suite), outcome_to_json(outcome))
    except OSError as error:
        raise BenchError(
            f"the outcome cannot be written: {error.strerror}",
            where=str(error.filename),
            details=f"{outcome.suite}: {outcome.score:.4f} of {len(outcome.items):,} answers",
        ) from error


def against_outcome(outcome: EvalResult, before: EvalResult, *, where: str) -> SignificanceTest:
    """What the outcome says beside another, in pairs. Raises BenchError for one of another suite, metric or task."""
    for what, one, other in (
        ("suite", before.suite, outcome.suite),
        ("metric", before.metric, outcome.metric),
        ("task", before.task, outcome.task),
        ("longest answer", before.most_tokens, outcome.most_tokens),
    ):
        if one != other and None not in (one, other):
            raise BenchError(f"the {what} of the baseline is `{one}`, of this `{other}`", where=where)
    return judge_outcomes(before, outcome)


def against_published(outcome: EvalResult) -> tuple[tuple[str, SignificanceTest | None], ...]:
    """What the outcome says beside each published score of its suite, with that score's label; None: not to be told."""
    return tuple(
        (f"{line.model} {score.label} {score.score} published", beside_published(line, score, outcome))
        for line in published_evals()
        if line.suite == outcome.suite
        for score in (line.baseline, line.candidate)
    )
