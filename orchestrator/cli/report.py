"""The command `deploy report`."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.cli.options import Json
from orchestrator.cli.published import PriceOption, published_option, warn_incomparable
from orchestrator.core.console import note
from orchestrator.core.errors import BenchError
from orchestrator.core.json_output import JsonOutput
from orchestrator.report.document import Details, Report
from orchestrator.report.economics import NodePower
from orchestrator.report.write import find_evals, find_requests, find_results, make_report, write_report

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
        list[Path] | None,
        typer.Option(metavar="FILE", help="eval result to compare with (may be repeated)"),
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="title of the page; default: the measured server")] = "",
    node_watts: Annotated[
        list[str] | None,
        typer.Option(metavar="[GPU=]W", help="metered watts of a node under load (may be repeated)"),
    ] = None,
    electricity_price: Annotated[
        str | None, typer.Option(metavar="PRICE[EUR]", help="electricity price per kWh; default currency: USD")
    ] = None,
    pue: Annotated[float, typer.Option(metavar="RATIO", help="power usage effectiveness of the data center")] = 1.0,
    timeline_rate: Annotated[
        float | None, typer.Option(metavar="RPS", help="request rate of the timeline (requests/s); default: the knee")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="directory for the report; default: the first RESULT's")
    ] = None,
    json: Json = False,
) -> None:
    """Write an HTML, Markdown and JSON report. The HTML page is self-contained."""
    evals = find_evals(results, baseline or ())
    benchmarks = find_results(results, wanted=not evals)
    details = Details(
        title=title,
        requests=find_requests(benchmarks, timeline_rate),
        evals=evals,
        power=NodePower.parse(node_watts or (), electricity_price, pue),
    )
    made = make_report(benchmarks, published=published, prices=price or (), details=details)
    try:
        written = write_report(made, output or (results[0] if results[0].is_dir() else results[0].parent))
    except OSError as error:
        raise BenchError(f"cannot write the report: {error.strerror}", location=str(error.filename)) from error
    if json:
        OUTPUT.show(made)
    warn_incomparable(made)
    note(f"wrote `{written[0]}`, and the same report as `.md` and `.json`")
