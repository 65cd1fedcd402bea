"""`deploy eval`: ask a served model questions that have an answer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.grammar import MEASURE, add
from orchestrator.cli.options import HostOption, Json, TargetArgument, require_kind, server_names
from orchestrator.core.console import note, out, out_json, say

if TYPE_CHECKING:
    from orchestrator.results import Judgement, Outcome

BaselineOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME|URL",
        help="an earlier outcome, or a server that is asked the same, to compare with",
        autocompletion=server_names,
    ),
]


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    add(app, evaluate, section=MEASURE, name="eval")


def evaluate(
    target: TargetArgument,
    *,
    suite: Annotated[str, typer.Option("--suite", metavar="gsm8k|gpqa-diamond", help="which questions")],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="ask only the first N")] = None,
    baseline: BaselineOption = None,
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

    from orchestrator.commands.bench import is_url
    from orchestrator.commands.evals import EvalOptions, against_outcome, against_published, evaluate_beside, found
    from orchestrator.commands.runs import load_outcome
    from orchestrator.core.paths import Home

    require_kind(target, url=is_url(target), of_url={"--api-key-env": api_key_env}, of_server={"--host": host})
    home, command = Home.from_environment(), shlex.join(["deploy", *sys.argv[1:]])
    options = EvalOptions(suite=suite, limit=limit, data=data, command=command, output=output)
    with ExitStack() as stack:  # a tunnel to a far host stays open until the last question is answered
        candidate = found(target, stack, home=home, host=host, api_key_env=api_key_env)
        before, beside = None, None
        if baseline is not None and (baseline.endswith(".json") or Path(baseline).exists()):
            before = load_outcome(Path(baseline))
        elif baseline is not None:
            beside = found(baseline, stack, home=home, host=host, api_key_env=api_key_env)
        outcome, before, file = evaluate_beside(candidate, beside, before, options, home=home, say=say)
    if before is not None and baseline is not None:
        judged: tuple[tuple[str, Judgement], ...] = ((baseline, against_outcome(outcome, before, where=baseline)),)
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
