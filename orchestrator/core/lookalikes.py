"""What looks like a secret: told by what stands before it, or by its own first letters."""

import base64
import binascii
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from orchestrator.core.text import alike

REDACTED: Final = "[REDACTED]"
_IsSecret = Callable[[str, str], bool]
_HEADER: Final = 24  # characters: `proxy-authorization`, and what stands between it and its value

# A quote may itself be escaped, in JSON within JSON; a value whose quote does not close ends with its line.
_VALUE: Final = r"""(?P<quote>\\*["'])?(?P<value>(?(quote)(?:(?!(?P=quote))(?:\\.|.))+|[^\s,;)}\]"'\\]+))"""
_GIVEN: Final = rf"""\\*["']?[ \t]*[=:][ \t]*{_VALUE}"""
_ARGUMENT: Final = rf"""(?:\\*["']?[ \t]*[=:]|(?:(?<=-api-key)|(?<=-keyfile-password))["']?[ \t,])[ \t]*{_VALUE}"""
# Of a URL (RFC 3986, 3.2.1), its slashes escaped or not: behind a port comes `/` and no `@`, but that of a digest
# behind the tag of an image, whose digits may be zeros here (`sha000`).
_IN_URL: Final = r""":(?:\\*/){2}[^\s/@:"<>]*:(?P<value>[^\s/?#"<>]+)@(?!sha\d{3}:)"""
_TOLD: Final = r"""[ \t]+(?:is|provided)[ \t]*:?[ \t]*["'`]?(?P<value>[a-z0-9._~+/=-]{8,})"""


def _is_value(value: str, _: str) -> bool:
    return (
        value not in {"None", "null", "True", "False"} and not value.startswith(REDACTED[:-1]) and not value.isdigit()
    )


def _is_password(value: str, _: str) -> bool:
    """Of a URL; not where it was taken out already, or written as stars."""
    return not value.startswith(REDACTED[:-1]) and value.strip("*") != ""


def _is_mixed(value: str, _: str) -> bool:
    """No word: a digit and a letter."""
    return re.search(r"\d", value) is not None and re.search(r"[A-Za-z]", value) is not None


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
        ("@", _IN_URL, _is_password),
        ("basic", r"basic[ \t]+(?P<value>[a-z0-9+/_-]{4,}={0,2})", _is_user),
    )
)
_TELLTALES: Final = tuple(dict.fromkeys(telltale for telltale, _, _ in _SHAPES))
_LOWER_BYTES: Final = bytes(range(256)).lower()
_IN_NO_TELLTALE: Final = bytes(
    {*range(128)} - {*"".join((*_TELLTALES, "\n")).encode()} - {*"".join(_TELLTALES).upper().encode()}
)
_LINE: Final = 32  # letters: of shorter lines it costs more to tell them apart than to search them
_REPEATED: Final = 3  # lines of each kind: with fewer, to read them all costs less than to tell the kinds apart

# Where many lines each hold a secret of their own, one word stands in for all of these until it is cut: the lines are
# of one kind then. Every shape takes it in. What it stands for is longer than the words within what tells a secret
# (`is`, `provided`), and ends in none at which that may begin.
_SAMPLE: Final = 1 << 12  # characters of a text that show whether it is so
_MANY: Final = 8  # different values behind the same letters, among those
_CONTEXT: Final = 4  # characters before a shape that looks at what stands there: `api_` of a key
_STAND_IN: Final = "S0meOneOfTheManyOfThisText"
_STOOD_FOR: Final = (
    r"(?!\d+\b|[A-Za-z0-9_-]*(?i:authorization))"  # which tells what comes behind it
    r"[A-Za-z0-9_-]{12,}+(?i:(?<!key)(?<!password)(?<!token)(?<!bearer)(?<!basic))"
)
_LOWER: Final = {capital: capital + 32 for capital in range(ord("A"), ord("Z") + 1)}


class Lookalike(NamedTuple):
    """Where something stands that looks like a secret, and where that begins by which it is told."""

    told: int
    start: int
    end: int


class _InPlace(NamedTuple):
    """Where it stands within a line of some kind; with `doubtful` it is only one where a certain line says so."""

    start: int
    end: int
    doubtful: bool


def lookalikes(text: str) -> Iterator[Lookalike]:
    """All that looks like a secret. Most texts hold nothing of the kind."""
    if not (told := [*_told(text)]):
        return
    lower = _lowered(text)
    for telltale, shape, is_secret in _SHAPES:
        for match in shape.finditer(lower) if telltale in told else ():
            start, end = match.span("value")
            before = max(match.start() - _HEADER, 0)
            if is_secret(text[start:end], lower[before : match.start()]):
                yield Lookalike(before, start, end)


