"""Discovery of an endpoint, and the control requests that a measurement needs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.bench.connection import Connections
from orchestrator.bench.result import EndpointFacts
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError
from orchestrator.core.url import Address
from orchestrator.engine import endpoints, other_engines
from orchestrator.engine.disaggregation import direct_request_problem
from orchestrator.engine.liveness import MAX_METRICS_BYTES, RANK_FIELD
from orchestrator.engine.metrics import Metrics, read_metrics
from orchestrator.engine.options import Meaning
from orchestrator.engine.requests import RETURN_IDS, Api, benchmark_body, completion_body, generate_body, tokenize_body
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
    """A reachable endpoint: its connections and the facts that it reports."""

    connections: Connections
    facts: EndpointFacts
    is_sglang: bool  # the endpoint has sglang's native API
    reports_cache: bool  # responses carry `cached_tokens`
    has_metrics: bool
    cache_tokens: int | None = None  # cache size on the device, per DP rank
    tier_tokens: int | None = None  # including host memory, per DP rank; None: unknown, or storage holds more
    prompt_tokens: int | None = None  # longest prompt that the server accepts
    replicas: tuple[Connections, ...] = ()  # connections to the replicas, if the endpoint is a gateway

    @property
    def _servers(self) -> tuple[Connections, ...]:
        return self.replicas or (self.connections,)

    @property
    def rank_field(self) -> str | None:
        """The field or header that pins a request to a data-parallel rank; None if the engine has none."""
        return RANK_FIELD if self.is_sglang else other_engines.RANK_HEADER.get(self.facts.engine)

    def request(
        self,
        prompt: Sequence[bytes],
        workload: Workload,
        *,
        tokens: int | None = None,
        rank: int | None = None,
        returns_ids: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[bytes, ...]:
        """Return a complete request for a prompt, as fragments; `rank` pins it to a data-parallel rank.

        `tokens` is the output length; by default, the workload's.
        """
        api = Api(self.facts.api)
        pinned = {RANK_FIELD: rank} if self.is_sglang and rank is not None else {}
        body = benchmark_body(
            api,
            prompt,
            model=self.facts.served_model,
            tokens=tokens or workload.output_tokens,
            temperature=workload.temperature,
            text=self.facts.prompts_as == "text",
            **pinned,
            **(RETURN_IDS if returns_ids and api is Api.COMPLETIONS else {}),
        )
        header = None if self.is_sglang or rank is None else self.rank_field
        headers = {**(headers or {}), **({header: str(rank)} if header else {})}
        return (self.connections.head("POST", api.path, sum(map(len, body)), headers), *body)

    async def generate_one(self, prompt: str | Sequence[int], *, timeout_s: float) -> tuple[int, bytearray]:
        """Request one token after a prompt; return status and body. Raises NoResponseError."""
        api, model = Api(self.facts.api), self.facts.served_model
        of_api = generate_body if api is Api.GENERATE else completion_body
        body = of_api(prompt=prompt, tokens=1, model=model)
        return await self.connections.fetch("POST", api.path, content=json.dumps(body).encode(), timeout_s=timeout_s)

    async def metrics(self) -> Metrics | None:
        """Read the current metrics, summed over replicas; None if a replica exports none or does not respond."""
        if not self.has_metrics:
            return None
        exported = bytearray()
        for server in self._servers:
            if (content := await _exported_metrics(server)) is None:
                return None
            exported += content + b"\n"
        return read_metrics(exported)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Tokenize a text with the model's tokenizer. Raises BenchError if the endpoint cannot tokenize."""
        body = json.dumps(tokenize_body(self.facts.served_model, text)).encode()
        hint = "use a workload with `prompts: random` and `token_ids`, which needs no tokenizer"
        try:
            status, content = await self._servers[0].fetch("POST", endpoints.TOKENIZE, content=body)
            if status != 200:
                raise BenchError(
                    f"POST {endpoints.TOKENIZE} returned HTTP {status}", location=self.facts.url, hint=hint
                )
            return read_token_ids(content)
        except (NoResponseError, UnexpectedResponseError) as error:
            message = f"cannot tokenize the prompt text: {error}"
            raise BenchError(message, location=self.facts.url, hint=hint) from error

    async def flush_cache(self) -> bool:
        """Flush the prefix caches, so that a repeated run gets no hits for its own prompts; return success."""
        if not self.is_sglang:
            return False
        try:
            responses = [await server.fetch("POST", endpoints.FLUSH_CACHE) for server in self._servers]
        except NoResponseError:
            return False
        return all(status == 200 for status, _ in responses)


