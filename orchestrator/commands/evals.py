"""`deploy eval`: from a server's name or a URL to an outcome, and what it says beside a baseline."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.commands.bench import MeasuredTarget, is_url, server_target, url_target
from orchestrator.commands.servers import fleet
from orchestrator.core.console import Progress, note, say, warn
from orchestrator.core.errors import BenchError, SmokeError
from orchestrator.core.files import write_whole
from orchestrator.core.paths import Home, data_root
from orchestrator.core.redaction import redact_json
from orchestrator.engine import NoAnswerError, OddAnswerError
from orchestrator.engine.client import EngineClient
from orchestrator.environments import ensure
from orchestrator.evals import REQUIREMENTS, EvalRequest, Suite, evaluate, find_suite
from orchestrator.plan import GREEDY
from orchestrator.report import Published, PublishedEval, load_all_published, of_kind
from orchestrator.results import (
    Judgement,
    Outcome,
    detectable_difference,
    judge_independent,
    judge_outcomes,
    outcome_file,
    outcome_to_json,
)

BASELINE_FOLDER: Final = "baseline"


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What the command line says of an evaluation, but for who is asked."""

    suite: str
    limit: int | None
    data: Path | None
    command: str
    output: Path


def found(name: str, stack: ExitStack, *, home: Home, host: str | None, api_key_env: str | None) -> MeasuredTarget:
    """An endpoint by its URL, or a server by its name; what reaches it stays open as long as the `stack`."""
    if is_url(name):
        return url_target(name, gpus=None, api_key_env=api_key_env)
    return server_target(stack.enter_context(fleet(home, host)), name)


def evaluate_beside(
    candidate: MeasuredTarget,
    beside: MeasuredTarget | None,
    before: Outcome | None,
    options: EvalOptions,
    *,
    home: Home,
    say: Callable[[str], None],
) -> tuple[Outcome, Outcome | None, Path]:
    """The outcome, that of the baseline, and the outcome's file.

    The baseline is `before`, or the server `beside`, which is asked the same questions and kept in a folder of its own.
    Neither is asked anything where one of them cannot sample. Raises what `run_eval` and `save_outcome` raise.
    """
    suite = find_suite(options.suite)
    for target in filter(None, (candidate, beside)):
        require_sampling(target, suite)
    if options.data is None:
        note(what_it_can_tell(suite, limit=options.limit, near=expected_score(suite, before)))
    outcome, file = _score(candidate, options, options.output, home=home, say=say)
    if beside is not None:
        before, _ = _score(beside, options, options.output / BASELINE_FOLDER, home=home, say=say)
    return outcome, before, file


def _score(
    target: MeasuredTarget, options: EvalOptions, folder: Path, *, home: Home, say: Callable[[str], None]
) -> tuple[Outcome, Path]:
    say(f"{options.suite}: {target.provenance.name or target.url}")
    outcome = run_eval(
        target,
        suite=options.suite,
        limit=options.limit,
        data=options.data,
        command=options.command,
        home=home,
        say=say,
    )
    return outcome, save_outcome(outcome, folder)


def served_model(target: MeasuredTarget) -> str:
    """The name of the model an endpoint serves. Raises BenchError where it does not answer."""
    try:
        with EngineClient(target.url, key=target.key) as server:
            return next(iter(server.models()))
    except (NoAnswerError, OddAnswerError) as error:
        raise BenchError(f"the endpoint does not say which model it serves: {error}", where=target.url) from error
    except StopIteration as error:
        raise BenchError("the endpoint serves no model", where=target.url) from error


def run_eval(
    target: MeasuredTarget,
    *,
    suite: str,
    limit: int | None,
    data: Path | None,
    command: str,
    home: Home,
    say: Callable[[str], None],
) -> Outcome:
    """Ask a served model the questions of a suite.

    The harness has an environment of its own in the tool's home, built at the first call. Raises BuildError where that
    fails, and what `harness.evaluate` raises.
    """
    chosen = find_suite(suite)
    require_sampling(target, chosen)
    model = served_model(target)
    environment = ensure(data_root() / "images" / REQUIREMENTS, home=home, progress=Progress())
    request = EvalRequest(
        python=environment.python,
        suite=chosen,
        url=target.url,
        model=model,
        key=target.key,
        limit=limit,
        data=data,
        command=command,
    )
    return evaluate(request, say)


