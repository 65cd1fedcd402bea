"""Output for people (stderr) and for programs (stdout). No meaning depends on color; `NO_COLOR` turns color off."""

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import ClassVar, Final, Self, TextIO

from orchestrator.core.command_hints import expand_commands
from orchestrator.core.errors import DeployError, Problem
from orchestrator.core.secrets import redact, redact_data, redact_known
from orchestrator.core.streams import write
from orchestrator.core.text import printable, printable_json

LOG_INTERVAL_SECONDS: Final = 30.0  # between two lines about the same stage, if stderr is not a terminal
_COLORS: Final = {"red": "31", "yellow": "33", "cyan": "36"}


class _Muted:
    """The warnings of a muted block; None outside of one."""

    warnings: ClassVar[list[tuple[str, str]] | None] = None


@contextmanager
def muted() -> Iterator[list[tuple[str, str]]]:
    """Suppress lines for people in the block; yield a list that collects its warnings with their hints."""
    before, _Muted.warnings = _Muted.warnings, []
    try:
        yield _Muted.warnings
    finally:
        _Muted.warnings = before


def info(text: str = "", *, lead: str = "") -> None:
    """Print a line for people, redacted, with its commands expanded; `lead`, which may be styled, is printed as is."""
    if _Muted.warnings is not None:
        return
    write(sys.stderr, lead + printable(redact(expand_commands(text))) + "\n")


def print_data(text: str, *, colors: bool = False, end: str = "\n") -> None:
    """Print text for programs or a pager, without known secrets; `end` is added unless the text ends with a newline.

    With `colors` the text keeps the color codes of a log.
    """
    text = printable(redact_known(text), colors=colors)
    write(sys.stdout, text if text.endswith("\n") else text + end)


class _JsonOutput:
    """The JSON state of this command: whether it prints JSON, and whether it has printed its document."""

    expected: bool = False
    document: bool = False  # stays false for a stream of lines


def expect_json(expected: bool) -> None:  # noqa: FBT001 - the option of a command
    """Set whether an error of this command is also printed as JSON."""
    _JsonOutput.expected, _JsonOutput.document = expected, False


def print_json(data: object, *, one_line: bool = False) -> None:
    """Print a JSON document for programs. Redacts each value, not the document, so that it stays valid JSON."""
    _JsonOutput.document = not one_line
    text = printable_json(json.dumps(redact_data(data), indent=None if one_line else 2, ensure_ascii=False))
    write(sys.stdout, f"{text}\n")


def note(text: str) -> None:
    """Print a note: a fact worth knowing."""
    info(text, lead=_lead("note:", "cyan"))


def warn(text: str, *, hint: str = "") -> None:
    """Print a warning: a problem that does not stop the command."""
    if _Muted.warnings is not None:
        _Muted.warnings.append((text, hint))
    info(text, lead=_lead("warning:", "yellow"))
    if hint:
        info(hint, lead=_lead("hint:", "cyan"))


def show_error(error: DeployError) -> None:
    """Print an error with its location, problems, details, and hint.

    With `--json`, the error is also printed as JSON, unless standard output already has the command's document.
    """
    if _JsonOutput.expected and not _JsonOutput.document:
        print_json(asdict(ErrorOutput.of(error)), one_line=True)
    info(error.message, lead=_lead("error:", "red"))
    _show_location(Problem(error.message, error.location, ""))
    for problem in error.problems:
        info(problem.message, lead="  " + _lead("-", "red"))
        _show_location(problem, indent="    ")
    if error.details:
        info(error.details.rstrip("\n"))
    if error.hint:
        info(error.hint, lead=_lead("hint:", "cyan"))


@dataclass(frozen=True, kw_only=True)
class ErrorDetails:
    """An error with its problems; `location` is a file and line, an address, or empty; `hint` is what to do next."""

    message: str
    location: str
    hint: str
    problems: tuple[Problem, ...]
    details: str
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class ErrorOutput:
    """The JSON that a command with `--json` prints after an error, unless it has printed its result."""

    error: ErrorDetails

    @classmethod
    def of(cls, error: DeployError) -> "ErrorOutput":
        """Return an error as data, with the commands in its hints expanded."""
        item = (Problem(error.message, error.location, error.hint), *error.problems)
        details, *problems = (
            replace(p, location=expand_commands(p.location), hint=expand_commands(p.hint)) for p in item
        )
        return cls(
            error=ErrorDetails(
                **vars(details), problems=tuple(problems), details=error.details, exit_code=error.exit_code
            )
        )


def _show_location(problem: Problem, indent: str = "  ") -> None:
    if problem.location:
        info(problem.location, lead=indent + _lead("-->", "cyan"))
    if problem.hint:
        info(problem.hint, lead=indent + _lead("hint:", "cyan"))


