"""The results that `deploy history` and `deploy diff` look up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from orchestrator.bench.result import BenchResult
from orchestrator.bench.result_files import results_under
from orchestrator.core.errors import UsageError

ResultsOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="directory of results; default: ./results")
]


def results_below(results: Path | None) -> Iterator[BenchResult]:
    """The results below a directory. Raises UsageError for one that is not there, but for the default."""
    if results is not None and not results.is_dir():
        raise UsageError(f"there is no directory `{results}`", hint="`deploy bench` with `--output` names one")
    below = results or Path("results")
    return results_under(below) if below.is_dir() else iter(())
