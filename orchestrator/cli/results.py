"""The results for `deploy history` and `deploy diff`."""

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
    """Read the results below a directory. Raises UsageError if it does not exist, unless it is the default."""
    if results is not None and not results.is_dir():
        raise UsageError(f"no directory `{results}` found", hint="`deploy bench` with `--output` writes one")
    below = results or Path("results")
    return results_under(below) if below.is_dir() else iter(())
