"""The secrets that this run knows, and where they stand in a text, however they are written.

A secret is found plain, in base64 at any of its three alignments, in hexadecimal; behind percent-encoding, JSON escapes
and colour codes; and broken by line ends.
"""

import base64
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Final

from orchestrator.core.lookalikes import Allowance
from orchestrator.core.sieve import Sieve
from orchestrator.core.text import standing_in

SHORT: Final = 8  # characters; what is shorter may well be a word, and is only found as one
MOST_APART: Final = 4096  # characters from the beginning of a secret to its end, with all that is in between
SHORTEST: Final = 4  # characters; what is shorter is not found in a text at all

_LINE_ENDS: Final = re.compile(r"[\r\n]+")
_MARKS: Final = re.compile(
    r"%([0-9A-Fa-f]{2})|\\u00([0-9A-Fa-f]{2})|\\x([0-9A-Fa-f]{2})|\\([\"'/\\])|\\[nr]"
    r"|\x1b\[[0-?]*[ -/]*[@-~]|[\r\n]+"
)
_WINDOW: Final = 1 << 16  # characters that are looked through at a time
_PERCENT: Final = re.compile(r"%[0-9A-Fa-f]{2}")  # a search for this alone is ten times as quick
_STEPS: Final = (_LINE_ENDS, _MARKS, _MARKS, _MARKS)  # JSON within JSON, in a message
_UNFINISHED_MARK: Final = re.compile(r"(?:%[0-9A-Fa-f]?|\\(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?)?|\x1b(?:\[[ -?]*)?)\Z")
_CHANGING: Final = re.compile(r"[%\\\x00\x1b\r\n]")  # of a form that is read as something else where it stands as it is
_URL_SAFE: Final = str.maketrans("+/", "-_")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]")
_LONGEST_MARK: Final = 32  # characters: colours with all their numbers
_FEW_ENDS: Final = 32  # characters of a line: with fewer there are many
_WITH_FEW_ESCAPES: Final = 1024  # characters at the end of a text: enough to tell whether a secret begins there
_TORN: Final = 64  # characters that are read otherwise where an escape is torn


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The secrets of this run. A form is what to search for, and how many characters beside it share its bits."""

    values: frozenset[str] = frozenset()
    forms: tuple[tuple[str, int], ...] = ()
    beginnings: frozenset[str] = frozenset()  # of each form, all that are shorter than it
    sieve: Sieve = field(default_factory=lambda: Sieve(()))
    longest: int = 0
    words: re.Pattern[str] | None = None  # the short ones

    def words_in(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the short ones stand, each as a word."""
        if self.words is not None and any(len(value) < SHORT and value in text for value in self.values):
            yield from (word.span() for word in self.words.finditer(text))

    @cached_property
    def encoded(self) -> tuple[bytes, ...]:
        """The forms as bytes, which are searched more quickly."""
        return tuple(form.encode("utf-8", "surrogatepass") for form, _ in self.forms)

    @cached_property
    def plain(self) -> tuple[str, ...]:
        """Those forms that may simply be replaced: read as nothing else, and no part of what replaces them."""
        odd = [form for form, edge in self.forms if edge or _CHANGING.search(form) or {*"[]"} & {*form}]
        return tuple(form for form, _ in self.forms if form not in odd)

    @cached_property
    def may_overlap(self) -> bool:
        """Whether one form may take in the middle of another that stands beside it, or is read as something else."""
        forms = [form for form, _ in self.forms]
        return any(_CHANGING.search(form) or any(_takes_in(each, form) for each in forms) for form in forms)


_known = _Known()


def _takes_in(one: str, other: str) -> bool:
    """Whether `one` fits over the middle of `other`, other than as the same."""
    middle = len(other) // 2
    for start in range(middle - len(one) + 1, middle + 1):
        first, last = max(start, 0), min(start + len(one), len(other))
        if other[first:last] == one[first - start : last - start] and (start or one != other):
            return True
    return False


def remember(value: str) -> None:
    """Take this secret out of everything from now on."""
    if len(value) >= SHORTEST:
        know(_known.values | {value})


def known() -> tuple[str, ...]:
    """Every secret of this run: for another process that is to take them out as well."""
    return tuple(sorted(_known.values))


def is_known(value: str) -> bool:
    """Whether this is a secret of this run."""
    return value in _known.values


