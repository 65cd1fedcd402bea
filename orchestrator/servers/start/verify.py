"""Readiness and the smoke test of a server, and the diagnosis of its failure."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import Final

import httpx

from orchestrator.core.console import Progress, warn
from orchestrator.core.errors import DeployError, HostError, NotReadyError, SmokeError
from orchestrator.core.polling import poll_until
from orchestrator.core.secrets import Secret
from orchestrator.core.signals import allow_signals
from orchestrator.core.url import Address
from orchestrator.diagnose.match import diagnose
from orchestrator.diagnose.report import legend
from orchestrator.engine.client import EngineClient
from orchestrator.engine.disaggregation import ROLES, direct_request_problem
from orchestrator.engine.endpoints import MODELS
from orchestrator.engine.first_sample import SAMPLE_LIMIT
from orchestrator.engine.gateway import WORKERS, GatewayWorker, parse_workers
from orchestrator.engine.other_engines import UNKNOWN, is_other_engine, read_engine, require_engine
from orchestrator.engine.responses import NoResponseError, UnauthorizedError, UnexpectedResponseError
from orchestrator.kernels.plan_table import kernel_gate
from orchestrator.plan.plan import Plan
from orchestrator.plan.units import Role
from orchestrator.planner.estimate import startup_seconds
from orchestrator.runs.run_dir import FIRST_SAMPLE, RunDir, read_plan
from orchestrator.runtimes.base import ServerState, Status
from orchestrator.servers.group import RESTART_HINT, Server, run_dir_of
from orchestrator.servers.rollout.gateway_workers import count_other_models
from orchestrator.servers.servers import Servers, exited_processes, record_processes
from orchestrator.servers.soaks import knee_requests, memory_gauges, save_report
from orchestrator.verify.gateway import count_workers, gateway_checks, generates
from orchestrator.verify.pair import Pair, pair_checks, role_report
from orchestrator.verify.readiness import StartingServer, wait_until_ready
from orchestrator.verify.report import CheckResult, SmokeReport
from orchestrator.verify.smoke import smoke_test
from orchestrator.verify.target import Target, describe, target_from_server_info, target_of

_INTERVAL: Final = 0.5  # seconds between two health checks of a server that is not yet healthy
_MIN_TIMEOUT: Final = 1.0  # minimum timeout of a health check in seconds, even near the deadline
_BELOW_KNEE: Final = 0.5  # share of the requests at the knee that a soak sends (this project's choice)


def is_healthy(server: Server) -> bool:
    """Return whether the server generates a token for a health check, which needs no API key.

    With replicas, return whether the gateway counts all as healthy.
    """
    return _healthy_replicas(server) == (len(server.replicas) or 1)


def _healthy_replicas(server: Server, *, tries: int = 2, timeout: float = inf) -> int:
    """Return the number of healthy replicas (0 or 1 without a gateway); a try ends after `timeout` seconds."""
    if server.has_roles:  # the gateway answers 200 even after a server has died
        roles = [_healthy_replicas(replica, tries=tries, timeout=timeout) for replica in server.replicas]
        return min(sum(roles), count_workers(server.url)) if generates(server.url) else 0
    if server.replicas:
        return count_workers(server.url) - count_other_models(server)
    try:
        with EngineClient(server.url, key=None) as client:
            return int(client.health(tries=tries, timeout=timeout) == httpx.codes.OK)
    except (NoResponseError, UnexpectedResponseError):
        return 0


def await_healthy(server: Server, *, deadline: float) -> None:
    """Wait until a running server is healthy, with all its replicas or roles.

    A health check fails during a long prefill, and after one failed check a gateway counts a replica as unhealthy until
    the next check. Raises NotReadyError after `deadline` seconds, or at once when a process of the server has ended.
    """
    replicas, began = len(server.replicas) or 1, time.monotonic()
    hint = f"`deploy logs {server.name}` shows the cause; `deploy restart {server.name}` restarts it"
    kind = "servers" if server.has_roles else "replicas"

    def probe() -> tuple[int, str]:
        state = server.current_state()
        if failure := state.exit_summary if state.status is not Status.RUNNING else exited_processes(server):
            return 0, failure
        timeout = max(began + deadline - time.monotonic(), _MIN_TIMEOUT)
        return _healthy_replicas(server, tries=1, timeout=timeout), ""

    def show(result: tuple[int, str]) -> None:
        elapsed = f"{time.monotonic() - began:.0f} s"
        text = f"waiting for `{server.name}`: {result[0]} of {replicas} {kind} healthy"
        progress.update(text, stage="waiting", transient=elapsed)

    with Progress() as progress:
        healthy, failure = poll_until(
            lambda seen: bool(seen[1]) or seen[0] == replicas, probe, timeout=deadline, interval=_INTERVAL, on_tick=show
        )
    if failure:
        raise NotReadyError(failure, hint=hint)
    if healthy != replicas:
        raise NotReadyError(f"{healthy} of {replicas} {kind} healthy after {deadline:g} s", hint=hint)


def wait_for_server(
    server: Server,
    *,
    plan: Plan,
    key: Secret | None,
    timeout: float | None,
    state: Callable[[], ServerState] | None = None,
) -> float:
    """Wait until a server is ready, record its processes, and return the seconds that this took.

    `state` returns the state of the server, by default its own. Raises NotReadyError when it has exited or makes no
    progress.
    """
    state = state or server.current_state
    starting = StartingServer(
        url=server.url,
        served_name=plan.model.served_name,
        log=server.tail(),
        state=state,
        api_key=key,
        expected_seconds=startup_seconds(plan),
    )
    progress_deadline = plan.timeouts.progress_deadline
    seconds = wait_until_ready(starting, progress_deadline=progress_deadline, timeout=timeout)
    limit = min(SAMPLE_LIMIT + progress_deadline, inf if timeout is None else max(timeout - seconds, 0))
    starting.stages[FIRST_SAMPLE] = sampled = _wait_until_routed(server, state, limit)
    record_processes(server, seconds + sampled, starting.stages)
    return seconds + sampled


def _wait_until_routed(server: Server, state: Callable[[], ServerState], limit: float) -> float:
    """Wait until a healthy server may get requests, and return the seconds that this took.

    A pod gets no requests before each rank has answered a sampled one. Raises NotReadyError after `limit` seconds, or
    at once when the server has ended or was restarted.
    """
    began = time.monotonic()

    def probe() -> tuple[bool, str]:
        now = state()
        ended = now.detail or now.exit_summary if now.status is not Status.RUNNING or now.restarts else ""
        return not ended and server.backend.is_ready(server), ended

    with Progress() as progress:
        ready, ended = poll_until(
            any, probe, timeout=limit, interval=_INTERVAL, on_tick=lambda _: progress.update(FIRST_SAMPLE)
        )
    if ended:
        hint = f"`deploy diagnose {server.name}` names the cause"
        raise NotReadyError(f"the server exited during its {FIRST_SAMPLE}: {ended}", hint=hint)
    if not ready:
        hint = f"`deploy logs {server.name}` shows what its ranks do; raise `timeouts.progress_deadline` or `--timeout`"
        raise NotReadyError(f"a rank has not answered its {FIRST_SAMPLE} after {limit:g} s", hint=hint)
    return time.monotonic() - began


def run_smoke_test(
    server: Server,
    *,
    plan: Plan,
    key: Secret | None,
    soak: float | None = None,
    knee: float | None = None,
) -> SmokeReport:
    """Run the smoke test of a server, including the check of its log for known faults.

    Test replicas one at a time, each with the plan of its own run, then the gateway. `soak` is the duration of mixed
    load in minutes, by default from the plan; `knee` is the number of requests in flight at the knee of a benchmark.
    """
    if plan.role is not Role.SERVER:
        return role_report(target_of(plan, url=server.url, api_key=key))
    if server.has_roles:
        return _pair_report(server, plan=plan, key=key, soak=soak)
    if server.replicas:
        checks = [
            check
            for replica in server.replicas
            for check in prefix_replica(
                Path(replica.run_dir).name,
                run_smoke_test(
                    replica,
                    plan=(read_plan(RunDir(run_dir_of(replica))) or plan).servers[Path(replica.run_dir).name],
                    key=key,
                    soak=soak,
                    knee=knee / len(server.replicas) if knee else None,
                ),
            )
        ]
        workers = plan.replicas + count_other_models(server)
        checks += gateway_checks(target_of(plan, url=server.url, api_key=key), workers)
        return SmokeReport(url=server.url, served_name=plan.model.served_name, checks=tuple(checks))
    target = _with_soak(target_of(plan, url=server.url, api_key=key), soak, knee)
    return _test(target, server, plan)


def _test(target: Target, server: Server, plan: Plan) -> SmokeReport:
    if target.soak_seconds:
        target = replace(target, memory=memory_gauges(server, plan))
    return smoke_test(target, faults=lambda: diagnose(server.logs(follow=False)).degraded)


def _pair_report(server: Server, *, plan: Plan, key: Secret | None, soak: float | None) -> SmokeReport:
    """Test prefill and decode through their gateway, then the transfer of requests between them."""
    prefill, decode = (
        [replica.url for replica in server.replicas if replica.role is role] for role in (Role.PREFILL, Role.DECODE)
    )
    decode_target = target_of(plan.servers[plan.server_names[-1]], url=server.url, api_key=key)
    # No tiers: only a server itself reports the size of its pool, and only the decode servers are queried.
    target = replace(_of_pair(_with_soak(decode_target, soak), decode), tiers=())
    report = _test(target, server, plan)

    def logs() -> dict[str, Iterable[str]]:
        names = {Path(replica.run_dir).name.replace("-", " "): replica for replica in server.replicas}
        return {name: replica.logs(follow=False) for name, replica in names.items()}

    pair = Pair(
        gateway=server.url,
        model=plan.model.served_name,
        prefill=prefill,
        decode=decode,
        key=key,
        on_gpu=bool(plan.gpus),
        transfer=plan.transfer,
        logs=logs,
    )
    return replace(report, checks=(*report.checks, *gateway_checks(target, plan.replicas), *pair_checks(pair)))


def _with_soak(target: Target, minutes: float | None, knee: float | None = None) -> Target:
    target = replace(target, soak_clients=max(int(knee * _BELOW_KNEE / target.dp), 1) if knee else 0)
    return target if minutes is None else replace(target, soak_seconds=minutes * 60)


def _of_pair(target: Target, decode: Sequence[str]) -> Target:
    """Return the target behind a gateway of prefill and decode servers; the first decode server describes it."""
    return replace(target, dp=1, engine_url=decode[0], metrics=target.metrics and len(decode) == 1)


def prefix_replica(name: str, report: SmokeReport) -> list[CheckResult]:
    """Return the checks of a server behind a gateway, with the server's name before the name of each."""
    return [replace(check, name=f"{name.replace('-', ' ')}: {check.name}") for check in report.checks]