def _lead(word: str, color: str) -> str:
    """Return a word and a space; the word is colored if stderr is a terminal that supports color."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stderr.isatty():
        return f"{word} "
    return f"\x1b[{_COLORS[color]}m{word}\x1b[0m "


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None = None) -> str:
    """Return a plain-text table: columns as wide as their widest cell, no trailing spaces.

    With a `width` in characters, cells are wrapped between words, the widest columns first. If the longest words do not
    fit, each row becomes a paragraph, so that a name or a path can still be copied.
    """
    lines = [tuple(header), *(tuple(row) for row in rows)]
    columns = range(len(header))
    widths = [max(len(line[column]) for line in lines) for column in columns]
    if width is not None and _sum(widths) > width:
        narrowest = [max(len(word) for line in lines for word in line[column].split(" ")) for column in columns]
        if _sum(narrowest) > width:
            return "\n".join([f"{header[0]}:", *(_paragraph(header, line, width) for line in lines[1:])])
        while _sum(widths) > width:
            widest = max(columns, key=lambda column: (widths[column] > narrowest[column], widths[column]))
            widths[widest] -= 1
    return "\n".join(folded for line in lines for folded in _folded(line, widths))


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _folded(line: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [_wrapped(cell, size) if len(cell) > size else [cell] for cell, size in zip(line, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield "  ".join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip()


def _paragraph(header: Sequence[str], line: Sequence[str], width: int) -> str:
    """Return a row as its first cell, followed by the other non-empty cells with their column names."""
    cells = [f"{name}: {cell}" if name else cell for name, cell in zip(header[1:], line[1:], strict=True) if cell]
    return "\n".join([line[0], *(f"    {part}" for part in _wrapped(", ".join(cells), width - 4))])


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def format_duration(seconds: float) -> str:
    """Return a duration for people, in seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the columns of a stream's terminal, by default of standard output; None for a file or a pipe."""
    stream = stream or sys.stdout
    return shutil.get_terminal_size().columns if stream.isatty() else None


@contextmanager
def live_screen() -> Iterator[Callable[[str], None]]:
    """Yield a function that replaces the text on the screen; without a terminal it prints one text after another."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: print_data(f"{text}\n")
        return
    from rich.live import Live  # noqa: PLC0415 - takes 0.1 s; only live views need it
    from rich.text import Text  # noqa: PLC0415 - as above

    with Live(screen=True, auto_refresh=False) as live:
        yield lambda text: live.update(Text(printable(redact(text))), refresh=True)


class Progress:
    """A progress line, updated in place on a terminal; a log gets a line per stage, and every 30 s in a long one."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to `stream`, by default stderr; `clock` gives seconds."""
        self._stream = stream or sys.stderr
        self.live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._clock = clock
        self._shown = ""  # the last state
        self._written = ""  # the last line in a log
        self._stage: str | None = None
        self._written_at = 0.0

    def update(self, text: str, *, stage: str | None = None, transient: str = "") -> None:
        """Show `text`, the state of `stage`; without a stage, each text counts as a new stage.

        On a terminal, `transient` (a clock, a rate) is appended. A log gets one line for a new stage, then a line with
        `transient` at most every LOG_INTERVAL_SECONDS.
        """
        line = f"{text}  {transient}".rstrip()
        if _Muted.warnings is not None:
            return
        if self.live:
            write(self._stream, f"\r\x1b[2K{self._fitted(printable(redact(text)), printable(redact(transient)))}")
        elif (stage or text) != self._stage:
            self._write(text)
        elif self._clock() - self._written_at >= LOG_INTERVAL_SECONDS:
            self._write(line)
        self._stage, self._shown = stage or text, text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def done(self) -> None:
        """Keep the last state visible and go to the next line."""
        if self.live and self._shown:
            write(self._stream, "\n")
        elif not self._written.startswith(self._shown):
            self._write(self._shown)
        self._shown, self._written, self._stage = "", "", None

    def clear(self) -> None:
        """Remove the line from a terminal, so that another one can be printed."""
        if self.live:
            write(self._stream, "\r\x1b[2K")

    def _write(self, line: str) -> None:
        self._written, self._written_at = line, self._clock()
        write(self._stream, printable(redact(line)) + "\n")

    def _fitted(self, text: str, transient: str) -> str:
        """Cut the text if the line is wider than the terminal, which can clear only the last row of a wrapped line."""
        line = f"{text}  {transient}".rstrip()
        width = terminal_width(self._stream)
        if width is None or len(line) < width:
            return line
        suffix = f"…  {transient}".rstrip()
        return f"{text[: max(width - 1 - len(suffix), 0)]}{suffix}"[: width - 1]
