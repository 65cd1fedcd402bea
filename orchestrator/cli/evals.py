"""`deploy eval`: ask a served model questions that have an answer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.grammar import MEASURE, add
from orchestrator.cli.options import HostOption, Json, TargetArgument, require_kind
from orchestrator.core.console import note, out, out_json, say

if TYPE_CHECKING:
    from orchestrator.results import Judgement, Outcome


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    add(app, evaluate, section=MEASURE, name="eval")


def evaluate(
    target: TargetArgument,
    *,
    suite: Annotated[str, typer.Option("--suite", metavar="gsm8k|gpqa-diamond", help="which questions")],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="ask only the first N")] = None,
    baseline: Annotated[Path | None, typer.Option(metavar="FILE", help="an earlier outcome, to compare with")] = None,
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="the questions, instead of a download")] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="where to put the outcome")] = Path("results"),
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="the variable that holds a URL's key")
    ] = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Score a served model with lm-evaluation-harness. Says what a difference from a baseline can tell.

    For `gsm8k` the data file is the test split (`test.jsonl`, with `train.jsonl` beside it for the five examples), for
    `gpqa-diamond` it is `gpqa_diamond.csv`.
    """
    import shlex
    import sys
    from contextlib import ExitStack

    from orchestrator.commands.bench import is_url, server_target, url_target
    from orchestrator.commands.evals import against_file, against_published, run_eval, save_outcome
    from orchestrator.commands.servers import fleet
    from orchestrator.core.errors import BenchError
    from orchestrator.core.paths import Home

    require_kind(target, url=is_url(target), of_url={"--api-key-env": api_key_env}, of_server={"--host": host})
    home, command = Home.from_environment(), shlex.join(["deploy", *sys.argv[1:]])
    with ExitStack() as stack:  # a tunnel to a far host stays open until the last question is answered
        if is_url(target):
            found = url_target(target, gpus=None, api_key_env=api_key_env)
        else:
            found = server_target(stack.enter_context(fleet(home, host)), target)
        outcome = run_eval(found, suite=suite, limit=limit, data=data, command=command, home=home, say=say)
    try:
        file = save_outcome(outcome, output)
    except OSError as error:
        raise BenchError(f"the outcome cannot be written: {error.strerror}", where=str(error.filename)) from error
    if baseline is not None:
        judged: tuple[tuple[str, Judgement], ...] = ((str(baseline), against_file(outcome, baseline)),)
    else:
        judged = against_published(outcome)
    if json:
        out_json(_document(outcome, judged))
    else:
        out(f"{outcome.suite}: {outcome.score:.4f} of {len(outcome.items)} items, {outcome.metric}, {outcome.harness}")
        for against, judgement in judged:
            out(f"against {against}: {judgement.sentence}")
    note(f"the outcome is in `{file}`")


def _document(outcome: "Outcome", judged: "tuple[tuple[str, Judgement], ...]") -> dict[str, object]:
    from dataclasses import asdict

    return {
        "suite": outcome.suite,
        "score": outcome.score,
        "items": len(outcome.items),
        "metric": outcome.metric,
        "harness": outcome.harness,
        "against": [{"what": what, **asdict(judgement), "sentence": judgement.sentence} for what, judgement in judged],
    }