def require_gsm8k(target: MeasuredTarget, *, least: float, called: str, folder: Path, home: Home) -> None:
    """Ask a server as many questions of GSM8K as were published, and keep the outcome in `folder`.

    Raises SmokeError for a score below `least`, and what `run_eval` raises.
    """
    command = f"deploy up --least-gsm8k {least:g}"
    asked = next(
        line.samples
        for table in of_kind(load_all_published(), Published)
        for line in table.evals
        if line.suite == "gsm8k"
    )
    outcome = run_eval(target, suite="gsm8k", limit=asked, data=None, command=command, home=home, say=say)
    try:
        save_outcome(outcome, folder)
    except BenchError as error:
        warn(str(error))
    say(f"{called}: {outcome.score:.3f} of {len(outcome.items)} questions of GSM8K right")
    if outcome.score < least:
        raise SmokeError(f"{called} has {outcome.score:.3f} of GSM8K right, and `--least-gsm8k` is {least:g}")


def prepare_harness(home: Home) -> None:
    """Build what asks the questions, before a server is stopped for one that is asked. Raises BuildError."""
    ensure(data_root() / "images" / REQUIREMENTS, home=home, progress=Progress())


def require_sampling(target: MeasuredTarget, suite: Suite) -> None:
    """A suite above temperature 0 is asked of a server that samples. Raises BenchError for one that cannot."""
    greedy = next((hazard for hazard in target.hazards if hazard.id == GREEDY), None)
    if greedy is not None and float(suite.generation["temperature"]) > 0:
        raise BenchError(
            f"`{suite.name}` samples at temperature {suite.generation['temperature']}, and this server cannot",
            details=greedy.what,
            where=target.url,
            hint=f"{greedy.hint}; `gsm8k` is greedy",
        )


def what_it_can_tell(suite: Suite, *, limit: int | None, near: float | None) -> str:
    """Which difference from another score so many questions show, and all of them: before any is asked.

    `near` is about the score that is expected; None where nobody knows, which takes the least certain, one half. The
    questions are judged in pairs where both sides answered them, which shows no less.
    """
    asked, share = min(limit or suite.size, suite.size), 0.5 if near is None else near
    shown = f"{asked:,} questions of `{suite.name}` show a difference of"
    told = f"{shown} {detectable_difference(share, asked):.3f} or more near {share:.3g} (80 % power)"
    if asked == suite.size:
        return told
    return f"{told}; all {suite.size:,} show {detectable_difference(share, suite.size):.3f}"


def expected_score(suite: Suite, baseline: Outcome | None) -> float | None:
    """About what a model may score: as the baseline did, else as was published; None where neither is known."""
    if baseline is not None:
        return baseline.score
    lines = (line for table in of_kind(load_all_published(), Published) for line in table.evals)
    published = next((line for line in lines if line.suite == suite.name), None)
    return (published.baseline.score + published.candidate.score) / 2 if published else None


def save_outcome(outcome: Outcome, directory: Path) -> Path:
    """Write it where `deploy report` finds it. Raises BenchError where the disk does not take it."""
    try:
        return write_whole(directory / outcome_file(outcome.suite), redact_json(outcome_to_json(outcome)))
    except OSError as error:
        raise BenchError(f"the outcome cannot be written: {error.strerror}", where=str(error.filename)) from error


def against_outcome(outcome: Outcome, before: Outcome, *, where: str) -> Judgement:
    """What the outcome says beside another, in pairs. Raises BenchError for one of another suite or metric."""
    if (before.suite, before.metric) != (outcome.suite, outcome.metric):
        raise BenchError(
            f"the baseline is `{before.suite}` scored by `{before.metric}`, "
            f"this is `{outcome.suite}` scored by `{outcome.metric}`",
            where=where,
        )
    return judge_outcomes(before, outcome)


def against_published(outcome: Outcome) -> tuple[tuple[str, Judgement], ...]:
    """What the outcome says beside each published score of its suite, with that score's label."""
    lines = [line for table in of_kind(load_all_published(), Published) for line in table.evals]
    return tuple(
        (
            f"{score.label} {score.score} published",
            judge_independent(baseline=score.score, candidate=outcome.score, items=sizes),
        )
        for line in lines
        if line.suite == outcome.suite and (sizes := _sizes(line, outcome)) is not None
        for score in (line.baseline, line.candidate)
    )


def _sizes(line: PublishedEval, outcome: Outcome) -> tuple[int, int] | None:
    return (line.samples, len(outcome.items)) if line.samples is not None else None