def smoke_server(servers: Servers, name: str, *, strict_kernels: bool, soak: float | None = None) -> SmokeReport:
    """Run the smoke test of a running server with its plan, and check its kernels again.

    `soak` is the duration of the mixed load in minutes, by default from the plan.

    Raises StartError if the plan is not in this home or the server has exited, KernelsError for an untuned kernel with
    `strict_kernels`.
    """
    server = servers.open(name)
    run, plan = servers.require_run(server), server.require_plan()
    server.require_running()
    if dead := exited_processes(server):
        raise SmokeError(f"`{name}` failed its smoke test: {dead}", hint=RESTART_HINT.format(name=name))
    knee = knee_requests(run)
    report = run_smoke_test(server, plan=plan, key=server.key, soak=soak, knee=knee)
    try:
        save_report(run, report)
        kernel_gate(server.logs(follow=False), plan=plan, run=run, strict=strict_kernels)
    except HostError as error:  # a full disk; the result is still returned
        warn(f"cannot save all results: {error.message}", hint=error.hint)
    return report


def smoke_url(
    url: str, *, plan: Plan | None, key: Secret | None, engine: str | None = None, soak: float | None = None
) -> SmokeReport:
    """Run the smoke test of any endpoint, with a plan or with the facts that the endpoint reports.

    `engine` is the engine that the user names. `soak` is the duration of the mixed load in minutes, by default from the
    plan.

    Raises UsageError for an invalid URL or an unknown engine, SmokeError if the endpoint serves no model.
    """
    url, engine = Address.from_url(url).url, require_engine(engine)
    try:
        with EngineClient(url, key=key) as server:
            if workers := _workers_with_roles(server):
                return _smoke_pair_url(url, workers, key=key, soak=soak)
            if plan is not None and not is_other_engine(engine or _listed_engine(server)):
                return smoke_test(_with_soak(target_of(plan, url=url, api_key=key), soak), faults=None)
            target = describe(server, url=url, api_key=key, engine=engine)
            if target.role:
                problem, hint = direct_request_problem(target.role)
                raise SmokeError(f"cannot test `{url}`: {problem}", hint=hint)
    except (NoResponseError, UnexpectedResponseError) as error:
        raise unidentified_server(url, error, key=key) from error
    if plan is not None:
        model = plan.model
        target = replace(
            target, served_name=model.served_name, questions=model.questions, context_length=plan.serving.context
        )
    return smoke_test(_with_soak(target, soak), faults=None)


