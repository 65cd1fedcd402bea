"""Secrets: values that are used and never shown, and the filter for every text that is shown or stored.

Two kinds are replaced by `[REDACTED]`. A known secret is found in each spelling in which programs write one: plain,
base64 at its three alignments and in both alphabets, hexadecimal, percent-encoded, as JSON, as `repr`, and each of
these within JSON, in a `repr` of which it may stand. An unknown one is found by what stands around it: `api_key=...`,
`Bearer ...`, `hf_...`, the password of a URL.

A secret that is broken by line ends or colors, or escaped in part, is not found. The filter is the second line of
defense: the first is that servers get their keys through files that only they read.
"""

import base64
import json
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, Self

REDACTED: Final = "[REDACTED]"
MIN_LENGTH: Final = 4  # characters; a shorter value stands in too many words to be replaced
SAFE_LENGTH: Final = 8  # characters; a shorter secret may be a word, and is replaced only as a whole word
MAX_SPELLING: Final = 4096  # characters of the longest spelling: what is read beyond the end of an excerpt
HUB_TOKEN: Final = "HF_TOKEN"  # noqa: S105 - the name of a variable
HUB_TOKENS: Final = (HUB_TOKEN, "HUGGING_FACE_HUB_TOKEN")  # huggingface_hub reads both; no child inherits them

Span = tuple[int, int]

# A word of a name that says the value is a secret. `TOKEN` and the like also end a word that runs together (`HFTOKEN`);
# what only begins so is another word (`TOKENIZERS_PARALLELISM`), and so is the plural that is counted (`MAX_TOKENS`).
_SECRET_WORD: Final = re.compile(
    r"\w*(TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEYS?|ACCESSKEY|PRIVATEKEY|SECRETKEY)\Z"
)
_SECRET_KEY: Final = re.compile(r"(^|_)(API|ACCESS|PRIVATE|SECRET|AUTH|SIGNING|ENCRYPTION)_KEYS?(_|\Z)")

# `name=value`, `"name": "value"` and `--name value`; a quote may be escaped itself, in JSON within JSON. sglang prints
# its arguments as a dataclass repr at start and as JSON in /server_info, keys in clear (0.5.14, http_server.py:
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
# A literal that stands in each match, for speed, and the shape itself; both are searched in lower case.
_SHAPES: Final = tuple(
    (literal, re.compile(shape))
    for literal, shape in (
        *((end, f"{end}(?:{'|'.join(f'(?<={name})' for name in names)}){_ASSIGNED}") for end, names in _NAMES.items()),
        ("hf_", r"(?P<value>hf_[a-z0-9]{16,})"),
        ("bearer", r"bearer[ \t]+(?P<value>[a-z0-9._~+/=-]{6,})"),
        ("basic", r"""authorization\\*["']?\s*:\s*\\*["']?basic[ \t]+(?P<value>[a-z0-9+/_-]{4,}={0,2})"""),
        # RFC 3986, 3.2.1, slashes escaped or not. Behind a port comes no `@` but that of an image's digest.
        ("@", r""":(?:\\*/){2}[^\s/@:"<>]*:(?P<value>[^\s/?#"<>]+)@(?!sha\d{3}:)"""),
    )
)
_NO_SECRET: Final = re.compile(r"(?:none|null|true|false|\*+|\[redacted.*)\Z", re.DOTALL)
_ALPHANUMERIC: Final = re.compile(r"[A-Za-z0-9]")

_known: Final[dict[str, tuple[str, ...]]] = {}  # each secret, and its spellings


class Secret:
    """A value that is used and never shown; `reveal` is the only way to it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Keep `value`, and take it out of every text that is shown or stored from now on."""
        register(value)
        self._value = value

    @classmethod
    def around(cls, text: str) -> Self:
        """Wrap a text that holds secrets: it is not shown either, but is no secret to search for."""
        secret = cls("")
        secret._value = text
        return secret

    def reveal(self) -> str:
        """Return the value, for the one place that hands it to the engine."""
        return self._value

    def __repr__(self) -> str:
        return REDACTED

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._value)


def register(value: str) -> None:
    """Take this secret out of every text from now on."""
    if len(value) >= MIN_LENGTH and value not in _known:
        _known[value] = tuple(_spellings(value)) if len(value) >= SAFE_LENGTH else (value,)


def set_known(values: Iterable[str]) -> None:
    """Know these secrets, and no others."""
    _known.clear()
    for value in values:
        register(value)


def known() -> tuple[str, ...]:
    """Return every known secret, for another process that has to redact as well."""
    return tuple(sorted(_known))


def is_known(value: str) -> bool:
    """Return whether this is a known secret."""
    return value in _known


def hub_token(environ: Mapping[str, str] = os.environ) -> Secret | None:
    """Return the user's token for the hub, without the line end of a file that it was read from."""
    token = environ.get(HUB_TOKEN, "").strip()
    return Secret(token) if token else None


