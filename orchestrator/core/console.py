"""What people read (stderr) and what programs read (stdout). Understandable without colour; `NO_COLOR` is honoured."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from orchestrator.core.asked import as_asked
from orchestrator.core.errors import DeployError, Problem
from orchestrator.core.redaction import redact, redact_data, redact_known
from orchestrator.core.text import printable, printable_json

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in a colour where the stream is a terminal that wants one."""
    stream = stream or sys.stderr
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def say(text: str = "", *, lead: str = "") -> None:
    """A line for people, its commands as the user can type them, after a `lead` of ours that may be styled."""
    sys.stderr.write(lead + printable(redact(as_asked(text))) + "\n")
    sys.stderr.flush()


def out(text: str, *, colours: bool = False, end: str = "\n") -> None:
    """Text for programs (or a pager), known secrets removed, with a newline at the end; a log keeps its `colours`."""
    text = printable(redact_known(text), colours=colours)
    sys.stdout.write(text if text.endswith("\n") else text + end)
    sys.stdout.flush()


def out_json(data: object) -> None:
    """A JSON document for programs, secrets removed from its texts."""
    out(printable_json(json.dumps(redact_data(data), indent=2, ensure_ascii=False)))


def note(text: str) -> None:
    """Something worth knowing."""
    say(text, lead=_lead("note:", "cyan"))


def warn(text: str, *, hint: str = "") -> None:
    """Something that is not as it should be and does not stop us."""
    say(text, lead=_lead("warning:", "yellow"))
    if hint:
        say(hint, lead=_lead("hint:", "cyan"))


def show_error(error: DeployError) -> None:
    """An error with its place, details, every problem, and the next command."""
    say(error.message, lead=_lead("error:", "red"))
    _show_place(Problem(error.message, error.where, ""))
    for problem in error.problems:
        say(problem.message, lead="  " + _lead("-", "red"))
        _show_place(problem, indent="    ")
    if error.details:
        say(error.details.rstrip("\n"))
    if error.hint:
        say(error.hint, lead=_lead("hint:", "cyan"))


def _show_place(problem: Problem, indent: str = "  ") -> None:
    if problem.where:
        say(problem.where, lead=indent + _lead("-->", "cyan"))
    if problem.hint:
        say(problem.hint, lead=indent + _lead("hint:", "cyan"))


def _lead(word: str, style: str) -> str:
    return f"{styled(word, style)} "


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A plain-text table, columns padded to their widest cell, no trailing spaces."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def fitted(text: str, stream: TextIO | None = None) -> str:
    """`text` with its lines cut to a terminal's width; whole for a file or a pipe."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in text.split("\n"))


class Progress:
    """One live line on a terminal, plain lines (one a change) elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, by default stderr."""
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""

    def update(self, text: str, *, transient: str = "") -> None:
        """Show `text`; `transient` (a clock, a rate) is appended on a terminal and left out of plain lines."""
        if self._live:
            line = printable(redact(f"{text}  {transient}".rstrip()))
            self._stream.write(f"\r\x1b[2K{line}")
        elif text != self._shown:
            self._stream.write(printable(redact(text)) + "\n")
        self._shown = text
        self._stream.flush()

    def done(self) -> None:
        """Leave the last state standing and go to the next line."""
        if self._live and self._shown:
            self._stream.write("\n")
            self._stream.flush()
        self._shown = ""