def without_lookalikes(text: str) -> str:
    """`text` with `[REDACTED]` for all that looks like a secret."""
    if text.isascii() and (leads := _leads_of_many(text[:_SAMPLE])):
        alike_ones = text
        for lead in leads:
            alike_ones = re.sub(re.escape(lead) + _STOOD_FOR, lead + _STAND_IN, alike_ones)
        shown, _ = cut_lookalikes(alike_ones)
        if _STAND_IN not in shown:  # else it stands for what is no secret
            return shown
    return cut_lookalikes(text)[0]


def _leads_of_many(text: str) -> list[str]:
    """What stands right before the values, where there are many that follow the same."""
    if not (told := [*_told(text)]):
        return []
    lower, values = text.lower(), defaultdict[str, set[str]](set)
    for telltale, shape, is_secret in _SHAPES:
        if telltale not in told or is_secret is not _is_value:
            continue
        context = _CONTEXT if "(?<" in shape.pattern else 0
        for match in shape.finditer(lower):
            start = match.start("value")
            lead = text[max(match.start() - context, text.rfind("\n", 0, start) + 1) : start]
            values[lead].add(match["value"])
    return [lead for lead, different in values.items() if lead and len(different) >= _MANY]


def cut_lookalikes(text: str) -> tuple[str, Iterable[str]]:
    """The same, and what was cut. Lines of one kind are read once."""
    if not (told := [*_told(text)]):
        return text, []
    lines = text.split("\n")
    different = [*dict.fromkeys(lines)]
    kinds = alike("\n".join(different)).split("\n")
    if len({*kinds}) * _REPEATED > len(lines):
        return _cut(text, _spans(lookalikes(text)))
    by_kind = _by_kind(kinds, told)
    if any(each.doubtful for found in by_kind.values() for each in found):
        return _cut(text, _spans(lookalikes(text)))
    spans = {kind: _spans(found) for kind, found in by_kind.items()}
    cut = {line: _cut(line, spans[kind]) for line, kind in zip(different, kinds, strict=True) if kind in spans}
    if not cut:
        return text, []
    removed = (each for line in lines if line in cut for each in cut[line][1])
    return "\n".join([cut[line][0] if line in cut else line for line in lines]), removed


def _spans(found: Iterable[Lookalike | _InPlace]) -> list[tuple[int, int]]:
    return merged((each.start, each.end) for each in found)


def _cut(text: str, spans: Sequence[tuple[int, int]]) -> tuple[str, list[str]]:
    return without(text, spans), [text[start:end] for start, end in spans]


def without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """`text` with `[REDACTED]` for each of these spans, which are merged."""
    pieces, at = list[str](), 0
    for start, end in spans:
        pieces += (text[at:start], REDACTED)
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


def _by_kind(lines: Iterable[str], told: Sequence[str]) -> dict[str, list[_InPlace]]:
    """What stands in the lines of each kind.

    No shape goes beyond its line, and none but a user asks for certain digits.
    """
    by_kind: dict[str, list[_InPlace]] = {}
    kinds = "\n".join(dict.fromkeys(lines))
    lower = _lowered(kinds)
    for telltale, shape, is_secret in _SHAPES:
        for match in shape.finditer(lower) if telltale in told else ():
            start, end = match.span("value")
            line, ends = kinds.rfind("\n", 0, start) + 1, kinds.find("\n", end)
            value, told_at = kinds[start:end], match.start() - line
            before = lower[max(match.start() - _HEADER, line) : match.start()]
            doubtful = is_secret is _is_user and "authorization" not in before and ("0" in value or told_at < _HEADER)
            if doubtful or is_secret(value, before):
                kind = kinds[line : ends if ends >= 0 else len(kinds)]
                by_kind.setdefault(kind, []).append(_InPlace(start - line, end - line, doubtful))
    return by_kind


def _lowered(text: str) -> str:
    """`text` in lower case, each letter where it was."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_LOWER)  # a letter that became two


def _told(text: str) -> Iterator[str]:
    """The telltales that stand in it, in any case; told without the characters that stand in none, a line once."""
    letters = text.encode("ascii", "ignore").translate(_LOWER_BYTES, _IN_NO_TELLTALE)
    lines = letters.split(b"\n", len(letters) // _LINE)
    different = letters if len(lines) > len(letters) // _LINE else b"\n".join(set(lines))
    return (telltale for telltale in _TELLTALES if telltale.encode() in different)
