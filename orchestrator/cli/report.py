"""`deploy compare` and `deploy report`: what was measured beside what was published."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from orchestrator.cli.options import Json, complete_names
from orchestrator.cli.typer_app import MEASURE, add
from orchestrator.core.console import note, print_data, print_json, warn
from orchestrator.core.text import parse_json

if TYPE_CHECKING:
    from orchestrator.report.document import Report


def _published(default: str) -> Any:  # noqa: ANN401 - typer declares its options so
    help_text = f"published figures to compare with; default: {default}"
    names = complete_names("PUBLISHED")
    return typer.Option("--published", metavar="NAME|FILE|none", help=help_text, autocompletion=names)


PublishedOption: TypeAlias = Annotated[str | None, _published("those of the same workload and machine")]
PublishedAskedOption: TypeAlias = Annotated[str | None, _published("none")]
PriceOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--price", metavar="[GPU=]USD", help="the price of one GPU for an hour; may be repeated; default: published TCO"
    ),
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    add(app, compare, report, section=MEASURE)


def compare(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT", help="result files, or directories of results")],
    *,
    published: PublishedAskedOption = None,
    price: PriceOption = None,
    json: Json = False,
) -> None:
    """Set measurements side by side: what differs, and by how much."""
    from orchestrator.report.render import render_json
    from orchestrator.report.text import comparison_text
    from orchestrator.report.write import find_results, make_report

    made = make_report(find_results(results), published=published or "none", prices=price or ())
    if json:
        print_json(parse_json(render_json(made)))
    else:
        print_data(comparison_text(made))
    _warn_loudly(made)


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="holds the results of `deploy bench` and `eval`")],
    *,
    published: PublishedOption = None,
    price: PriceOption = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="an outcome of `deploy eval` to compare its suite with; may be repeated"),
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="the title of the page; default: what was measured")] = "",
    node_watts: Annotated[
        float | None, typer.Option(metavar="W", help="the power that the whole node draws under load, as metered")
    ] = None,
    kwh: Annotated[str | None, typer.Option(metavar="PRICE[EUR]", help="the price of a kWh; default: USD")] = None,
    pue: Annotated[float, typer.Option(metavar="RATIO", help="watts drawn for each watt used")] = 1.0,
    requests_at: Annotated[
        float | None, typer.Option(metavar="RPS", help="the rate whose requests are drawn over time; default: the knee")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="write there instead of into DIR")] = None,
    json: Json = False,
) -> None:
    """Write report.html, report.md and report.json. The page is self-contained; the others say the same."""
    from orchestrator.core.errors import BenchError
    from orchestrator.report.document import Details
    from orchestrator.report.economics import NodePower
    from orchestrator.report.render import render_json
    from orchestrator.report.write import find_evals, find_requests, find_results, make_report, write_report

    evals = find_evals(directory, baseline or ())
    results = find_results([directory], wanted=not evals)
    details = Details(
        title=title,
        requests=find_requests(results, requests_at),
        evals=evals,
        power=NodePower.given(node_watts, kwh, pue),
    )
    made = make_report(results, published=published, prices=price or (), details=details)
    try:
        written = write_report(made, output or directory)
    except OSError as error:
        raise BenchError(f"the report cannot be written: {error.strerror}", where=str(error.filename)) from error
    if json:
        print_json(parse_json(render_json(made)))
    _warn_loudly(made)
    note(f"the report is `{written[0]}`, with `.md` and `.json` beside it")


def _warn_loudly(made: "Report") -> None:
    for comparison in made.comparisons:
        if not comparison.comparable:
            kinds = ", ".join(dict.fromkeys(reason.kind for reason in comparison.reasons))
            warn(f"NOT COMPARABLE: {comparison.label}, {comparison.result.run.workload_name}: {kinds}")
