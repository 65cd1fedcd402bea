"""What an endpoint says of itself, and the few control requests a measurement needs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from orchestrator.bench.api import COMPLETIONS, PATHS
from orchestrator.bench.connection import Address, Connections, UnreachableError
from orchestrator.bench.counters import read_metrics
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError
from orchestrator.results.result import EndpointFacts

_SPECULATIVE: Final = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A reachable endpoint, its connections, and what it said."""

    connections: Connections
    facts: EndpointFacts
    reports_cache: bool  # answers carry `cached_tokens`
    has_metrics: bool

    @property
    def is_sglang(self) -> bool:
        """Whether sglang's own endpoints (flush, replicas) are there."""
        return self.facts.engine == "sglang"

    def request(self, body: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """A whole request from a body's pieces."""
        path = PATHS[self.facts.api]
        return (self.connections.head("POST", path, sum(map(len, body))), *body)

    async def metrics(self) -> dict[str, float] | None:
        """The server's counters now; None where it has none or does not answer."""
        if not self.has_metrics:
            return None
        try:
            status, content = await self.connections.fetch("GET", "/metrics")
        except UnreachableError:
            return None
        return read_metrics(content.decode(errors="replace")) if status == 200 else None

    async def flush_cache(self) -> bool:
        """Empty the prefix caches, so that a repeated run does not find its own prompts there."""
        if not self.is_sglang:
            return False
        try:
            status, _ = await self.connections.fetch("POST", "/flush_cache")
        except UnreachableError:
            return False
        return status == 200


async def probe(connections: Connections, address: Address, *, api: str = COMPLETIONS) -> Endpoint:
    """Ask the endpoint what it is. Raises BenchError where it does not answer or refuses."""
    models = await _ask(connections, address, "/v1/models")
    try:
        model = models["data"][0]
        served, context = str(model["id"]), model.get("max_model_len")
    except (KeyError, IndexError, TypeError) as error:
        raise BenchError("the endpoint names no model under /v1/models", where=address.url) from error
    facts = EndpointFacts(url=address.url, api=api, served_model=served, context_length=context)
    info = await _optional(connections, "/server_info")
    metrics, _ = await _status(connections, "/metrics")
    if "version" not in info or "page_size" not in info:
        return Endpoint(connections=connections, facts=facts, reports_cache=False, has_metrics=metrics == 200)
    # /server_info holds the server's keys in clear: only what is named here is taken from it
    facts = replace(
        facts,
        engine="sglang",
        engine_version=str(info["version"]),
        replicas=int(info.get("dp_size") or 1),
        page_size=info["page_size"],
        speculative=_speculative(info),
    )
    return Endpoint(
        connections=connections,
        facts=facts,
        reports_cache=bool(info.get("enable_cache_report")),
        has_metrics=metrics == 200,
    )


def check_fits(workload: Workload, facts: EndpointFacts) -> None:
    """Raise BenchError where the model's context is too short for the workload."""
    needed = workload.input_tokens + workload.output_tokens
    if facts.context_length is not None and needed > facts.context_length:
        raise BenchError(
            f"`{facts.served_model}` has a context of {facts.context_length} tokens, the workload needs {needed}",
            where=facts.url,
            hint="choose a workload that fits, or serve with a longer --context-length",
        )


async def _ask(connections: Connections, address: Address, path: str) -> dict[str, Any]:  # JSON of any shape
    try:
        status, content = await connections.fetch("GET", path)
    except UnreachableError as error:
        raise BenchError(
            f"the endpoint does not answer: {error}", where=address.url, hint="is it up? try `deploy status`"
        ) from error
    if status in {401, 403}:
        hint = "name the variable that holds its key with --api-key-env"
        raise BenchError("the endpoint wants an API key", where=address.url, hint=hint)
    if status != 200:
        raise BenchError(f"GET {path} gives status {status}", where=address.url)
    return _json(content)


async def _optional(connections: Connections, path: str) -> dict[str, Any]:  # JSON of any shape
    status, content = await _status(connections, path)
    return _json(content) if status == 200 else {}


async def _status(connections: Connections, path: str) -> tuple[int, bytes]:
    try:
        return await connections.fetch("GET", path)
    except UnreachableError:
        return 0, b""


def _json(content: bytes) -> dict[str, Any]:  # JSON of any shape
    try:
        data = json.loads(content)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _speculative(info: Mapping[str, Any]) -> str | None:
    if not info.get("speculative_algorithm"):
        return None
    return " ".join(str(info.get(f"speculative_{name}")) for name in _SPECULATIVE)
