"""What looks like a secret: told by what stands before it, or by its own first letters."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from orchestrator.core.text import alike, kinds, repetitive, standing_in

REDACTED: Final = "[REDACTED]"
_IsSecret = Callable[[str, str], bool]
_HEADER: Final = 24  # characters: `proxy-authorization`, and what stands between it and its value

# A quote may itself be escaped, in JSON within JSON; a value whose quote does not close ends with its line.
_VALUE: Final = (
    r"""(?P<quote>\\*["'])?(?P<value>(?(quote)(?:[^\\"'\n]++|(?!(?P=quote))(?:\\.|.))++|[^\s,;)}\]"'\\]+))"""
)
_GIVEN: Final = rf"""\\*["']?[ \t]*[=:][ \t]*{_VALUE}"""
_ARGUMENT: Final = rf"""(?:\\*["']?[ \t]*[=:]|(?:(?<=-api-key)|(?<=-keyfile-password))["']?[ \t,])[ \t]*{_VALUE}"""
# Of a URL (RFC 3986, 3.2.1), its slashes escaped or not: behind a port comes `/` and no `@`, but that of a digest
# behind the tag of an image, whose digits may be zeros here (`sha000`).
_IN_URL: Final = r""":(?:\\*/){2}[^\s/@:"<>]*:(?P<value>[^\s/?#"<>]+)@(?!sha\d{3}:)"""
_TOLD: Final = r"""[ \t]+(?:is|provided)[ \t]*:?[ \t]*["'`]?(?P<value>[a-z0-9._~+/=-]{8,})"""
_DIGIT: Final = re.compile(r"\d")
_LETTER: Final = re.compile(r"[A-Za-z]")


def _is_value(value: str, _: str) -> bool:
    return (
        value not in {"None", "null", "True", "False"} and not value.startswith(REDACTED[:-1]) and not value.isdigit()
    )


def _is_password(value: str, _: str) -> bool:
    """Of a URL; not where it was taken out already, or written as stars."""
    return not value.startswith(REDACTED[:-1]) and value.strip("*") != ""


def _is_mixed(value: str, _: str) -> bool:
    """No word: a digit and a letter."""
    return _DIGIT.search(value) is not None and _LETTER.search(value) is not None


def _is_user(value: str, before: str) -> bool:
    """The value of an `Authorization` header, or else a user and a password."""
    try:
        return "authorization" in before or b":" in base64.b64decode(value, altchars=b"-_", validate=True)
    except binascii.Error:
        return False


# What each holds at least, what it is, and whether that value is one, by it and the text before; all in lower case.
# sglang prints its arguments as a dataclass repr at start and as JSON in /server_info, keys in clear
# (0.5.14: entrypoints/http_server.py, `server_args=ServerArgs(`).
_SHAPES: Final[tuple[tuple[str, re.Pattern[str], _IsSecret], ...]] = tuple(
    (telltale, re.compile(pattern), is_secret)
    for telltale, pattern, is_secret in (
        ("key", rf"key(?:(?<=apikey)|(?<=(?:api|ess|ret)[-_]key)){_ARGUMENT}", _is_value),  # api, access, secret
        ("key", rf"key{_TOLD}", _is_mixed),
        ("password", rf"password(?<=keyfile[-_]password){_ARGUMENT}", _is_value),
        ("password", rf"password{_TOLD}", _is_mixed),
        ("token is", rf"token{_TOLD}", _is_mixed),
        ("auth_token", rf"auth_token{_GIVEN}", _is_value),
        ("hf_", rf"hf_token{_GIVEN}", _is_value),
        ("hf_", r"(?P<value>hf_[a-z0-9]{16,})", _is_value),
        ("bearer", r"bearer[ \t]+(?P<value>[a-z0-9._~+/=-]{6,})", _is_value),
        ("://", _IN_URL, _is_password),
        ("basic", r"basic[ \t]+(?P<value>[a-z0-9+/_-]{4,}={0,2})", _is_user),
    )
)
_TELLTALES: Final = tuple(dict.fromkeys(telltale.encode() for telltale, _, _ in _SHAPES))
_LOWER_BYTES: Final = bytes(range(256)).lower()
_IN_NO_TELLTALE: Final = bytes({*range(128)} - {*b"\n".join(_TELLTALES)} - {*b"".join(_TELLTALES).upper()})
_LINE: Final = 32  # letters: of shorter lines it costs more to tell them apart than to search them
_SAMPLE: Final = 1 << 11  # letters
_EVERY: Final = 7  # a line of so many shows whether they repeat themselves
_FEW: Final = 64  # places in a text, or in its kinds of lines
_PLACES: Final = 8192.0  # looked at in some 16 ms
_EACH_PLACE: Final = 1024  # characters of a log
_READINGS: Final = 16.0
_EACH_READING: Final = 1 << 22
_LONG: Final = 1024  # characters; of what is longer it is said how long it was
_LOWER: Final = {capital: capital + 32 for capital in range(ord("A"), ord("Z") + 1)}


@dataclass(kw_only=True)
class Allowance:
    """How much of a log is looked at place by place, so that what it costs is bounded whatever is written.

    Beyond it, what may hold a secret is withheld whole. What has not been used is kept for later, so that only what
    goes on and on is withheld: a server may tell many prompts with the word `key`, or a hundred workers without one.
    """

    places: float = _PLACES  # that may be secrets; one more each `_EACH_PLACE`
    readings: float = _READINGS  # of 8 KiB in which a known one may stand behind escapes; one more each `_EACH_READING`
    exceeded: bool = False

    def take(self, places: float) -> bool:
        """Whether there are so many, which are taken then; that there are not is kept."""
        self.exceeded |= places > self.places
        self.places = max(self.places - places, 0.0)
        return not self.exceeded

    def one_reading(self) -> bool:
        """Whether there is one more, which is taken."""
        self.exceeded |= self.readings < 1
        self.readings -= not self.exceeded
        return not self.exceeded

    def earn(self, characters: int) -> None:
        """So many have been read."""
        self.places = min(self.places + characters / _EACH_PLACE, _PLACES)
        self.readings = min(self.readings + characters / _EACH_READING, _READINGS)


class Lookalike(NamedTuple):
    """Where something stands that looks like a secret, and where that begins by which it is told."""

    told: int
    start: int
    end: int


def lookalikes(text: str) -> Iterator[Lookalike]:
    """All that looks like a secret. Most texts hold nothing of the kind."""
    if told := [*_told(text)]:
        yield from _search(text, told, None)[0]


def lookalike_spans(text: str, allowance: Allowance | None = None) -> list[tuple[int, int]]:
    """Where all of it stands; with an allowance that does not suffice the rest of `text`, but for its last line end."""
    told = [*_told(text)]
    return _with_rest(text, *_search(text, told, allowance)) if told else []


def cut_lookalikes(text: str, allowance: Allowance | None = None) -> tuple[str, Iterable[str]]:
    """`text` with `[REDACTED]` for all that looks like a secret, and what was cut; kinds of lines are counted."""
    if not (told := [*_told(text)]):
        return text, []
    if allowance is None:
        return _cut(text, _spans(_search(text, told, None)[0]))
    few = Allowance(places=(most := min(allowance.places, _FEW)))
    found, end = _search(text, told, few)
    if end == len(text):
        allowance.take(most - few.places)
    elif by_kind := _cut_by_kind(text, told):
        return by_kind
    else:
        found, end = _search(text, told, allowance)
    return _cut(text, _with_rest(text, found, end))


def _search(text: str, told: Sequence[str], allowance: Allowance | None) -> tuple[list[Lookalike], int]:
    """What looks like a secret, and how far that goes: to the line with a place more than is allowed."""
    lower, end = _lowered(text), len(text)
    most = int(allowance.places) if allowance else len(text)
    places = list[tuple[int, re.Match[str], _IsSecret]]()
    for telltale, shape, is_secret in _SHAPES:
        if telltale not in told:
            continue
        matches = islice(shape.finditer(lower, 0, end), most + 1)
        places += [(match.start(), match, is_secret) for match in matches]
        if len(places) > most:
            places.sort(key=itemgetter(0))
            end = text.rfind("\n", 0, places[most][0]) + 1
            places = [place for place in places if place[0] < end]
    if allowance:
        allowance.take(most + 1 if end < len(text) else len(places))
    found = []
    for at, match, is_secret in places:
        start, stop = match.span("value")
        before = max(at - _HEADER, 0)
        if is_secret(text[start:stop], lower[before:at]):
            found.append(Lookalike(before, start, stop))
    return found, end


def _with_rest(text: str, found: Iterable[Lookalike], end: int) -> list[tuple[int, int]]:
    rest = (end, len(text) - text.endswith("\n"))
    return [*_spans(found), rest] if rest[0] < rest[1] else _spans(found)


def _cut_by_kind(text: str, told: Sequence[str]) -> tuple[str, Iterable[str]] | None:
    """The same where lines repeat themselves but for digits, as most lines of a log do: each kind is read once.

    None where they do not, there are too many kinds, or the digits tell.
    """
    if text.count("\n") > len(text) // _LINE:
        return None
    lines = text.split("\n")
    if not repetitive(kinds("\n".join(lines[::_EVERY])).split(b"\n")):
        return None
    different = [*dict.fromkeys(lines)]
    of_lines = alike("\n".join(different)).split("\n")
    if (by_kind := _by_kind(of_lines, told)) is None:
        return None
    spans = {kind: merged(found) for kind, found in by_kind.items()}
    cut = {line: _cut(line, spans[kind]) for line, kind in zip(different, of_lines, strict=True) if kind in spans}
    removed = (each for line in lines if line in cut for each in cut[line][1])
    return "\n".join([cut[line][0] if line in cut else line for line in lines]), removed


def _spans(found: Iterable[Lookalike]) -> list[tuple[int, int]]:
    return merged((each.start, each.end) for each in found)


def _cut(text: str, spans: Sequence[tuple[int, int]]) -> tuple[str, list[str]]:
    return without(text, spans), [text[start:end] for start, end in spans]


def cut_out(characters: int) -> str:
    """What is shown in the place of so many."""
    return REDACTED if characters <= _LONG else f"{REDACTED[:-1]}: {characters:,} characters]"


def without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """`text` with `[REDACTED]` for each of these spans, which are merged; where it is much, it says how much."""
    pieces, at = list[str](), 0
    for start, end in spans:
        pieces += (text[at:start], cut_out(end - start))
        at = end
    return "".join([*pieces, text[at:]]) if spans else text


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in their order, those that overlap as one."""
    ordered = list[tuple[int, int]]()
    for start, end in sorted(spans):
        if ordered and start < ordered[-1][1]:
            ordered[-1] = (ordered[-1][0], max(end, ordered[-1][1]))
        else:
            ordered.append((start, end))
    return ordered


def _by_kind(lines: Iterable[str], told: Sequence[str]) -> dict[str, list[tuple[int, int]]] | None:
    """What stands in the lines of each kind; None where that is too much, or where the digits tell.

    No shape goes beyond its line, and none but a user asks for certain digits.
    """
    by_kind: dict[str, list[tuple[int, int]]] = {}
    kinds = "\n".join(dict.fromkeys(lines))
    lower = _lowered(kinds)
    for telltale, shape, is_secret in _SHAPES:
        for seen, match in enumerate(shape.finditer(lower) if telltale in told else ()):
            if seen == _FEW:
                return None
            start, end = match.span("value")
            line, ends = kinds.rfind("\n", 0, start) + 1, kinds.find("\n", end)
            before = lower[max(match.start() - _HEADER, line) : match.start()]
            value = kinds[start:end]
            if (
                is_secret is _is_user
                and "authorization" not in before
                and ("0" in value or match.start() - line < _HEADER)
            ):
                return None
            if is_secret(value, before):
                kind = kinds[line : ends if ends >= 0 else len(kinds)]
                by_kind.setdefault(kind, []).append((start - line, end - line))
    return by_kind


def _lowered(text: str) -> str:
    """`text` in lower case, each letter where it was."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_LOWER)  # a letter that became two


def _told(text: str) -> Iterator[str]:
    """The telltales that stand in it, in any case; told without the characters that stand in none, a line once."""
    letters = text.encode("ascii", "ignore").translate(_LOWER_BYTES, _IN_NO_TELLTALE)
    few = letters[:_SAMPLE].split(b"\n")
    if repetitive(few) and len(few) < _SAMPLE // _LINE:
        letters = b"\n".join(set(letters.split(b"\n", len(letters) // _LINE)))
    return (telltale.decode() for telltale in standing_in(letters, _TELLTALES))
