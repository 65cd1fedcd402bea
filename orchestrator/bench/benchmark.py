"""One measurement: discover the endpoint, measure each point, find the knee. Finished points are saved immediately."""

import asyncio
import datetime as dt
import hashlib
import json
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import __version__
from orchestrator.bench.aiperf.runner import CLIENT, AiperfRunner
from orchestrator.bench.cache_forecast import PointForecasts, forecast_load
from orchestrator.bench.comparability import comparability_issues
from orchestrator.bench.connection import Connections
from orchestrator.bench.endpoint import Endpoint, check_fits, discover
from orchestrator.bench.energy import EnergyReader
from orchestrator.bench.in_thread import in_thread
from orchestrator.bench.load_generator import LoadResult
from orchestrator.bench.prompts import Source
from orchestrator.bench.record_file import RequestRecord
from orchestrator.bench.result import (
    RESULT_FILE,
    RESULT_SCHEMA,
    BenchResult,
    CacheForecast,
    ComparabilityIssue,
    EndpointFacts,
    EndReason,
    IssueKind,
    Point,
    Price,
    Run,
    ServerProvenance,
)
from orchestrator.bench.result_files import requests_file
from orchestrator.bench.run_point import PointRunner
from orchestrator.bench.steady_state import knee
from orchestrator.bench.text_prompts import count_words, takes_token_ids
from orchestrator.bench.traces.trace import SessionSource
from orchestrator.bench.workload import MIN_TEXT_TOKENS, Workload
from orchestrator.core.command_hints import left_running
from orchestrator.core.console import note
from orchestrator.core.errors import BenchError, DeployError, Interrupted, ProfileError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret, redact
from orchestrator.core.signals import defer_signals
from orchestrator.core.url import Address
from orchestrator.engine.client import EngineClient
from orchestrator.plan.capacity import DEFAULT_WORKLOAD
from orchestrator.plan.plan import PlanWarning


@dataclass(frozen=True, kw_only=True)
class BenchTarget:
    """An endpoint: URL, API key, and what is known about its server."""

    url: str
    key: Secret | None
    provenance: ServerProvenance
    warnings: tuple[PlanWarning, ...]  # warnings of the plan
    kernel_gate: Callable[[], dict[str, object] | None]  # reads the kernel gate from the server log, after each point
    engine: str | None = None  # named by the user; None: detected
    workload: str = DEFAULT_WORKLOAD  # name or file used if the command names none
    gpus: range | None = None  # GPU indices on the host of the server; None if unknown
    replica_urls: tuple[str, ...] = ()  # base URLs of the replicas of a gateway
    session_header: str | None = None  # header by which the gateway keeps a session on its replica
    on_result: Callable[[Path], object] = lambda _: None  # called with the result directory's absolute path
    may_be_local: bool = True  # False: a local port that forwards to a cluster


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """The endpoint and workload to measure, and the directory for the result."""

    target: BenchTarget
    api: str
    workload_name: str
    workload: Workload
    overridden: tuple[str, ...]  # options that changed the workload
    command: str
    price: Price | None
    label: str | None = None  # chosen by the user
    read_energy: EnergyReader | None
    directory: Path
    text: str  # source of text prompts
    source: SessionSource | None = None  # None: independent prompts
    session_header: str | None = None  # header with the session's name, for a gateway that routes by session
    text_prompts: bool = False  # send text even if the endpoint accepts token ids
    aiperf: Path | None = None  # path of aiperf to send the load; None: the client of `deploy`
    previous: BenchResult | None  # result to resume; its complete points are reused
    stop_when: Callable[[BenchResult], EndReason | None] = lambda _: None  # called after each point; not None: stop


def measure(request: BenchRequest, progress: Callable[[str, str], None]) -> BenchResult:
    """Measure and write `result.json` after every point.

    On Ctrl-C, or if the endpoint dies, return the finished points (`BenchResult.end_reason`). Raises BenchError if no
    point can be measured, OSError if the result cannot be written, UsageError if `previous` belongs to another
    measurement, Interrupted if there is no result yet.
    """
    try:
        return asyncio.run(_measure(request, progress))
    except KeyboardInterrupt as error:  # a second Ctrl-C, or Ctrl-C after the last point
        hint = f"{_left_running(request)}; finished points are in `{request.directory}`: continue with `--resume`"
        raise Interrupted("interrupted", hint=hint) from error


def _left_running(request: BenchRequest) -> str:
    return left_running(request.target.provenance.name or request.target.url)


