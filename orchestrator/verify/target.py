"""What the server under test is supposed to be."""

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
    """A server and the features its profile promises; what is False here is reported as not applicable."""

    url: str  # base URL as reached from this machine
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
    role: str = ""  # prefill or decode, if they are apart
    engine_url: str = ""  # of a server behind a gateway in disaggregation mode, which has no server info or metrics
    # Only a plan states these.
    on_gpu: bool = False
    soak_seconds: float = 0.0  # of mixed load; 0: none
    soak_clients: int = 0  # of each rank, below the knee of the server; 0: the knee is not known
    memory: tuple[MemoryGauge, ...] = ()  # that a soak watches; none of a URL, whose host is unknown
    accept_length: float | None = None  # published, in tokens per verification step
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    questions: tuple[SmokeQuestion, ...] = ()  # with one right answer each
    tiers: tuple[str, ...] = ()  # of the KV cache behind the device's
    prefill_chunk: int | None = None  # tokens; None where the plan sets none
    wrong_answers: tuple[PlanWarning, ...] = ()  # what may make answers wrong
    nondeterministic: tuple[PlanWarning, ...] = ()  # why two greedy answers may differ
    greedy: tuple[PlanWarning, ...] = ()  # why nothing is sampled but the first token


def describe(server: EngineClient, *, url: str, api_key: Secret | None, engine: str | None = None) -> Target:
    """Return the target of an endpoint without a plan; `engine` is the one that the user names.

    Raises NoResponseError, and UnexpectedResponseError if it lists no model, or is no sglang server though it says so.
    """
    listed = server.get(endpoints.MODELS)
    engine = engine or other_engines.read_engine(listed)
    if not other_engines.is_other_engine(engine):
        try:
            return target_from_server_info(server, url=url, api_key=api_key)
        except UnexpectedResponseError:
            if engine == "sglang":
                raise
    if (chosen := other_engines.choose_model(read_models(listed))) is None:
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
    """The target that `plan` promises, reached at `url`."""
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
    """Return the target of a server without a plan, from its server info; features it does not report are not checked.

    Raises NoResponseError, and UnexpectedResponseError if it is no sglang server.
    """
    info = read_server_info(server.get(endpoints.SERVER_INFO))
    named = next(((name, length) for name, length in server.models().items() if length is not None), None)
    if info is None or named is None:
        raise UnexpectedResponseError("not an sglang server")
    return Target(
        url=url,
        served_name=named[0],
        context_length=named[1],
        dp=info.replicas,
        speculative=info.speculative is not None,
        prefix_cache=True,
        cache_report=info.reports_cache,
        metrics=bool(server.metrics()),
        grammar=True,
        api_key=api_key,
        role=info.role,
        tiers=info.tiers,
    )
