"""The command `deploy eval`."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.bench.run import is_url
from orchestrator.cli.options import (
    ApiKeyEnvOption,
    HostOption,
    Json,
    PriceOption,
    TargetArgument,
    require_kind,
    server_names,
)
from orchestrator.core.console import info, note, print_data
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.evals.forecast import EvalForecast, forecast_eval
from orchestrator.evals.report import ScoreOutput, SuiteScore
from orchestrator.evals.run import EvalOptions, run_suites, tau2_commands
from orchestrator.servers.targets import resolve_target

BaselineOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|DIR|NAME|URL",
        help="eval result, directory of them, or server to compare with",
        autocompletion=server_names,
    ),
]
SuiteOption: TypeAlias = Annotated[
    str, typer.Option("--suite", metavar="gsm8k|gpqa-diamond|tau2|published", help="suite of questions")
]
SeedsOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=100, metavar="N", help="number of seeds (tau2: trials); default: as published")
]
DatasetOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE|DIR", help="local questions, instead of a download")
]
SimulationsOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="tau2's data/simulations, to read results from")
]
LimitOption: TypeAlias = Annotated[int | None, typer.Option(min=1, metavar="N", help="ask only the first N questions")]
MaxTokensOption: TypeAlias = Annotated[
    int | None, typer.Option("--max-tokens", min=1, metavar="N", help="maximum tokens per answer, including reasoning")
]
DryRunOption: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="print the forecast and stop")]
OutputOption: TypeAlias = Annotated[Path, typer.Option(metavar="DIR", help="directory of the eval result")]
ResumeOption: TypeAlias = Annotated[bool, typer.Option("--resume", help="ask only the questions missing in DIR")]


@dataclass(frozen=True, kw_only=True)
class ScoresOutput:
    """The scores of several suites."""

    suites: tuple[ScoreOutput, ...]


OUTPUT: Final = JsonOutput[ScoreOutput | ScoresOutput | EvalForecast](ScoreOutput, ScoresOutput, EvalForecast)


def command(
    target: TargetArgument,
    *,
    suite: SuiteOption,
    limit: LimitOption = None,
    seeds: SeedsOption = None,
    max_tokens: MaxTokensOption = None,
    baseline: BaselineOption = None,
    dataset: DatasetOption = None,
    simulations: SimulationsOption = None,
    dry_run: DryRunOption = False,
    price: PriceOption = None,
    output: OutputOption = Path("results"),
    resume: ResumeOption = False,
    api_key_env: ApiKeyEnvOption = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Score a server on an evaluation suite. Shows whether a difference from a baseline is significant.

    `published` runs all published suites, with the published numbers of questions and seeds, into one report. The data
    file of `gsm8k` is the test split (`test.jsonl`, with `train.jsonl` for the five examples), that of `gpqa-diamond`
    is `gpqa_diamond.csv`. `tau2` is run by its own program: without `--simulations` its commands are printed.
    """
    require_kind(target, url=is_url(target), of_url={"--api-key-env": api_key_env}, of_server={"--host": host})
    home = Home.from_environment()
    request = EvalOptions(
        target=target,
        suite=suite,
        command=shlex.join(["deploy", *sys.argv[1:]]),
        output=output,
        baseline=baseline,
        limit=limit,
        seeds=seeds,
        max_tokens=max_tokens,
        dataset=dataset,
        simulations=simulations,
        prices=tuple(price or ()),
        resume=resume,
    )
    expected = forecast_eval(request, home, planned=dry_run)
    if dry_run and json:
        OUTPUT.show(expected)
        return
    _preview(expected, dry_run=dry_run, sized=dataset is None)
    if dry_run:
        return
    with ExitStack() as stack:  # an ssh tunnel stays open until the last question is answered
        resolve = partial(resolve_target, stack=stack, home=home, host=host, api_key_env=api_key_env)
        if request.prints_commands:
            print_data(tau2_commands(request, home, resolve), end="")
        else:
            _show_scores(run_suites(request, home, resolve, info), all_published=request.is_all_published, json=json)


def _show_scores(scored: Sequence[SuiteScore], *, all_published: bool, json: bool) -> None:
    if json:
        suites = tuple(item.to_output() for item in scored)
        OUTPUT.show(ScoresOutput(suites=suites) if all_published else suites[0])
    for entry in scored:
        for line in () if json else entry.lines():
            print_data(line)
        note(f"wrote the result to `{entry.file}`")
    if all_published:
        note(f"next: `deploy report {scored[0].file.parent}`")


def _preview(expected: EvalForecast, *, dry_run: bool, sized: bool) -> None:
    """Print the significance, time and cost of an evaluation; on standard output for `--dry-run`."""
    if expected.suites and (dry_run or expected.pace.tok_s is not None):
        (print_data if dry_run else info)(expected.to_table())
    if sized:
        for suite in expected.suites:
            note(suite.detects)
    for term in expected.terms:
        note(term)
