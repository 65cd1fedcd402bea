"""Secrets, which are never shown, and the redaction of every text that is shown or stored.

Two kinds of secrets are replaced by `[REDACTED]`. Known secrets are found in every spelling that programs use: plain,
base64 at its three alignments and in both alphabets, hexadecimal, percent-encoded, JSON, `repr`, and each of these
inside JSON or inside a `repr` of JSON. Unknown secrets are found by their context: `api_key=...`, `Bearer ...`,
`hf_...`, the password of a URL.

A secret that is interrupted by line ends or colors, or escaped only in part, is not found. Redaction is the second line
of defense; the first is that servers get their keys through files that only they read.
"""

import base64
import json
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain
from pathlib import PurePath
from typing import Final, Self

REDACTED: Final = "[REDACTED]"
MIN_LENGTH: Final = 4  # characters; a shorter value occurs in too many words to be replaced
SAFE_LENGTH: Final = 8  # characters; a shorter secret may be part of a word and is only replaced as a whole word
MAX_SPELLING: Final = 4096  # characters of the longest spelling, and the margin read past the end of an excerpt
HUB_TOKEN: Final = "HF_TOKEN"  # noqa: S105 - the name of a variable
HUB_TOKENS: Final = (HUB_TOKEN, "HUGGING_FACE_HUB_TOKEN")  # huggingface_hub reads both; children inherit neither

Span = tuple[int, int]

# A word in a variable name that marks its value as secret. `TOKEN` and the like also match at the end of a compound
# (`HFTOKEN`), but not at the beginning of another word (`TOKENIZERS_PARALLELISM`), nor as a count (`MAX_TOKENS`).
_SECRET_WORD: Final = re.compile(
    r"\w*(TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEYS?|ACCESSKEY|PRIVATEKEY|SECRETKEY)\Z"
)
_SECRET_KEY: Final = re.compile(r"(^|_)(API|ACCESS|PRIVATE|SECRET|AUTH|SIGNING|ENCRYPTION)_KEYS?(_|\Z)")

# `name=value`, `"name": "value"` and `--name value`; quotes may be escaped, as in JSON inside JSON. sglang prints its
# arguments as a dataclass repr at startup and as JSON in /server_info, with keys in clear text (0.5.14, http_server.py:
# `server_args=ServerArgs(`).
_ASSIGNED: Final = (
    r"""(?:\\*["']?[ \t]*[=:]|(?:(?<=-api-key)|(?<=-password))["']?[ \t,])[ \t]*(?P<quote>\\*["'])?"""
    r"""(?P<value>(?(quote)(?:[^\\"'\n]++|(?!(?P=quote))(?:\\.|.))++|[^\s,;)}\]"'\\]+))"""
)
_NAMES: Final = {
    "key": ("apikey", "api_key", "api-key", "access_key", "access-key", "secret_key", "secret-key"),
    "password": ("password",),
    "token": ("auth_token", "access_token", "hf_token"),
}
# A literal that every match contains, for speed, and the pattern itself; both are applied to lower-case text.
_SHAPES: Final = tuple(
    (literal, re.compile(shape))
    for literal, shape in (
        *((end, f"{end}(?:{'|'.join(f'(?<={name})' for name in names)}){_ASSIGNED}") for end, names in _NAMES.items()),
        ("hf_", r"(?P<value>hf_[a-z0-9]{16,})"),
        ("bearer", r"bearer[ \t]+(?P<value>[a-z0-9._~+/=-]{6,})"),
        ("basic", r"""authorization\\*["']?\s*:\s*\\*["']?basic[ \t]+(?P<value>[a-z0-9+/_-]{4,}={0,2})"""),
        # RFC 3986, 3.2.1; slashes may be escaped. An `@sha256:` after a port belongs to an image, not to a password.
        ("@", r""":(?:\\*/){2}[^\s/@:"<>]*:(?P<value>[^\s/?#"<>]+)@(?!sha\d{3}:)"""),
    )
)
_NO_SECRET: Final = re.compile(r"(?:none|null|true|false|\*+|\[redacted.*)\Z", re.DOTALL)
_ALPHANUMERIC: Final = re.compile(r"[A-Za-z0-9]")

_known: Final[dict[str, tuple[str, ...]]] = {}  # spellings by secret


class Secret:
    """A value that is never shown; only `reveal` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Store `value`, and register it for redaction in every text shown or stored from now on."""
        register(value)
        self._value = value

    @classmethod
    def around(cls, text: str) -> Self:
        """Wrap a text that contains secrets: the text is never shown, but is not registered for redaction."""
        secret = cls("")
        secret._value = text
        return secret

    def reveal(self) -> str:
        """Return the value, for the code that passes it on; never for output."""
        return self._value

    def __repr__(self) -> str:
        return REDACTED

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._value)


def register(value: str) -> None:
    """Redact this secret in every text from now on; values shorter than MIN_LENGTH are ignored."""
    if len(value) >= MIN_LENGTH and value not in _known:
        _known[value] = tuple(_spellings(value)) if len(value) >= SAFE_LENGTH else (value,)


def set_known(values: Iterable[str]) -> None:
    """Replace all known secrets by these."""
    _known.clear()
    for value in values:
        register(value)


def known() -> tuple[str, ...]:
    """Return every known secret, for another process that redacts too."""
    return tuple(sorted(_known))


def is_known(value: str) -> bool:
    """Return whether a value is a known secret."""
    return value in _known


def hub_token(environ: Mapping[str, str] = os.environ) -> Secret | None:
    """Return the user's token for the hub, without surrounding white space; None if it is unset."""
    token = environ.get(HUB_TOKEN, "").strip()
    return Secret(token) if token else None


