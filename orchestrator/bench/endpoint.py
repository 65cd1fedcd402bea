"""Discovery of an endpoint, and the control requests that a measurement needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.bench.connection import Connections
from orchestrator.bench.in_thread import in_thread
from orchestrator.bench.result import EndpointFacts
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError
from orchestrator.engine import endpoints, other_engines
from orchestrator.engine.client import EngineClient
from orchestrator.engine.disaggregation import direct_request_problem
from orchestrator.engine.liveness import RANK_FIELD
from orchestrator.engine.metrics import Metrics, read_metrics
from orchestrator.engine.options import Meaning
from orchestrator.engine.requests import RETURN_IDS, Api, benchmark_body, tokenize_body
from orchestrator.engine.responses import (
    NoResponseError,
    ServerInfo,
    UnauthorizedError,
    UnexpectedResponseError,
    read_models,
    read_server_info,
    token_ids,
)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A reachable endpoint: the facts that it reports, the connections of the load, and a client for the rest."""

    connections: Connections
    client: EngineClient
    facts: EndpointFacts
    is_sglang: bool  # the endpoint has sglang's native API
    reports_cache: bool  # responses carry `cached_tokens`
    has_metrics: bool
    cache_tokens: int | None = None  # cache size on the device, per DP rank
    tier_tokens: int | None = None  # including host memory, per DP rank; None: unknown, or storage holds more
    prompt_tokens: int | None = None  # longest prompt that the server accepts
    replicas: tuple[EngineClient, ...] = ()  # clients of the replicas, if the endpoint is a gateway

    @property
    def _servers(self) -> tuple[EngineClient, ...]:
        return self.replicas or (self.client,)

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
        return (self.connections.head(api.path, sum(map(len, body)), headers), *body)

    async def metrics(self) -> Metrics | None:
        """Read the current metrics, summed over replicas; None if a replica exports none or does not respond."""
        if not self.has_metrics:
            return None
        exported = bytearray()
        for server in self._servers:
            if not (content := await in_thread(partial(_exported_metrics, server))):
                return None
            exported += content + b"\n"
        return read_metrics(exported)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Tokenize a text with the model's tokenizer. Raises BenchError if the endpoint cannot tokenize."""
        body = tokenize_body(self.facts.served_model, text)
        try:
            return token_ids(await in_thread(partial(self._servers[0].post, endpoints.TOKENIZE, body)), "tokens")
        except (NoResponseError, UnexpectedResponseError) as error:
            message = f"cannot tokenize the prompt text: {error}"
            hint = "use a workload with `prompts: random` and `token_ids`, which needs no tokenizer"
            raise BenchError(message, location=self.facts.url, hint=hint) from error

    async def flush_cache(self) -> bool:
        """Flush the prefix caches, so that a repeated run gets no hits for its own prompts; return success."""
        if not self.is_sglang:
            return False
        flushes = [partial(server.post_status, endpoints.FLUSH_CACHE, b"") for server in self._servers]
        try:
            return [await in_thread(flush) for flush in flushes] == [200] * len(flushes)
        except NoResponseError:
            return False


def discover(
    connections: Connections,
    client: EngineClient,
    url: str,
    *,
    api: str = Api.COMPLETIONS,
    engine: str | None = None,
    replicas: tuple[EngineClient, ...] = (),
) -> Endpoint:
    """Query the facts of an endpoint. Raises BenchError if it is unreachable, rejects the key or lacks the API.

    `engine` is the engine named by the user; None: detect it. A gateway reports little about its replicas, so the first
    replica is queried too; all replicas have the same plan.
    """
    server = replicas[0] if replicas else client
    try:
        client.get(endpoints.MODELS)
        document = server.get(endpoints.MODELS)
        models = read_models(document)
        engine = engine or other_engines.read_engine(document)
        info = _server_info(server)
    except NoResponseError as error:
        hint = "check that it is running; `deploy status` lists your own servers"
        raise BenchError(f"cannot reach the endpoint: {error}", location=url, hint=hint) from error
    except UnexpectedResponseError as error:
        raise BenchError(f"cannot discover the endpoint: {error}", location=url, hint=_hint(error, url)) from error
    if info is not None and info.role and not replicas:
        problem, hint = direct_request_problem(info.role)
        raise BenchError(problem, location=url, hint=hint)
    if (chosen := other_engines.choose_model(models)) is None:
        hint = "pass the URL of a server that has loaded a model"
        raise BenchError(f"the endpoint lists no model under `{endpoints.MODELS}`", location=url, hint=hint)
    served, context = chosen
    facts = EndpointFacts(url=url, api=api, served_model=served, context_length=context, engine=engine)
    metrics = _exported_metrics(server)
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
        facts = _vllm_facts(server, facts, metrics.decode(errors="replace"))
    return Endpoint(
        connections=connections,
        client=client,
        facts=facts,
        is_sglang=info is not None,
        reports_cache=info is not None and info.reports_cache,
        has_metrics=bool(metrics),
        cache_tokens=info.cache_tokens if info else None,
        tier_tokens=info.tier_tokens if info else None,
        prompt_tokens=info.prompt_tokens if info else None,
        replicas=replicas,
    )


def _hint(error: UnexpectedResponseError, url: str) -> str:
    if isinstance(error, UnauthorizedError):
        return "use the key that the server was started with; `--api-key-env` names the variable of a URL's key"
    if url.endswith("/v1"):
        return f"omit `/v1` at the end: `{url.removesuffix('/v1')}`"
    return "pass the URL of a server with an OpenAI-compatible API"


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


def _server_info(client: EngineClient) -> ServerInfo | None:
    """Read sglang's server info; None for another engine, whose response may be anything."""
    try:
        data = client.get(endpoints.SERVER_INFO)
    except UnexpectedResponseError:
        return None
    return read_server_info(data)


def _vllm_facts(client: EngineClient, facts: EndpointFacts, metrics: str) -> EndpointFacts:
    try:
        version = client.get(endpoints.VERSION).get("version")
    except (NoResponseError, UnexpectedResponseError):
        version = None
    return replace(
        facts,
        engine_version=version if isinstance(version, str) else None,
        dp_ranks=other_engines.read_ranks(metrics),
        page_size=other_engines.read_block_size(metrics),
        speculative="algorithm not reported" if other_engines.speculates(metrics) else None,
    )


def _exported_metrics(client: EngineClient) -> bytearray:
    """Return the metrics that a server exports; empty if it exports none or does not respond."""
    try:
        return client.exported()
    except (NoResponseError, UnexpectedResponseError):
        return bytearray()