async def _measure(request: BenchRequest, progress: Callable[[str, str], None]) -> BenchResult:
    address, key = Address.from_url(request.target.url), request.target.key
    with _cancel_on_signals(), ExitStack() as stack:
        connections = Connections(address, key=key, clock=asyncio.get_running_loop().time)
        stack.callback(connections.close)
        client = stack.enter_context(EngineClient(address.url, key=key))
        replicas = tuple(stack.enter_context(EngineClient(url, key=key)) for url in request.target.replica_urls)
        progress("discovering the endpoint", "")
        try:
            endpoint = await in_thread(
                lambda: discover(
                    connections, client, address.url, api=request.api, engine=request.target.engine, replicas=replicas
                )
            )
            check_fits(request.workload, endpoint, request.source.longest if request.source else None)
            endpoint, text = await _prompt_source(request, endpoint)
            if request.source is not None:
                progress("computing the achievable hit rate", "")
            forecast = await in_thread(lambda: forecast_load(request.workload, request.source, endpoint))
        except asyncio.CancelledError as error:
            raise Interrupted("interrupted before the first measurement", hint=_left_running(request)) from error
        result = _begin(request, endpoint.facts, forecast)
        _write(request, result)
        runner = PointRunner(
            workload=request.workload,
            text=text,
            endpoint=endpoint,
            gpus=request.target.provenance.gpus,
            price=request.price,
            read_energy=request.read_energy,
            progress=progress,
            source=request.source,
            session_header=request.session_header,
            salt=f"{secrets.token_hex(4)}/",
        )
        if request.aiperf is not None:
            runner = AiperfRunner(
                **vars(runner), program=request.aiperf, key=request.target.key, directory=request.directory.absolute()
            )
        return await _all_points(request, runner, result)


async def _prompt_source(request: BenchRequest, endpoint: Endpoint) -> tuple[Endpoint, Source]:
    """Return the endpoint with its form of prompts, and their source: token ids, unless the endpoint rejects them."""
    timeout_s = request.workload.timeout_s
    if not request.text_prompts and await takes_token_ids(endpoint, timeout_s=timeout_s):
        return endpoint, await _tokenize_text(request, endpoint)
    if request.source is not None:
        raise BenchError(
            "sessions need an endpoint that takes token ids",
            location=request.target.url,
            hint="omit `--text-prompts`" if request.text_prompts else "`--api generate`",
        )
    note("prompts are sent as text, with the token counts of the endpoint")
    endpoint = replace(endpoint, facts=replace(endpoint.facts, prompts_as="text"))
    return endpoint, await count_words(endpoint, request.text, timeout_s=timeout_s)


async def _tokenize_text(request: BenchRequest, endpoint: Endpoint) -> tuple[int, ...]:
    """Return the token ids of the prompt text. Raises BenchError if there are too few."""
    if request.workload.prompts == "random":
        return ()
    ids = await endpoint.tokenize(request.text)
    if len(ids) < MIN_TEXT_TOKENS:
        raise BenchError(
            f"the prompt text has {len(ids)} tokens; at least {MIN_TEXT_TOKENS} are required",
            location=request.workload.text_file or "",
            hint="set `text_file` to a longer text, or remove it to use the built-in text",
        )
    return ids


@contextmanager
def _cancel_on_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, and restore their handlers afterwards.

    The caller may still have a server to stop.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    replaced = {number: old for number, old in handlers.items() if old is not signal.SIG_IGN}  # ignored under `nohup`
    if task is not None:
        for number in replaced:
            loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        with defer_signals():
            for number, old in replaced.items():
                loop.remove_signal_handler(number)
                signal.signal(number, old)


def _begin(request: BenchRequest, facts: EndpointFacts, forecast: CacheForecast | None) -> BenchResult:
    now = _now()
    run = Run(
        tool_version=__version__,
        client=None if request.aiperf is None else CLIENT,
        started_at=now,
        ended_at=now,
        command=redact(request.command),
        workload_name=request.workload_name,
        workload=request.workload.to_dict(),
        workload_digest=request.workload.digest(request.source.digest if request.source else None),
        seed=request.workload.seed,
        trace_sha256=request.source.digest if request.source else None,
        text_sha256=hashlib.sha256(request.text.encode()).hexdigest() if request.text else None,
        warmup="",
        endpoint=_without_secrets(facts),
        provenance=request.target.provenance,
        price=request.price,
        label=request.label,
        cache_forecast=forecast,
    )
    if request.previous is None:
        return BenchResult(
            schema_version=RESULT_SCHEMA, run=run, end_reason=EndReason.INTERRUPTED, points=(), comparability_issues=()
        )
    _require_same_measurement(request.previous.run, run)
    completed = tuple(point for point in request.previous.points if point.end_reason is EndReason.COMPLETE)
    return replace(request.previous, points=completed, end_reason=EndReason.INTERRUPTED)


def _require_same_measurement(previous: Run, now: Run) -> None:
    for name, before, after in (
        ("workload", previous.workload_digest, now.workload_digest),
        ("text", previous.text_sha256, now.text_sha256),
        ("trace", previous.trace_sha256, now.trace_sha256),
        ("endpoint", previous.endpoint, now.endpoint),
        ("client", previous.client, now.client),
        ("plan", previous.provenance.plan_digest, now.provenance.plan_digest),
    ):
        if before != after:
            raise UsageError(
                f"cannot resume: the {name} differs from the previous run",
                hint="choose another directory with `--output`",
            )