def know(values: Iterable[str]) -> None:
    """Know these secrets, and no others."""
    global _known  # noqa: PLW0603 - a secret is one for the whole process, whoever shows something
    values = frozenset(values)
    if values == _known.values:
        return
    forms = dict(form for value in values if len(value) >= SHORT for form in _forms(value).items())
    words = "|".join(
        rf"{word}(?<![A-Za-z0-9]{word})" for word in (re.escape(each) for each in values if len(each) < SHORT)
    )
    _known = _Known(
        values=values,
        forms=tuple(forms.items()),
        beginnings=frozenset(form[:end] for form in forms for end in range(1, len(form))),
        sieve=Sieve(forms),
        longest=max(map(len, forms), default=0),
        words=re.compile(rf"(?:{words})(?![A-Za-z0-9])") if words else None,
    )


def _forms(value: str) -> dict[str, int]:
    data = os.fsencode(value)
    forms = {value: 0, data.hex(): 0, data.hex().upper(): 0}
    for before in range(3):  # bytes of another text in the same group of three
        text = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        text = text[(0, 2, 3)[before] : len(text) - ((before + len(data)) % 3 > 0)]
        forms |= {text: 1, text.translate(_URL_SAFE): 1}
    return forms


def _readings(text: str) -> Iterator[str]:
    """`text` as its readers see it: without line ends, its escapes resolved, and those which that brought up."""
    text = _without_ends(text)
    yield text
    for _ in _STEPS[1:]:
        if not (_is_marked(text) or "\n" in text or "\r" in text):
            return
        text = _MARKS.sub(_character, text)
        yield text


def _is_marked(text: str) -> bool:
    return "\\" in text or "\x1b" in text or ("%" in text and _PERCENT.search(text) is not None)


def _without_ends(text: str) -> str:
    if text.count("\n") > len(text) // _FEW_ENDS:  # many are taken out more quickly by their number than by their place
        return text.encode("utf-8", "surrogatepass").translate(None, b"\r\n").decode("utf-8", "surrogatepass")
    return text.replace("\n", "").replace("\r", "")


def _character(mark: re.Match[str]) -> str:
    if mark.lastindex is None:
        return ""
    return mark[4] or chr(int(mark[mark.lastindex], 16))


def known_as_it_is(text: str) -> str | None:
    """The one form of a known secret that `text` holds, each time as it is and in no other way; empty for none.

    None where more would have to be read to tell.
    """
    if not _may_hold_any(text):
        return ""
    held = [form for form, _ in _known.forms if form in text]
    if len(held) != 1 or held[0] not in _known.plain or _known.may_overlap:
        return None
    middle = len(held[0]) // 2
    rest = text.replace(held[0], f"{held[0][:middle]}\0{held[0][middle + 1 :]}")
    return None if _may_hold_any(rest) else held[0]


def _may_hold_any(text: str) -> bool:
    if any(_known.words_in(text)):
        return True
    return bool(_known.forms) and _may_hold_known(text)


def known_spans(text: str, allowance: Allowance | None = None) -> Iterator[tuple[int, int]]:
    """Where known secrets stand in `text`; with an allowance that is used up, where any may stand.

    Most texts hold none, which costs a search a form and nothing else.
    """
    words = _at_most(allowance, _known.words_in(text))
    yield from [(0, _end(text))] if words is None else words
    if allowance and _known.forms:  # a portion of a log, which may hold one as far as was told at once
        yield from _spans_in_window(text, allowance)
        return
    for at in range(0, len(text) if _known.forms else 0, _WINDOW):
        window = text[at : at + _WINDOW + MOST_APART]
        if _may_hold_known(window):
            yield from ((at + start, at + end) for start, end in _spans_in_window(window, None))