def register_env_secret(name: str | None) -> None:
    """Know the secret in a variable of this shell, if there is such a variable."""
    if name is not None:
        register(os.environ.get(name, "").strip())


def secret_variables(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the variables that hold a secret, by their name or their value: a server inherits none of them."""
    return frozenset(name for name, value in environ.items() if is_secret_name(name) or is_known(value.strip()))


def is_secret_name(name: str) -> bool:
    """Return whether a word of a variable's name says secret: `HF_TOKEN`, `hfToken`, `AWS_SECRET_ACCESS_KEY`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return any(_SECRET_WORD.match(word) for word in words.split("_")) or _SECRET_KEY.search(words) is not None


def redact(text: str) -> str:
    """Return `text` with `[REDACTED]` for every known secret and everything that looks like one."""
    return _replaced(text, _spans(text))


def redact_known(text: str) -> str:
    """Return `text` without the known secrets only: for our own text, in which nothing looks like one."""
    return _replaced(text, _merged(_known_spans(text)))


def redact_data(data: object) -> object:
    """Return JSON-able data with each text in it redacted; a member of an Enum is our own word, and read again."""
    if isinstance(data, Enum):
        return data
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, Mapping):
        return {key: redact_data(value) for key, value in data.items()}
    return [redact_data(each) for each in data] if isinstance(data, list | tuple) else data


def excerpt(text: str | bytes, most: int) -> str:
    """Return the first `most` characters of `text`, redacted before they are cut, so that no secret is cut in two."""
    text = text[: most + MAX_SPELLING]
    return redact(text.decode(errors="replace") if isinstance(text, bytes) else text)[:most]


def looks_secret(text: str) -> bool:
    """Return whether something in `text` looks like a secret, known or not."""
    return next(_shape_spans(text), None) is not None


class StreamRedactor:
    """Redact text that comes in pieces: hold back an end that may be the beginning of a known secret."""

    def __init__(self) -> None:
        """Begin with nothing held back."""
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the text that may be shown by now."""
        text = self._held + piece
        spans = _spans(text)
        cut = _partial_start(text)
        cut = next((start for start, end in spans if start < cut < end), cut)
        self._held = text[cut:]
        return _replaced(text[:cut], [span for span in spans if span[1] <= cut])

    def close(self) -> str:
        """Return the rest of a stream that has ended."""
        rest, self._held = self._held, ""
        return redact(rest)


def _spellings(value: str) -> set[str]:
    data, text = os.fsencode(value), json.dumps(value)[1:-1]
    found = {value, text, text.replace("/", "\\/"), repr(value)[1:-1], data.hex(), data.hex().upper()}
    found |= {urllib.parse.quote(data), urllib.parse.quote(data, safe=""), urllib.parse.quote_plus(data)}
    for escape in ("%{:02x}", "%{:02X}", "\\x{:02x}", "\\u{:04x}"):
        found.add("".join(map(escape.format, data)))
    for before in range(3):  # bytes of another text in the same group of three
        encoded = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        own = encoded[(0, 2, 3)[before] : len(encoded) - ((before + len(data)) % 3 > 0)]  # not shared with a neighbor
        found |= {own, own.translate(str.maketrans("+/", "-_"))}
    found |= {json.dumps(spelling, ensure_ascii=False)[1:-1] for spelling in found}
    return found | {spelling.replace("\\", "\\\\") for spelling in found}


def _all_spellings() -> list[str]:
    return [spelling for spellings in tuple(_known.values()) for spelling in spellings]


def _spans(text: str) -> list[Span]:
    return _merged((*_known_spans(text), *_shape_spans(text)))


def _known_spans(text: str) -> Iterator[Span]:
    for spelling in _all_spellings():
        start = text.find(spelling)
        while start >= 0:
            end = start + len(spelling)
            beside = text[max(start - 1, 0) : start] + text[end : end + 1]
            if len(spelling) >= SAFE_LENGTH or not _ALPHANUMERIC.search(beside):
                yield start, end
            start = text.find(spelling, start + 1)


def _shape_spans(text: str) -> Iterator[Span]:
    lower = text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")  # each letter stays in place
    for literal, shape in _SHAPES:
        for found in shape.finditer(lower) if literal in lower else ():
            start, end = found.span("value")
            is_number = literal != "@" and lower[start:end].isdigit()
            if not (is_number or _NO_SECRET.match(lower, start, end)):
                yield start, end


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Order spans, those that overlap as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _replaced(text: str, spans: Sequence[Span]) -> str:
    pieces, at = [], 0
    for start, end in spans:
        pieces += [text[at:start], REDACTED]
        at = end
    return "".join([*pieces, text[at:]])


def _partial_start(text: str) -> int:
    """Return where the end of `text` begins that may be the beginning of a known secret; its length for none."""
    spellings = _all_spellings()
    longest = max(map(len, spellings), default=0)
    starts = range(max(len(text) - longest, 0), len(text))
    return next((at for at in starts if any(each.startswith(text[at:]) for each in spellings)), len(text))
