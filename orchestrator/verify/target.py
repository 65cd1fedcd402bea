"""The target of a smoke test: the server and the features of its plan."""

from dataclasses import dataclass

from orchestrator.core.secrets import Secret
from orchestrator.engine import endpoints, other_engines
from orchestrator.engine.client import EngineClient
from orchestrator.engine.metrics import read_metrics
from orchestrator.engine.requests import completion_body
from orchestrator.engine.responses import (
    UnexpectedResponseError,
    get_object,
    read_cached,
    read_models,
    read_server_info,
)
from orchestrator.plan.plan import GREEDY_SPECULATION, Plan, PlanWarning, SmokeQuestion
from orchestrator.verify.memory import MemoryGauge


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server and the features of its plan; the checks of missing features are skipped."""

    url: str  # base URL as reached from this host
    served_name: str
    context_length: int  # tokens; 0 if the endpoint reports none
    dp: int
    speculative: bool
    prefix_cache: bool
    cache_report: bool  # per-request cached tokens in `usage`
    metrics: bool
    grammar: bool
    api_key: Secret | None
    engine: str = "sglang"
    role: str = ""  # prefill or decode, if the server has a role
    engine_url: str = ""  # a worker of a gateway in disaggregation mode; the gateway has no server info or metrics
    # Known only from a plan, except `tiers`.
    on_gpu: bool = False
    soak_seconds: float = 0.0  # of mixed load; 0: none
    soak_clients: int = 0  # for each rank, below the knee of the server; 0: the knee is unknown
    memory: tuple[MemoryGauge, ...] = ()  # watched in a soak; empty for a URL, whose host is unknown
    accept_length: float | None = None  # published, in tokens per verification step
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    questions: tuple[SmokeQuestion, ...] = ()  # with one correct answer each
    tiers: tuple[str, ...] = ()  # of the KV cache, beyond the device
    prefill_chunk: int | None = None  # tokens; None if the plan sets none
    wrong_answers: tuple[PlanWarning, ...] = ()  # known issues that may make answers wrong
    nondeterministic: tuple[PlanWarning, ...] = ()  # known issues that may make two greedy answers differ
    greedy: tuple[PlanWarning, ...] = ()  # known issues that leave only the first token sampled


def describe(server: EngineClient, *, url: str, api_key: Secret | None, engine: str | None = None) -> Target:
    """Return the target of an endpoint without a plan; `engine` is the engine that the user names.

    Raises NoResponseError; UnexpectedResponseError if the endpoint lists no model, or if the user or its model list
    names sglang and it does not answer as sglang.
    """
    models_document = server.get(endpoints.MODELS)
    engine = engine or other_engines.read_engine(models_document)
    if not other_engines.is_other_engine(engine):
        try:
            return target_from_server_info(server, url=url, api_key=api_key)
        except UnexpectedResponseError:
            if engine == "sglang":
                raise
    if (chosen := other_engines.choose_model(read_models(models_document))) is None:
        raise UnexpectedResponseError(f"`{endpoints.MODELS}` lists no model")
    name, length = chosen
    exported = server.exported().decode(errors="replace")
    usage = get_object(server.post(endpoints.COMPLETIONS, completion_body(name, "Hi", tokens=1)), "usage")
    return Target(
        url=url,
        served_name=name,
        context_length=length or 0,
        dp=other_engines.read_ranks(exported),
        speculative=other_engines.speculates(exported),
        prefix_cache=True,
        cache_report=read_cached(usage) is not None,
        metrics=bool(read_metrics(exported.encode())),
        grammar=True,
        api_key=api_key,
        engine=engine,
    )


def target_of(plan: Plan, *, url: str, api_key: Secret | None) -> Target:
    """Return the target with the features of `plan`, reached at `url`."""
    facts = plan.serving
    return Target(
        url=url,
        served_name=plan.model.served_name,
        context_length=facts.context,
        dp=plan.layout.dp,
        speculative=facts.drafts is not None,
        prefix_cache=facts.prefix_cache,
        cache_report=facts.cached_tokens_report,
        metrics=facts.metrics,
        grammar=facts.grammar,
        on_gpu=bool(plan.gpus),
        soak_seconds=plan.soak * 60,
        accept_length=plan.model.accept_length,
        reasoning_parser=facts.reasoning_parser,
        tool_parser=facts.tool_parser,
        questions=plan.model.questions,
        tiers=facts.tiers.verifiable if facts.tiers else (),
        prefill_chunk=facts.prefill_chunk,
        wrong_answers=plan.wrong_answers,
        nondeterministic=plan.nondeterministic,
        greedy=tuple(warning for warning in plan.warnings if warning.id == GREEDY_SPECULATION),
        api_key=api_key,
    )


def target_from_server_info(server: EngineClient, *, url: str, api_key: Secret | None) -> Target:
    """Return the target of a server without a plan, from its server info; the checks skip features it does not report.

    Raises NoResponseError; UnexpectedResponseError if the server is not an sglang server.
    """
    info = read_server_info(server.get(endpoints.SERVER_INFO))
    model = next(((name, length) for name, length in server.models().items() if length is not None), None)
    if info is None or model is None:
        raise UnexpectedResponseError("not an sglang server")
    return Target(
        url=url,
        served_name=model[0],
        context_length=model[1],
        dp=info.dp_ranks,
        speculative=info.speculative is not None,
        prefix_cache=True,
        cache_report=info.reports_cache,
        metrics=bool(server.metrics()),
        grammar=True,
        api_key=api_key,
        role=info.role,
        tiers=info.tiers,
    )