def _workers_with_roles(gateway: EngineClient) -> tuple[GatewayWorker, ...]:
    """Return the workers of a gateway in disaggregation mode; () for any other server, or if listing needs a key."""
    try:
        return tuple(worker for worker in parse_workers(gateway.get(WORKERS)) if worker.role)
    except UnexpectedResponseError:
        return ()


def _smoke_pair_url(
    url: str, workers: Iterable[GatewayWorker], *, key: Secret | None, soak: float | None
) -> SmokeReport:
    """Test prefill and decode through a gateway that somebody else started."""
    prefill, decode = ([worker.url for worker in workers if worker.role == role] for role in ROLES)
    if not prefill or not decode:
        message = f"the gateway at `{url}` has {len(prefill)} prefill and {len(decode)} decode servers"
        raise SmokeError(message, hint="add at least one of each to the gateway")
    with EngineClient(decode[0], key=key) as server:
        target = target_from_server_info(server, url=url, api_key=key)
    report = smoke_test(_of_pair(_with_soak(target, soak), decode), faults=None)
    pair = Pair(gateway=url, model=target.served_name, prefill=prefill, decode=decode, key=key, on_gpu=False)
    return replace(report, checks=(*report.checks, *pair_checks(pair)))


def _listed_engine(server: EngineClient) -> str:
    try:
        return read_engine(server.get(MODELS))
    except (NoResponseError, UnexpectedResponseError):
        return UNKNOWN