def register_env_secret(name: str | None) -> None:
    """Register the secret in an environment variable, if the variable is set."""
    if name is not None:
        register(os.environ.get(name, "").strip())


def secret_variables(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the variables with a secret, judged by name or value: a server inherits none of them."""
    return frozenset(name for name, value in environ.items() if is_secret_name(name) or is_known(value.strip()))


def is_secret_name(name: str) -> bool:
    """Return whether a variable's name marks a secret: `HF_TOKEN`, `hfToken`, `AWS_SECRET_ACCESS_KEY`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return any(_SECRET_WORD.match(word) for word in words.split("_")) or _SECRET_KEY.search(words) is not None


def redact(text: str) -> str:
    """Return `text` with `[REDACTED]` in place of every known secret and everything that looks like a secret."""
    return _replaced(text, _secret_spans(text))


def redact_known(text: str) -> str:
    """Return `text` with only known secrets redacted: for the tool's own text, which contains no unknown secrets."""
    return _replaced(text, _known_spans(text))


def redact_data(data: object) -> object:
    """Return JSON-serializable data with every text value redacted; paths become texts.

    Members of an Enum stay unchanged: they are the tool's own words, and other code parses them.
    """
    if isinstance(data, Enum):
        return data
    if isinstance(data, str | PurePath):
        return redact(str(data))
    if isinstance(data, Mapping):
        return {key: redact_data(value) for key, value in data.items()}
    return [redact_data(item) for item in data] if isinstance(data, list | tuple) else data


def excerpt(text: str | bytes, max_characters: int) -> str:
    """Return the first `max_characters` of `text`, redacted before the cut, so that no secret is cut in two."""
    text = text[: max_characters + MAX_SPELLING]
    return redact(text.decode(errors="replace") if isinstance(text, bytes) else text)[:max_characters]


def looks_secret(text: str) -> bool:
    """Return whether something in `text` looks like a secret, known or not."""
    return next(_shape_spans(text), None) is not None


class StreamRedactor:
    """A redactor for text in chunks; it holds back the end of the text while that may begin a known secret."""

    def __init__(self) -> None:
        """Start with no text held back."""
        self._buffer = ""

    def feed(self, chunk: str) -> str:
        """Add a chunk; return the redacted text that may be shown now."""
        text = self._buffer + chunk
        cut = _partial_start(text)
        for start, end in sorted(_secret_spans(text), reverse=True):
            cut = start if start < cut < end else cut
        self._buffer = text[cut:]
        return redact(text[:cut])

    def close(self) -> str:
        """Return the redacted rest at the end of the stream."""
        rest, self._buffer = self._buffer, ""
        return redact(rest)


def _spellings(value: str) -> set[str]:
    data, text = os.fsencode(value), json.dumps(value)[1:-1]
    spellings = {value, text, text.replace("/", "\\/"), repr(value)[1:-1], data.hex(), data.hex().upper()}
    spellings |= {urllib.parse.quote(data), urllib.parse.quote(data, safe=""), urllib.parse.quote_plus(data)}
    for escape in ("%{:02x}", "%{:02X}", "\\x{:02x}", "\\u{:04x}"):
        spellings.add("".join(map(escape.format, data)))
    for before in range(3):  # preceding bytes in the same base64 group of three
        encoded = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        # Without the characters that also encode neighboring bytes.
        inner = encoded[(0, 2, 3)[before] : len(encoded) - ((before + len(data)) % 3 > 0)]
        spellings |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    spellings |= {json.dumps(spelling, ensure_ascii=False)[1:-1] for spelling in spellings}
    return spellings | {spelling.replace("\\", "\\\\") for spelling in spellings}


def _all_spellings() -> tuple[str, ...]:
    return tuple(chain.from_iterable(tuple(_known.values())))


def _secret_spans(text: str) -> Iterator[Span]:
    return chain(_known_spans(text), _shape_spans(text))


def _known_spans(text: str) -> Iterator[Span]:
    for spelling in _all_spellings():
        start = text.find(spelling)
        while start >= 0:
            end = start + len(spelling)
            neighbors = text[max(start - 1, 0) : start] + text[end : end + 1]
            if len(spelling) >= SAFE_LENGTH or not _ALPHANUMERIC.search(neighbors):
                yield start, end
            start = text.find(spelling, start + 1)


def _shape_spans(text: str) -> Iterator[Span]:
    # Only ASCII letters: `str.lower` may change the length of the text, and with it the spans.
    lower = text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
    for literal, shape in _SHAPES:
        for match in shape.finditer(lower) if literal in lower else ():
            start, end = match.span("value")
            is_number = literal != "@" and lower[start:end].isdigit()
            if not (is_number or _NO_SECRET.match(lower, start, end)):
                yield start, end


def _replaced(text: str, spans: Iterable[Span]) -> str:
    """Return `text` with each span replaced, and spans that overlap replaced together."""
    pieces, at = [], 0
    for start, end in sorted(spans):
        if start >= at:
            pieces += [text[at:start], REDACTED]
        at = max(at, end)
    return "".join([*pieces, text[at:]])


def _partial_start(text: str) -> int:
    """Return the index from which the rest of `text` may begin a known secret; the length of `text` if none does."""
    spellings = _all_spellings()
    longest = max(map(len, spellings), default=0)
    starts = range(max(len(text) - longest, 0), len(text))
    return next((at for at in starts if any(spelling.startswith(text[at:]) for spelling in spellings)), len(text))
