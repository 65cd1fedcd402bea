"""`deploy ask`: one streamed answer of a running server."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from orchestrator.core.errors import StartError
from orchestrator.core.secret import Secret

_SECONDS = 300.0  # the first request after a start may compile kernels


def ask(url: str, prompt: str, *, tokens: int, key: Secret | None) -> Iterator[str]:
    """The pieces of a greedy completion of at most `tokens` tokens, as they arrive. Raises StartError for no answer."""
    headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
    body = {"model": "default", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    try:
        with (
            httpx.Client(headers=headers, timeout=_SECONDS, trust_env=False) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            if response.is_error:
                raise StartError(
                    f"the server answered {response.status_code}",
                    details=response.read().decode(errors="replace")[:500],
                )
            yield from map(_piece, filter(_is_chunk, response.iter_lines()))
    except (httpx.HTTPError, ValueError) as error:  # ValueError: a piece that is not JSON
        raise StartError(
            f"no whole answer from {url}: {error}", hint="`deploy status NAME` asks for its health"
        ) from error


def _is_chunk(line: str) -> bool:
    return line.startswith("data: ") and line != "data: [DONE]"


def _piece(line: str) -> str:
    chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return "".join(str(choice.get("text", "")) for choice in chunk.get("choices", ()))