async def _all_points(request: BenchRequest, runner: PointRunner, result: BenchResult) -> BenchResult:
    ending = EndReason.COMPLETE
    forecasts = PointForecasts(
        workload=request.workload, source=request.source, endpoint=runner.endpoint, forecast=result.run.cache_forecast
    )
    try:
        async for measured, load_result, warmup in _points(runner, result.points):
            if measured.end_reason is EndReason.INTERRUPTED and not measured.requests:
                ending = measured.end_reason
                break
            point = forecasts.with_known(measured)
            run = replace(result.run, warmup=warmup, ended_at=_now())
            result = _with_issues(request, replace(result, run=run, points=(*result.points, point)))
            if request.aiperf is None:
                lines = (json.dumps(_request_line(record)).encode() + b"\n" for record in load_result.records)
                atomic_write(request.directory / requests_file(point), lines)
            result = _write_with_kernel_gate(request, result)
            ending = point.end_reason
            if ending is EndReason.COMPLETE and (end := request.stop_when(result)) is not None:
                ending = end
                break
        if ending is not EndReason.INTERRUPTED:  # slow, but the points are already saved
            result = replace(result, points=await forecasts.complete(result.points, runner.progress))
    except asyncio.CancelledError:
        ending = EndReason.INTERRUPTED
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
    except (BenchError, ProfileError) as error:  # ProfileError: a trace that has changed
        if not result.points:
            raise
        _write_with_kernel_gate(request, _with_issues(request, replace(result, end_reason=EndReason.ENDPOINT_DIED)))
        raise BenchError(
            f"measurement ended early: {error.message}", location=error.location, hint=error.hint, details=error.details
        ) from error
    return _write_with_kernel_gate(request, _with_issues(request, replace(result, end_reason=ending)))


def _with_issues(request: BenchRequest, result: BenchResult) -> BenchResult:
    """Return `result` with sorted points, knee and comparability issues."""
    points = tuple(sorted(result.points, key=lambda point: point.offered_rps or 0.0))
    result = replace(result, points=points, knee_rps=knee(points))
    return replace(result, comparability_issues=comparability_issues(result, overridden=request.overridden))


def _write_with_kernel_gate(request: BenchRequest, result: BenchResult) -> BenchResult:
    """Write `result` with the current state of the kernel gate; an unreadable gate becomes a comparability issue."""
    _write(request, result)
    try:
        gate, failure = request.target.kernel_gate(), ""
    except DeployError as error:
        gate, failure = result.run.provenance.kernel_gate, error.message
    provenance = replace(result.run.provenance, kernel_gate=gate)
    result = _with_issues(request, replace(result, run=replace(result.run, provenance=provenance)))
    if failure:
        unknown = ComparabilityIssue(kind=IssueKind.UNKNOWN_KERNELS, detail=f"cannot read the server log: {failure}")
        result = replace(result, comparability_issues=(unknown, *result.comparability_issues))
    _write(request, result)
    return result


async def _points(runner: PointRunner, completed: tuple[Point, ...]) -> AsyncIterator[tuple[Point, LoadResult, str]]:
    """Measure each missing point, until a point is incomplete."""
    workload = runner.workload
    done = {point.label: point for point in completed}
    if workload.load == "closed":
        label = f"closed-{workload.concurrency}"
        if label not in done:
            warm = await runner.warm_up(label)
            yield *(await runner.run_closed(warm)), warm.description
        return
    if workload.trace is not None:
        for speed in workload.speeds:
            label = f"x{speed:g}"
            if label not in done:
                warm = await runner.warm_up(label)
                yield *(await runner.run_recorded(warm, speed)), warm.description
        return
    rates = list(workload.request_rates)
    while rates:
        rate = rates.pop(0)
        label = f"{rate:g}"
        point = done.get(label)
        if point is None:
            warm = await runner.warm_up(label)
            point, load_result = await runner.run_open(warm, rate)
            yield point, load_result, warm.description
        if point.end_reason is not EndReason.COMPLETE:
            return
        ramp = workload.ramp
        if not rates and ramp and point.sustained and round(rate + ramp.step_rps, 6) <= ramp.max_rps:
            rates.append(round(rate + ramp.step_rps, 6))


def _without_secrets(facts: EndpointFacts) -> EndpointFacts:
    return replace(
        facts,
        served_model=redact(facts.served_model),
        engine_version=facts.engine_version and redact(facts.engine_version),
        speculative=facts.speculative and redact(facts.speculative),
    )


def _write(request: BenchRequest, result: BenchResult) -> None:
    atomic_write(request.directory / FileName(RESULT_FILE), result.to_json())


def _request_line(record: RequestRecord) -> dict[str, object]:
    data = record._asdict()
    times = {key: round(value, 6) for key, value in data.items() if isinstance(value, float)}
    chunks = {"chunk_s": [round(at, 6) for at in record.chunk_s], "chunk_tokens": list(record.chunk_tokens)}
    return {**data, **times, **chunks}


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
