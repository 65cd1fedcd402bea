"""Secrets: a type whose text is `[REDACTED]`, and the redaction of everything we show or store."""

import re
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "[REDACTED]"

# sglang prints its arguments as a dataclass repr at start and as JSON in /server_info, keys in clear
# (0.5.14: entrypoints/http_server.py, `server_args=ServerArgs(`).
_KEY_VALUE = re.compile(
    r"""(?P<key>["']?\b(?:admin_|ssl_)?(?:api[-_]key|keyfile_password|hf_token|auth_token)["']?\s*[=:]\s*|--(?:admin-)?api-key[=\s]+)"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;)}\]"']+)""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{6,}")
_HF_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")

# A word of a name that says the value is a secret. `TOKEN` and the like also end a word that runs together (`HFTOKEN`);
# what only begins so is another word (`TOKENIZERS_PARALLELISM`), and so is the plural that is counted (`MAX_TOKENS`).
_SECRET_WORD: Final = re.compile(
    r"\w*(TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEYS?|ACCESSKEY|PRIVATEKEY|SECRETKEY)\Z"
)
_SECRET_KEY: Final = re.compile(r"(^|_)(API|ACCESS|PRIVATE|SECRET|AUTH|SIGNING|ENCRYPTION)_KEYS?(_|\Z)")


class Secret:
    """A value that is used and never shown; `reveal` is the only way to it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Keep `value`."""
        self._value = value

    def reveal(self) -> str:
        """The value, for the one place that hands it to the engine."""
        return self._value

    def __repr__(self) -> str:
        return REDACTED

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._value)


def names_secret(name: str) -> bool:
    """Whether a word of a variable's name says that it holds one: `HF_TOKEN`, `hfToken`, `AWS_SECRET_ACCESS_KEY`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return any(_SECRET_WORD.match(word) for word in words.split("_")) or _SECRET_KEY.search(words) is not None


def redact(text: str, secrets: Iterable[Secret] = ()) -> str:
    """`text` with every known secret, and everything that looks like one, replaced by `[REDACTED]`."""
    for secret in secrets:
        if secret:
            text = text.replace(secret.reveal(), REDACTED)
    text = _KEY_VALUE.sub(_redact_pair, text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _HF_TOKEN.sub(REDACTED, text)


def _redact_pair(match: re.Match[str]) -> str:
    value = match["value"]
    if value in {"None", "null", "''", '""', "True", "False", REDACTED} or value.isdigit():
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{match['key']}{quote}{REDACTED}{quote}"