def _at_most(allowance: Allowance | None, spans: Iterator[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """These spans; None where they are more than is allowed."""
    if allowance is None:
        return [*spans]
    found = [*islice(spans, int(allowance.places) + 1)]
    return found if allowance.take(len(found)) else None


def _end(text: str) -> int:
    """Up to where a text is taken out whole: its last line end stays."""
    return len(text) - text.endswith("\n")


def _spans_in_window(text: str, allowance: Allowance | None) -> Iterator[tuple[int, int]]:
    """Those that stand there as they are, and then by pieces where the rest of the text may hold more."""
    spans = [] if _known.may_overlap else _at_most(allowance, _spans_as_they_are(text))
    if spans is None:
        yield 0, _end(text)
        return
    yield from spans
    rest = _without_middles(text, spans)
    for at in range(0, len(text) if not spans or _may_hold_known(rest) else 0, MOST_APART):
        piece = slice(at, at + 2 * MOST_APART)
        if not _may_hold_known(rest[piece]):
            continue
        found = None
        if allowance is None or allowance.one_reading():
            found = _at_most(allowance, _spans_in_readings(text[piece]))
        if found is None:
            yield text.rfind("\n", 0, at) + 1, _end(text)
            return
        yield from ((at + start, at + end) for start, end in found)


def _spans_as_they_are(text: str) -> Iterator[tuple[int, int]]:
    for form, edge in _known.forms:
        start = text.find(form)
        while start >= 0:
            end = start + len(form)
            before = edge if start and _BASE64.match(text, start - 1) else 0
            after = edge if _BASE64.match(text, end) else 0
            yield start - before, end + after
            start = text.find(form, start + 1)


def _without_middles(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text with a character of each span replaced by one that is part of no secret."""
    pieces, at = [], 0
    for middle in sorted({(start + end) // 2 for start, end in spans}):
        pieces += [text[at:middle], "\0"]
        at = middle + 1
    return "".join([*pieces, text[at:]])


def _may_hold_known(text: str) -> bool:
    """Whether a reading of it may hold a known secret: told a hundred times as quickly as by reading it."""
    if _is_marked(text):
        return _known.sieve.passes(text)
    plain = text.encode("utf-8", "surrogatepass").translate(None, b"\r\n")
    return any(standing_in(plain, _known.encoded))


def _spans_in_readings(text: str) -> Iterator[tuple[int, int]]:
    reading, origin = text, _Origin(text)
    for marks in _STEPS:
        reading = origin.read(reading, marks)
        for form, edge in _known.forms:
            start = reading.find(form)
            while start >= 0:
                end = start + len(form)
                before = edge if start and _BASE64.match(reading, start - 1) else 0
                after = edge if _BASE64.match(reading, end) else 0
                yield origin.of(start - before)[0], origin.of(end + after - 1)[1]
                start = reading.find(form, start + 1)


class _Origin:
    """Where each character of a reading stands in the text that was read."""

    def __init__(self, text: str) -> None:
        self._end = len(text)
        self._readings: list[list[tuple[int, int, int]]] = []  # runs: from where, from where in the one before, width

    def read(self, text: str, marks: re.Pattern[str]) -> str:
        runs, pieces, length, at = [(0, 0, 1)], [], 0, 0
        for mark in marks.finditer(text):
            character = _character(mark)
            pieces += [text[at : mark.start()], character]
            length += mark.start() - at
            at = mark.end()
            if character:
                runs.append((length, mark.start(), at - mark.start()))
                length += 1
            runs.append((length, at, 1))
        self._readings.append(runs)
        return "".join([*pieces, text[at:]])

    def of(self, index: int) -> tuple[int, int]:
        """The start and the end of the character at `index`."""
        start, end = index, index + 1
        for runs in reversed(self._readings):
            start, end = _place(runs, start)[0], _place(runs, end - 1)[1]
        return start, end


def _place(runs: list[tuple[int, int, int]], index: int) -> tuple[int, int]:
    first, origin, width = runs[bisect_right(runs, index, key=itemgetter(0)) - 1]
    start = origin + index - first
    return start, start + width


def may_begin(text: str) -> int:
    """Where the end of `text` begins that may be the beginning of a known secret; its length where there is none."""
    if not _known.forms:
        return len(text)
    readings = [*_readings(text[-_WITH_FEW_ESCAPES:])]
    if len(readings[-1]) < _known.longest + _TORN:  # what stands before it may still be part of one
        readings = [*_readings(text[-MOST_APART:])]
    if all(_beginning(reading) == len(reading) for reading in readings):
        return len(text)
    window = text[-MOST_APART:]
    reading, origin, found = window, _Origin(window), len(window)
    for marks in _STEPS:
        reading = origin.read(reading, marks)
        if (start := _beginning(reading)) < len(reading):
            found = min(found, origin.of(start)[0])
    return len(text) - len(window) + found


def _beginning(reading: str) -> int:
    """Where the beginning of a known secret stands at the end of a reading, or an escape that is not whole."""
    unfinished = _UNFINISHED_MARK.search(reading, max(len(reading) - _LONGEST_MARK, 0))
    end = unfinished.start() if unfinished else len(reading)
    starts = range(max(end - _known.longest, 0), end)
    return next((start for start in starts if reading[start:end] in _known.beginnings), end)
