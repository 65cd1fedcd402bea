"""What looks like a secret: told by what stands before it, or by its own first letters."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from orchestrator.core.text import alike

REDACTED: Final = "[REDACTED]"
_IsSecret = Callable[[str, str], bool]
_HEADER: Final = 24  # characters: `proxy-authorization`, and what stands between it and its value

# A quote may itself be escaped, in JSON within JSON; a value whose quote does not close ends with its line.
_VALUE: Final = r"""(?P<quote>\\*["'])?(?P<value>(?(quote)(?:(?!(?P=quote))(?:\\.|.))+|[^\s,;)}\]"'\\]+))"""
_GIVEN: Final = rf"""\\*["']?[ \t]*[=:][ \t]*{_VALUE}"""
_ARGUMENT: Final = rf"""(?:\\*["']?[ \t]*[=:]|(?:(?<=-api-key)|(?<=-keyfile-password))["']?[ \t,])[ \t]*{_VALUE}"""
_TOLD: Final = r"""[ \t]+(?:is|provided)[ \t]*:?[ \t]*["'`]?(?P<value>[a-z0-9._~+/=-]{8,})"""


def _is_value(value: str, _: str) -> bool:
    return (
        value not in {"None", "null", "True", "False"} and not value.startswith(REDACTED[:-1]) and not value.isdigit()
    )


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
        ("basic", r"basic[ \t]+(?P<value>[a-z0-9+/_-]{4,}={0,2})", _is_user),
    )
)
_TELLTALES: Final = tuple(dict.fromkeys(telltale for telltale, _, _ in _SHAPES))
_LOWER_BYTES: Final = bytes(range(256)).lower()
_IN_NO_TELLTALE: Final = bytes(
    {*range(128)} - {*"".join((*_TELLTALES, "\n")).encode()} - {*"".join(_TELLTALES).upper().encode()}
)
_LINE: Final = 32  # letters: of shorter lines it costs more to tell them apart than to search them
_LOWER: Final = {capital: capital + 32 for capital in range(ord("A"), ord("Z") + 1)}


class Lookalike(NamedTuple):
    """Where something stands that looks like a secret, and where that begins by which it is told."""

    told: int
    start: int
    end: int


def lookalikes(text: str) -> Iterator[Lookalike]:
    """All that looks like a secret. Most texts hold nothing of the kind."""
    if not (told := [*_told(text)]):
        return
    kinds = alike(text).split("\n")
    by_kind, line = _by_kind("\n".join(dict.fromkeys(kinds)), told), 0
    for kind in kinds if by_kind else ():
        for found, is_user in by_kind.get(kind, ()):
            start, end, before = line + found.start, line + found.end, max(line + found.told - _HEADER, 0)
            if not is_user or _is_user(text[start:end], text[before : line + found.told].lower()):
                yield Lookalike(before, start, end)
        line += len(kind) + 1


def _by_kind(kinds: str, told: Sequence[str]) -> dict[str, list[tuple[Lookalike, bool]]]:
    """What stands in the lines of each kind, and whether it is only one where it names a user.

    No shape goes beyond its line, and none but a user asks for certain digits.
    """
    by_kind: dict[str, list[tuple[Lookalike, bool]]] = {}
    lower = _lowered(kinds)
    for telltale, shape, is_secret in _SHAPES:
        for match in shape.finditer(lower) if telltale in told else ():
            start, end = match.span("value")
            is_user = is_secret is _is_user
            if is_user or is_secret(kinds[start:end], ""):
                line, ends = kinds.rfind("\n", 0, start) + 1, kinds.find("\n", end)
                found = Lookalike(match.start() - line, start - line, end - line)
                by_kind.setdefault(kinds[line : ends if ends >= 0 else len(kinds)], []).append((found, is_user))
    return by_kind


def _lowered(text: str) -> str:
    """`text` in lower case, each letter where it was."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_LOWER)  # a letter that became two


def _told(text: str) -> Iterator[str]:
    """The telltales that stand in it, in any case; told without the characters that stand in none, a line once."""
    letters = text.encode("utf-8", "surrogatepass").translate(_LOWER_BYTES, _IN_NO_TELLTALE)
    lines = letters.split(b"\n", len(letters) // _LINE)
    different = letters if len(lines) > len(letters) // _LINE else b"\n".join(set(lines))
    return (telltale for telltale in _TELLTALES if telltale.encode() in different)
