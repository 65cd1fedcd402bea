"""`deploy ask`: one completion, streamed from a running server."""

from collections.abc import Iterator
from typing import Final

from orchestrator.core.errors import StartError
from orchestrator.core.secrets import Secret
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient, Timeouts
from orchestrator.engine.requests import completion_body
from orchestrator.engine.responses import (
    NoResponseError,
    UnauthorizedError,
    UnexpectedResponseError,
    read_completion_event,
)

# The first request after a start may compile kernels; a long answer takes minutes.
_LIMITS: Final = Timeouts(connect=5, idle=300, total=3600)


def ask(url: str, prompt: str, *, tokens: int, key: Secret | None, model: str = "default") -> Iterator[str]:
    """Stream a greedy completion of at most `tokens` tokens, piece by piece.

    sglang accepts any `model` name; its gateway accepts only the name of a worker's model.

    Raises StartError if there is no response, or if it is truncated, empty or too long.
    """
    body = completion_body(model, prompt, tokens=tokens)
    try:
        with EngineClient(url, key=key, limits=_LIMITS) as server:
            yield from _pieces(server.events(endpoints.COMPLETIONS, body), tokens=tokens)
    except (NoResponseError, UnexpectedResponseError) as error:
        hint = "`deploy status --health` requests a token from every server"
        if isinstance(error, UnauthorizedError) and key is None:
            hint = "another server listens at this address: this server was started without a key"
        elif isinstance(error, UnauthorizedError):
            hint = "export the API key with which the server was started; the variable has another value in this shell"
        raise StartError(f"no complete response from {url}: {error}", hint=hint) from error


def _pieces(events: Iterator[bytes], *, tokens: int) -> Iterator[str]:
    pieces, finish_reason = 0, None
    for text, reason in map(read_completion_event, events):
        finish_reason = reason or finish_reason
        pieces += bool(text)
        if pieces > tokens:
            raise UnexpectedResponseError(f"the response continues after {tokens} tokens")
        if text:
            yield text
    if finish_reason is None:
        raise UnexpectedResponseError("the response has no finish reason")
    if not pieces:
        raise UnexpectedResponseError("the response has no text")
