"""Paths of sglang's HTTP API, and the header with the API key (0.5.14, entrypoints/http_server.py).

If a server has an API key, every path except health and metrics answers 401 without it (srt/utils/auth.py).
"""

from typing import Final

from orchestrator.core.errors import UsageError
from orchestrator.core.secrets import MIN_LENGTH, Secret
from orchestrator.engine import liveness

HEALTH: Final = liveness.HEALTH
METRICS: Final = liveness.METRICS
GENERATE: Final = liveness.GENERATE
MODELS: Final = "/v1/models"
MODEL_INFO: Final = "/model_info"
SERVER_INFO: Final = "/server_info"  # contains the server's keys in clear text: never show or store it whole
FLUSH_CACHE: Final = "/flush_cache"
VERSION: Final = "/version"  # vLLM
TOKENIZE: Final = "/tokenize"  # 0.5.10 to 0.5.23; the same format in vLLM
COMPLETIONS: Final = "/v1/completions"
CHAT_COMPLETIONS: Final = "/v1/chat/completions"


def authorization(key: Secret | None) -> dict[str, str]:
    """Return the header with the API key; empty without a key."""
    return {"Authorization": f"Bearer {key.reveal()}"} if key else {}


def read_key(value: str, *, location: str) -> Secret:
    """Return the API key in `value`, without a trailing line end.

    Raises UsageError if an HTTP header or sglang's `--config` file cannot carry the key, or if the key is too short.
    The message names `location`, the key's variable, but never the key.
    """
    key = value.rstrip("\r\n")
    if len(key) < MIN_LENGTH or key != key.strip() or key.startswith("-") or not (key.isascii() and key.isprintable()):
        raise UsageError(
            f"cannot use the API key in `{location}`: it needs at least {MIN_LENGTH} printable ASCII characters, no "
            "blank at either end and no `-` at the beginning",
            hint=f"`export {location}=$(openssl rand -hex 16)`",
        )
    return Secret(key)
