"""The command `deploy kernels check`."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.options import Json
from orchestrator.core.console import info
from orchestrator.core.errors import KernelsError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.json_output import JsonOutput
from orchestrator.kernels.log_gate import GateReport, gate_report

OUTPUT: Final = JsonOutput(GateReport)
_MAX_LINE_BYTES: Final = 1 << 20  # a longer line is not a log line


def command(
    path: Annotated[str, typer.Argument(metavar="LOGFILE", help="log file, or - for stdin")] = "-",
    *,
    untuned: Annotated[
        Path | None, typer.Option(metavar="FILE", help="file for the misses, as the tuner's input")
    ] = None,
    strict_kernels: Annotated[bool, typer.Option("--strict-kernels", help="exit with 9 on a miss")] = False,
    json: Json = False,
) -> None:
    """Find untuned kernels in a log. Shows which keys the tuned table had."""
    report = _read_log(path)
    if untuned and report.tuner_input:
        try:
            atomic_write(untuned, report.tuner_input)
        except OSError as error:
            raise UsageError(f"cannot write `{untuned}`: {error.strerror}") from error
        info(f"wrote the missed keys to `{untuned}`")
    OUTPUT.show_or_print(report, lambda: report.summary, json=json)
    if strict_kernels and (report.misses or not report.has_lookups):
        raise KernelsError(
            f"kernel lookups without a tuned row: {len(report.misses)}"
            if report.misses
            else "no kernel lookup found in the log"
        )


def _read_log(path: str) -> GateReport:
    try:
        with sys.stdin.buffer if path == "-" else Path(path).open("rb") as log:
            lines = iter(lambda: log.readline(_MAX_LINE_BYTES), b"")
            return gate_report(line.decode(errors="replace") for line in lines)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from error
