"""Targets of measurements: a server by its name, or an endpoint by its URL."""

from contextlib import ExitStack
from dataclasses import replace

from orchestrator.bench.result import ServerProvenance
from orchestrator.bench.result_files import provenance_of
from orchestrator.bench.run import BenchTarget, ClaimedHardware, is_url
from orchestrator.core.errors import StartError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.core.url import Address
from orchestrator.engine.client import EngineClient
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.evals.logprobs.run import ProbeSide, checkpoint_source
from orchestrator.kernels.plan_table import kernel_report
from orchestrator.runs.run_dir import read_plan
from orchestrator.runtimes import runtime_class
from orchestrator.servers.servers import Servers, api_key, open_servers
from orchestrator.servers.start.verify import require_running, unidentified_server
from orchestrator.verify.target import target_from_server_info, target_of


def url_target(
    url: str, *, gpus: int | None, api_key_env: str | None, named: ClaimedHardware | None = None
) -> BenchTarget:
    """Any endpoint that speaks the API. Raises UsageError for what is not its URL, or holds a password."""
    behind = named or ClaimedHardware(gpus=gpus)
    provenance = ServerProvenance(gpu=behind.gpu, gpus=behind.gpus, layout=behind.layout)
    return BenchTarget(
        url=Address.from_url(url).url,
        key=api_key(api_key_env),
        provenance=provenance,
        hazards=(),
        kernel_gate=lambda: None,
    )


def server_target(servers: Servers, name: str) -> BenchTarget:
    """A server that `deploy up` started, with its plan, gate and host from its run directory.

    Raises StartError where there is none of that name, or it has ended.
    """
    handle = servers.one(name)
    require_running(servers.runtime(handle), handle)
    plan = handle.plan
    stood = provenance_of(handle.run, plan)
    provenance = replace(stood, name=handle.name, profile=handle.profile, plan_digest=handle.plan_digest)

    def look() -> dict[str, object] | None:
        report = kernel_report(servers.runtime(handle).logs(handle, follow=False), plan) if plan else None
        return report.to_dict() if report else None

    key = api_key(plan.server.api_key_env if plan else None)
    return BenchTarget(
        url=handle.url,
        key=key,
        provenance=provenance,
        hazards=plan.hazards if plan else (),
        kernel_gate=look,
        gpus=plan.gpus if plan else None,
        behind=tuple(server.url for server in handle.replicas),
        here=runtime_class(handle.runtime).here,
    )


def resolve_target(
    name: str, stack: ExitStack, *, home: Home, host: str | None, api_key_env: str | None
) -> BenchTarget:
    """An endpoint by its URL, or a server by its name; what reaches it stays open as long as the `stack`."""
    if is_url(name):
        return url_target(name, gpus=None, api_key_env=api_key_env)
    return server_target(stack.enter_context(open_servers(home, host)), name)


def side_of_server(servers: Servers, name: str) -> ProbeSide:
    """A server that `deploy up` started. Raises StartError where there is none, or its plan is not here."""
    handle = servers.one(name)
    require_running(servers.runtime(handle), handle)
    run = servers.run_of(handle)
    plan = read_plan(run)
    if run is None or plan is None:
        what = f"the plan of `{name}` is not in this home"
        raise StartError(what, hint="`deploy up PROFILE --replace` starts it from here, and a URL needs no plan")
    key = api_key(plan.server.api_key_env)
    urls = [server.url for server in handle.replicas] or [handle.url]
    names = [f"replica {number}" for number in range(1, len(urls) + 1)] if handle.replicas else [""]
    engines = ((whose, target_of(plan, url=url, api_key=key)) for whose, url in zip(names, urls, strict=True))
    return ProbeSide(name=name, engines=tuple(engines), source=checkpoint_source(plan), run=run)


def side_of_url(url: str, *, key: Secret | None) -> ProbeSide:
    """An endpoint that somebody else started. Raises UsageError for what is no URL, SmokeError for no sglang server."""
    from orchestrator.core.url import Address  # noqa: PLC0415 - and with it asyncio and the whole load client

    url = Address.from_url(url).url
    try:
        with EngineClient(url, key=key) as server:
            target = target_from_server_info(server, url=url, api_key=key)
    except (NoResponseError, UnexpectedResponseError) as error:
        raise unidentified_server(url, error, key=key) from error
    return ProbeSide(name=url, engines=(("", target),), source=None, run=None)
