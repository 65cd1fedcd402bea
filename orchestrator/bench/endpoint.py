"""What an endpoint says of itself, and the few control requests a measurement needs."""

import json
from dataclasses import dataclass, replace

from orchestrator.bench.connection import Connections
from orchestrator.bench.result import EndpointFacts
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError
from orchestrator.core.url import Address
from orchestrator.engine import endpoints
from orchestrator.engine.liveness import MOST_METRICS_BYTES
from orchestrator.engine.metrics import Metrics, read_metrics
from orchestrator.engine.options import Meaning
from orchestrator.engine.requests import Api, tokenize_body
from orchestrator.engine.responses import (
    Json,
    NoResponseError,
    ServerInfo,
    UnexpectedResponseError,
    read_models,
    read_object,
    read_server_info,
    read_token_ids,
)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A reachable endpoint, its connections, and what it said."""

    connections: Connections
    facts: EndpointFacts
    reports_cache: bool  # answers carry `cached_tokens`
    has_metrics: bool
    behind: tuple[Connections, ...] = ()  # to the servers behind it, where it is their gateway: they count and cache

    @property
    def _servers(self) -> tuple[Connections, ...]:
        return self.behind or (self.connections,)

    @property
    def is_sglang(self) -> bool:
        """Whether sglang's own endpoints (flush, replicas) are there."""
        return self.facts.engine == "sglang"

    def request(self, body: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """A whole request from a body's pieces."""
        path = Api(self.facts.api).path
        return (self.connections.head("POST", path, sum(map(len, body))), *body)

    async def metrics(self) -> Metrics | None:
        """The counters now, of several servers their sums; None where one has none or does not answer."""
        if not self.has_metrics:
            return None
        read = bytearray()
        for server in self._servers:
            try:
                status, content = await server.fetch("GET", endpoints.METRICS, most=MOST_METRICS_BYTES)
            except NoResponseError:
                return None
            if status != 200:
                return None
            read += content + b"\n"
        return read_metrics(read)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """The token ids of a text by the model's own tokenizer. Raises BenchError where the endpoint does not say."""
        body = json.dumps(tokenize_body(self.facts.served_model, text)).encode()
        hint = "`prompts: random` in the workload, with `token_ids`, needs no tokenizer"
        try:
            status, content = await self._servers[0].fetch("POST", endpoints.TOKENIZE, content=body)
            if status != 200:
                raise BenchError(f"POST {endpoints.TOKENIZE} gives status {status}", where=self.facts.url, hint=hint)
            return read_token_ids(content)
        except (NoResponseError, UnexpectedResponseError) as error:
            message = f"the endpoint does not say which tokens a text has: {error}"
            raise BenchError(message, where=self.facts.url, hint=hint) from error

    async def flush_cache(self) -> bool:
        """Empty the prefix caches, so that a repeated run does not find its own prompts there."""
        if not self.is_sglang:
            return False
        try:
            answers = [await server.fetch("POST", endpoints.FLUSH_CACHE) for server in self._servers]
        except NoResponseError:
            return False
        return all(status == 200 for status, _ in answers)


async def discover(
    connections: Connections,
    address: Address,
    *,
    api: str = Api.COMPLETIONS,
    behind: tuple[Connections, ...] = (),
) -> Endpoint:
    """Ask the endpoint what it is. Raises BenchError where it does not answer, refuses, or answers in another form.

    A gateway says little of the servers `behind` it: the first of them, which is as the others, is asked as well.
    """
    server = behind[0] if behind else connections
    try:
        await _ask(connections, address, endpoints.MODELS)
        models = read_models(await _ask(server, address, endpoints.MODELS))
        info = await _server_info(server, address)
    except UnexpectedResponseError as error:
        raise BenchError(f"the endpoint does not say what it serves: {error}", where=address.url) from error
    if not models:
        raise BenchError(f"the endpoint names no model under `{endpoints.MODELS}`", where=address.url)
    served, context = next(iter(models.items()))
    facts = EndpointFacts(url=address.url, api=api, served_model=served, context_length=context)
    metrics = await _exports_metrics(server)
    if info is None:
        return Endpoint(connections=connections, facts=facts, reports_cache=False, has_metrics=metrics, behind=behind)
    facts = replace(
        facts,
        engine="sglang",
        engine_version=info.version,
        replicas=info.replicas,
        page_size=info.page_size,
        speculative=info.speculative,
    )
    return Endpoint(
        connections=connections,
        facts=facts,
        reports_cache=info.reports_cache,
        has_metrics=metrics,
        behind=behind,
    )


def check_fits(workload: Workload, facts: EndpointFacts) -> None:
    """Raise BenchError where the model's context is too short for the workload."""
    needed = workload.input_tokens + workload.output_tokens
    if facts.context_length is not None and needed > facts.context_length:
        raise BenchError(
            f"`{facts.served_model}` has a context of {facts.context_length} tokens, the workload needs {needed}",
            where=facts.url,
            hint=f"choose a workload that fits, or serve with a longer --{Meaning.CONTEXT}",
        )


async def _ask(connections: Connections, address: Address, path: str) -> Json:
    status, content = await _fetch(connections, address, path)
    if status in {401, 403}:
        if connections.has_key:
            what, hint = "the endpoint refused this API key", "is it the key that the server was started with?"
        else:
            what, hint = "the endpoint wants an API key", "name the variable that holds its key with --api-key-env"
        raise BenchError(what, where=address.url, hint=hint)
    if status != 200:
        raise BenchError(f"GET {path} gives status {status}", where=address.url)
    return read_object(content, path=path)


async def _server_info(connections: Connections, address: Address) -> ServerInfo | None:
    """What only sglang says of itself; None for another engine, which may answer anything there."""
    status, content = await _fetch(connections, address, endpoints.SERVER_INFO)
    try:
        data = read_object(content, path=endpoints.SERVER_INFO) if status == 200 else {}
    except UnexpectedResponseError:
        return None
    return read_server_info(data)


async def _fetch(connections: Connections, address: Address, path: str) -> tuple[int, bytearray]:
    try:
        return await connections.fetch("GET", path)
    except NoResponseError as error:
        raise BenchError(
            f"the endpoint does not answer: {error}", where=address.url, hint="is it up? try `deploy status`"
        ) from error


async def _exports_metrics(connections: Connections) -> bool:
    try:
        status, _ = await connections.fetch("GET", endpoints.METRICS, most=MOST_METRICS_BYTES)
    except NoResponseError:
        return False
    return status == 200
