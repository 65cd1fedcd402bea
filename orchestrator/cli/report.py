"""The command `deploy report`."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.bench.published import parse_by_gpu
from orchestrator.cli.options import Json, PriceOption
from orchestrator.cli.published import published_option, warn_incomparable
from orchestrator.core.console import note
from orchestrator.core.json_output import JsonOutput
from orchestrator.report.document import Report
from orchestrator.report.write import find_evals, find_results, make_report, write_report

PublishedOption: TypeAlias = Annotated[str | None, published_option("same workload and hardware")]

OUTPUT: Final = JsonOutput(Report, omits_null=True)


def command(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULT", help="directories or files of results of `bench` and `eval`")
    ],
    *,
    published: PublishedOption = None,
    price: PriceOption = None,
    baseline: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="eval result to compare with (may be repeated)")
    ] = None,
    node_watts: Annotated[
        list[str] | None, typer.Option(metavar="[GPU=]W", help="metered watts of a node under load (may be repeated)")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="directory for the report; default: the first RESULT's")
    ] = None,
    json: Json = False,
) -> None:
    """Write an HTML and JSON report. The HTML page is self-contained."""
    evals = find_evals(results, baseline or ())
    benchmarks = find_results(results, required=not evals)
    hint = "`--node-watts 13500` or `--node-watts MI355X=13500`"
    watts = parse_by_gpu(node_watts or (), quantity="power", hint=hint)
    report_made = make_report(benchmarks, published=published, prices=price or (), evals=evals, watts=watts)
    written = write_report(report_made, output or (results[0] if results[0].is_dir() else results[0].parent))
    if json:
        OUTPUT.show(report_made)
    warn_incomparable(report_made)
    note(f"wrote `{written[0]}`, and the same report as `.json`")