async def discover(
    connections: Connections,
    address: Address,
    *,
    api: str = Api.COMPLETIONS,
    engine: str | None = None,
    replicas: tuple[Connections, ...] = (),
) -> Endpoint:
    """Query the facts of an endpoint. Raises BenchError if it is unreachable, rejects the key or lacks the API.

    `engine` is the engine named by the user; None: detect it. A gateway reports little about its replicas, so the first
    replica is queried too; all replicas have the same plan.
    """
    server = replicas[0] if replicas else connections
    try:
        await _get_json(connections, address, endpoints.MODELS)
        document = await _get_json(server, address, endpoints.MODELS)
        models = read_models(document)
        engine = engine or other_engines.read_engine(document)
        info = await _server_info(server, address)
    except UnexpectedResponseError as error:
        hint = "pass the URL of a server with an OpenAI-compatible API"
        raise BenchError(f"cannot discover the endpoint: {error}", location=address.url, hint=hint) from error
    if info is not None and info.role and not replicas:
        problem, hint = direct_request_problem(info.role)
        raise BenchError(problem, location=address.url, hint=hint)
    if (chosen := other_engines.choose_model(models)) is None:
        hint = "pass the URL of a server that has loaded a model"
        raise BenchError(f"the endpoint lists no model under `{endpoints.MODELS}`", location=address.url, hint=hint)
    served, context = chosen
    facts = EndpointFacts(url=address.url, api=api, served_model=served, context_length=context, engine=engine)
    metrics = await _exported_metrics(server)
    if info is not None:
        facts = replace(
            facts,
            engine="sglang",
            engine_version=info.version,
            dp_ranks=info.dp_ranks,
            page_size=info.page_size,
            speculative=info.speculative,
        )
    elif engine == "vllm":
        facts = await _vllm_facts(server, facts, (metrics or b"").decode(errors="replace"))
    return Endpoint(
        connections=connections,
        facts=facts,
        is_sglang=info is not None,
        reports_cache=info is not None and info.reports_cache,
        has_metrics=metrics is not None,
        cache_tokens=info.cache_tokens if info else None,
        tier_tokens=info.tier_tokens if info else None,
        prompt_tokens=info.prompt_tokens if info else None,
        replicas=replicas,
    )


def check_fits(workload: Workload, endpoint: Endpoint, longest: tuple[int, int] | None = None) -> None:
    """Raise BenchError if the engine lacks the API, or a request is longer than the server accepts.

    `longest` is the longest prompt and the longest request in tokens, if they differ from the workload's.
    """
    facts = endpoint.facts
    if facts.api == Api.GENERATE and other_engines.is_other_engine(facts.engine):
        message = f"{facts.engine} has no `{endpoints.GENERATE}`, which is sglang's own API"
        raise BenchError(message, location=facts.url, hint="omit `--api generate`")
    prompt, request_tokens = longest or (workload.input_tokens, workload.input_tokens + workload.output_tokens)
    message_head, load = f"`{facts.served_model}` has a context of", "the workload needs"
    for has, needs, needed, limit, meaning in (
        (message_head, load, request_tokens, facts.context_length, Meaning.CONTEXT),
        ("the server has a KV cache of", load, request_tokens, endpoint.cache_tokens, Meaning.CACHE_TOKENS),
        ("prompts are limited to", "the workload has", prompt, endpoint.prompt_tokens, Meaning.CONTEXT),
    ):
        if limit is not None and needed > limit:
            option = other_engines.option_name(facts.engine, meaning)
            smaller = "leave longer requests out with `--max-context`" if longest else "choose a smaller workload"
            hint = smaller + (f", or increase `--{option}` of the server" if option else "")
            raise BenchError(f"{has} {limit} tokens; {needs} {needed}", location=facts.url, hint=hint)


async def _get_json(connections: Connections, address: Address, path: str) -> Json:
    status, content = await _fetch(connections, address, path)
    if status in {401, 403}:
        if connections.has_key:
            message, hint = "the endpoint rejected the API key", "use the key that the server was started with"
        else:
            message, hint = "the endpoint requires an API key", "name its variable with `--api-key-env`"
        raise BenchError(message, location=address.url, hint=hint)
    if status != 200:
        base = address.url.removesuffix("/v1")
        hint = "" if base == address.url else f"omit `/v1` at the end: `{base}`"
        raise BenchError(f"GET {path} returned HTTP {status}", location=address.url, hint=hint)
    return read_object(content, path=path)


async def _server_info(connections: Connections, address: Address) -> ServerInfo | None:
    """Read sglang's server info; None for another engine, whose response may be anything."""
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
            f"cannot reach the endpoint: {error}",
            location=address.url,
            hint="check that it is running; `deploy status` lists your own servers",
        ) from error


async def _vllm_facts(connections: Connections, facts: EndpointFacts, metrics: str) -> EndpointFacts:
    try:
        status, content = await connections.fetch("GET", endpoints.VERSION)
        version = read_object(content, path=endpoints.VERSION).get("version") if status == 200 else None
    except (NoResponseError, UnexpectedResponseError):
        version = None
    return replace(
        facts,
        engine_version=version if isinstance(version, str) else None,
        dp_ranks=other_engines.read_ranks(metrics),
        page_size=other_engines.read_block_size(metrics),
        speculative="algorithm not reported" if other_engines.speculates(metrics) else None,
    )


async def _exported_metrics(connections: Connections) -> bytearray | None:
    """Return the metrics that a server exports; None if it exports none or does not respond."""
    try:
        status, content = await connections.fetch("GET", endpoints.METRICS, max_bytes=MAX_METRICS_BYTES)
    except NoResponseError:
        return None
    return content if status == 200 else None
