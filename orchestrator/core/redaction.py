"""Taking secrets out of all that is shown or stored: those that this run knows, and what looks like one."""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from orchestrator.core.known_secrets import MOST_APART, known_as_it_is, known_spans, may_begin
from orchestrator.core.lookalikes import (
    REDACTED,
    Allowance,
    cut_lookalikes,
    cut_out,
    lookalike_spans,
    lookalikes,
    merged,
    without,
)

_TELLING: Final = 4  # characters of a secret that may be shown: the last ones before a stream pauses


def redact(text: str, allowance: Allowance | None = None) -> str:
    """`text` with every known secret, and everything that looks like one, replaced by `[REDACTED]`.

    With an allowance that does not suffice, more than that.
    """
    if (plain := known_as_it_is(text)) is None:
        return without(text, merged(_spans(text, allowance)))
    shown, removed = cut_lookalikes(text, allowance)
    if not plain:
        return shown
    if text.count(plain) == shown.count(plain) + "\n".join(removed).count(plain):  # none stands over the end of another
        return shown.replace(plain, REDACTED)
    return without(text, merged(_spans(text, allowance)))


def redact_known(text: str) -> str:
    """`text` without the known secrets: for what we have written ourselves, where a lookalike is none."""
    return without(text, merged(known_spans(text)))


def redact_data(data: object) -> object:
    """JSON-able data with each text in it redacted; a member of an Enum is a word of ours, which is read again."""
    if isinstance(data, Enum):
        return data
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, Mapping):
        return {key: redact_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [redact_data(each) for each in data]
    return data


def excerpt(text: str | bytes, most: int) -> str:
    """The first `most` characters of `text`, redacted before they are cut: half a secret is not told as one."""
    text = text[: most + MOST_APART]
    return redact(text.decode(errors="replace") if isinstance(text, bytes) else text)[:most]


def looks_secret(text: str) -> bool:
    """Whether something in `text` looks like a secret; what this run knows does not matter."""
    return next(lookalikes(text), None) is not None


def safe_cut(text: str, at: int) -> int:
    """Where to cut `text`, at `at` or before it, so that nothing that looks like a secret is torn."""
    first = max(at - MOST_APART, 0)
    found = ((first + each.told, first + each.end) for each in lookalikes(text[first:]))
    return min((told for told, end in found if first < told < at < end), default=at)


class Stream:
    """Text that comes in pieces and leaves redacted, but for an end that may be the beginning of a known secret."""

    def __init__(self, allowance: Allowance | None = None) -> None:
        """Nothing has come yet."""
        self._allowance = allowance
        self._shown = ""  # the end of what has left, where a secret may have begun
        self._held = ""

    def feed(self, piece: str) -> str:
        """What may leave by now."""
        shown, text = len(self._shown), self._shown + self._held + piece
        if self._allowance:
            self._allowance.earn(len(piece))
        begins = may_begin(text)
        if not shown and begins == len(text):
            self._held = ""
            return redact(text, self._allowance)
        spans = merged(_spans(text, self._allowance))
        ended = max([begins, *(end for start, end in spans[-1:])])
        leaves = max(ended, shown) if len(text) - ended >= _TELLING else len(text)
        self._shown, self._held = text[begins:leaves], text[leaves:]  # one may begin in what is taken out as another
        return without(
            text[shown:leaves], [(max(start - shown, 0), end - shown) for start, end in spans if end > shown]
        )

    def withhold(self, text: str) -> str:
        """Take what is held, and `text`, for more secrets than can be told apart; what is shown in their place."""
        if self._allowance:
            self._allowance.earn(len(text))
        end = (self._shown + self._held + text)[-MOST_APART:]
        shown = cut_out(len(self._held) + len(text))
        self._shown, self._held = end[may_begin(end) :], ""
        return f"{shown}\n"

    def close(self) -> str:
        """The rest, of a stream that has ended."""
        rest, self._held = self._held, ""
        return redact(rest)


def _spans(text: str, allowance: Allowance | None = None) -> list[tuple[int, int]]:
    return [*known_spans(text, allowance), *lookalike_spans(text, allowance)]
