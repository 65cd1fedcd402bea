"""Secrets: a type whose text is `[REDACTED]`. Whoever makes one makes it known to all that shows or stores a text."""

import os
import re
from collections.abc import Mapping
from typing import Final, Self

from orchestrator.core.known_secrets import is_known, remember
from orchestrator.core.lookalikes import REDACTED

HUB_TOKEN: Final = "HF_TOKEN"  # noqa: S105 - the name of a variable
HUB_TOKENS: Final = (HUB_TOKEN, "HUGGING_FACE_HUB_TOKEN")  # huggingface_hub reads both; no child has them by itself

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
        """Keep `value`, and take it out of whatever is shown or stored from now on."""
        remember(value)
        self._value = value

    @classmethod
    def around(cls, text: str) -> Self:
        """A text, never shown either, that holds secrets of which each is known by itself."""
        secret = cls("")
        secret._value = text
        return secret

    def reveal(self) -> str:
        """The value, for the one place that hands it to the engine."""
        return self._value

    def __repr__(self) -> str:
        return REDACTED

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._value)


def hub_token(environ: Mapping[str, str] = os.environ) -> Secret | None:
    """Return the user's token for the hub, without the line end of a file that it was read from."""
    token = environ.get(HUB_TOKEN, "").strip()
    return Secret(token) if token else None


def secret_variables(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the variables that hold a secret, by their name or their value: a server inherits none of them."""
    return frozenset(name for name, value in environ.items() if names_secret(name) or is_known(value.strip()))


def know_variable(name: str | None) -> None:
    """Know the secret that a variable of this shell holds, where there is such a variable."""
    if name is not None:
        Secret(os.environ.get(name, "").strip())


def names_secret(name: str) -> bool:
    """Whether a word of a variable's name says that it holds one: `HF_TOKEN`, `hfToken`, `AWS_SECRET_ACCESS_KEY`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return any(_SECRET_WORD.match(word) for word in words.split("_")) or _SECRET_KEY.search(words) is not None
