"""Targets of measurements: a server by its name, or an endpoint by its URL."""

from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from orchestrator.bench.benchmark import BenchTarget
from orchestrator.bench.result import ServerProvenance
from orchestrator.bench.result_files import provenance_of
from orchestrator.bench.run import ClaimedHardware, is_url
from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import DeployError, SmokeError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.core.url import Address
from orchestrator.engine.client import EngineClient
from orchestrator.engine.endpoints import MODELS
from orchestrator.engine.gateway import SESSION_HEADER
from orchestrator.engine.other_engines import is_other_engine, read_engine
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.evals.logprobs.run import LogprobSide, checkpoint_source
from orchestrator.kernels.plan_table import kernel_report
from orchestrator.plan.capacity import DEFAULT_WORKLOAD
from orchestrator.planner.planning import read_profile
from orchestrator.runs.run_dir import RESULTS_FILE, RunDir
from orchestrator.runtimes import runtime_class
from orchestrator.servers.group import api_key
from orchestrator.servers.run_history import read_request
from orchestrator.servers.servers import Servers, open_servers
from orchestrator.servers.start.verify import unidentified_server
from orchestrator.verify.target import target_from_server_info, target_of


def url_target(url: str, *, api_key_env: str | None = None, hardware: ClaimedHardware | None = None) -> BenchTarget:
    """Return the target of any endpoint. Raises UsageError if the URL is invalid or contains a password."""
    hardware = hardware or ClaimedHardware()
    provenance = ServerProvenance(gpu=hardware.gpu, gpus=hardware.gpus, layout=hardware.layout)
    return BenchTarget(
        url=Address.from_url(url).url,
        key=api_key(api_key_env),
        provenance=provenance,
        engine=hardware.engine,
        warnings=(),
        kernel_gate=lambda: None,
    )


def server_target(servers: Servers, name: str) -> BenchTarget:
    """Return the target of a server of `deploy up`, with plan, kernel gate and host from its run directory.

    Raises StartError if there is no server of this name, or if it is not running.
    """
    server = servers.open(name)
    server.require_running()
    plan, own_run = server.plan, servers.run_of(server)
    recorded = provenance_of(server.run, plan)
    provenance = replace(recorded, name=server.name, profile=server.profile, plan_digest=server.plan_digest)

    def read_kernel_report() -> dict[str, object] | None:
        report = kernel_report(server.logs(follow=False), plan) if plan else None
        return asdict(report) if report else None

    return BenchTarget(
        url=server.url,
        key=server.key,
        provenance=provenance,
        warnings=plan.warnings if plan else (),
        kernel_gate=read_kernel_report,
        workload=_workload_of(own_run, servers.home) or DEFAULT_WORKLOAD,
        gpus=plan.gpus if plan else None,
        replica_urls=tuple(replica.url for replica in server.replicas),
        session_header=SESSION_HEADER if server.replicas else None,
        on_result=partial(record_result, own_run),
        may_be_local=runtime_class(server.runtime).is_local,
    )


def record_result(run: RunDir | None, directory: Path) -> None:
    """Record a result in the measured run, for `deploy history`; a full disk does not end a measurement."""
    if run is not None:
        earlier = run.read(RESULTS_FILE).get("directories")
        recorded = [str(path) for path in earlier] if isinstance(earlier, list) else []
        with suppress(OSError):
            run.save_state(RESULTS_FILE, {"directories": [*dict.fromkeys((*recorded, str(directory)))]})


def _workload_of(run: RunDir | None, home: Home) -> str | None:
    """Return the workload of the server's profile; None if the profile names none or is unreadable."""
    request = read_request(run) if run is not None else None
    if request is None:
        return None
    with suppress(DeployError):
        return read_profile(request.profile, overrides=request.overrides, catalog=Catalog.of(home)).profile.workload
    return None


def resolve_target(
    name: str, stack: ExitStack, *, home: Home, host: str | None, api_key_env: str | None
) -> BenchTarget:
    """Return the target of a URL or a server name; `stack` closes its connections."""
    if is_url(name):
        return url_target(name, api_key_env=api_key_env)
    return server_target(stack.enter_context(open_servers(home, host, name=name)), name)


def side_of_server(servers: Servers, name: str) -> LogprobSide:
    """Return the side of a server that `deploy up` started. Raises StartError if it is not running or has no plan here.

    Raises UsageError for prefill and decode servers, which answer only through the gateway.
    """
    server = servers.open(name)
    server.require_running()
    if server.has_roles:
        raise UsageError(
            f"cannot compare log-probabilities of `{name}`: prefill and decode servers answer only through the gateway",
            hint="start the same model without roles, and compare that server",
        )
    run, plan, key = servers.require_run(server), server.require_plan(), server.key
    engines = tuple(
        (f"replica {number}" if server.replicas else "", target_of(plan, url=engine.url, api_key=key))
        for number, engine in enumerate(server.engines, start=1)
    )
    return LogprobSide(name=name, engines=engines, source=checkpoint_source(plan), run=run)


def side_of_url(url: str, *, key: Secret | None) -> LogprobSide:
    """Return the side of an endpoint without a plan. Raises UsageError for an invalid URL, SmokeError if not sglang."""
    url = Address.from_url(url).url
    try:
        with EngineClient(url, key=key) as server:
            engine = read_engine(server.get(MODELS))
            if is_other_engine(engine):
                with_key = " --api-key-env VARIABLE" if key is not None else ""
                hint = f"`deploy eval {url} --suite SUITE --baseline OTHER{with_key}` compares answers of any engine"
                raise SmokeError(f"cannot read log-probabilities of `{url}`: it is {engine}, not sglang", hint=hint)
            target = target_from_server_info(server, url=url, api_key=key)
    except (NoResponseError, UnexpectedResponseError) as error:
        raise unidentified_server(url, error, key=key) from error
    return LogprobSide(name=url, engines=(("", target),), source=None, run=None)
