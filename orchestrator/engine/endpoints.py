"""The paths of sglang's HTTP API, and the header that opens them (0.5.14, entrypoints/http_server.py).

With an API key every path but health and metrics wants it, and answers 401 without (srt/utils/auth.py).
"""

from typing import Final

from orchestrator.core.errors import UsageError
from orchestrator.core.secrets import MIN_LENGTH, Secret
from orchestrator.engine.liveness import GENERATE, HEALTH, METRICS

MODELS: Final = "/v1/models"
MODEL_INFO: Final = "/model_info"
SERVER_INFO: Final = "/server_info"  # holds the server's keys in clear: never show or store it whole
FLUSH_CACHE: Final = "/flush_cache"
TOKENIZE: Final = "/tokenize"  # 0.5.10 to 0.5.23; vLLM's has the same form
COMPLETIONS: Final = "/v1/completions"
CHAT_COMPLETIONS: Final = "/v1/chat/completions"

__all__ = [
    "CHAT_COMPLETIONS",
    "COMPLETIONS",
    "FLUSH_CACHE",
    "GENERATE",
    "HEALTH",
    "METRICS",
    "MODELS",
    "MODEL_INFO",
    "SERVER_INFO",
    "TOKENIZE",
    "authorization",
    "read_key",
]


def authorization(key: Secret | None) -> dict[str, str]:
    """The header that carries the API key; none without a key."""
    return {"Authorization": f"Bearer {key.reveal()}"} if key else {}


def read_key(value: str, *, where: str) -> Secret:
    """The API key in `value`, without the line end of a file that it was read from.

    Raises UsageError, which names `where` and not the key, for one that no header carries or no `--config` file.
    """
    key = value.rstrip("\r\n")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the API key in `{where}` holds a character that no HTTP header carries")
    if key != key.strip() or not key:
        raise UsageError(f"the API key in `{where}` begins or ends with a blank, which an HTTP header loses")
    if len(key) < MIN_LENGTH:
        raise UsageError(
            f"the API key in `{where}` has fewer than {MIN_LENGTH} characters: it can be guessed, and cannot be hidden",
            hint=f"`export {where}=$(openssl rand -hex 16)` makes one",
        )
    if key.startswith("-"):
        raise UsageError(f"the API key in `{where}` begins with `-`: sglang takes it for an option")
    return Secret(key)