def unidentified_server(
    url: str, error: NoResponseError | UnexpectedResponseError, *, key: Secret | None
) -> SmokeError:
    """Return the error, with a hint, for a URL without the server info of sglang."""
    hint = (
        "another engine or a gateway does not: give the URL of an sglang server, or the name of a server of "
        "`deploy status`"
    )
    if isinstance(error, NoResponseError):
        hint = "`deploy status` lists the URLs of your own servers"
        return SmokeError(f"no server answers at `{url}`: {error}", hint=hint)
    if isinstance(error, UnauthorizedError):
        hint = "`--api-key-env VARIABLE` names the variable that holds the key" if key is None else ""
    return SmokeError(f"no sglang server found at `{url}`: {error}", hint=hint)


def explain_failure(server: Server, detail: str) -> str:
    """Diagnose a failure from the log and the exit detail of the runtime; an interrupt only ends the diagnosis."""
    try:
        with allow_signals():
            log = chain(server.logs(follow=False), filter(None, [detail]))
            matches = diagnose(log).matches
    except (DeployError, OSError, KeyboardInterrupt) as error:
        return f"diagnosis: cannot read the log: {str(error) or 'interrupted'}"
    parts = [*(match.to_text() for match in matches), legend(matches)] if matches else []
    return "\n\n".join(parts) or "diagnosis: no known signature in the log"
