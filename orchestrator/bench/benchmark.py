"""A whole measurement: probe, every point in turn, the knee; what is finished is written at once and never lost."""

import asyncio
import datetime as dt
import hashlib
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator import __version__
from orchestrator.bench.comparability import comparability_issues
from orchestrator.bench.connection import Connections
from orchestrator.bench.counters import concurrency_capped
from orchestrator.bench.endpoint import Endpoint, check_fits, discover
from orchestrator.bench.energy import EnergyReader
from orchestrator.bench.load_generator import LoadResult, RequestRecord
from orchestrator.bench.result import (
    RESULT_FILE,
    RESULT_SCHEMA,
    BenchEnding,
    BenchResult,
    ComparabilityIssue,
    EndpointFacts,
    MarkKind,
    Point,
    Price,
    Run,
    ServerProvenance,
)
from orchestrator.bench.run_point import PointRunner
from orchestrator.bench.steady_state import knee
from orchestrator.bench.workload import LEAST_TOKENS, Workload
from orchestrator.core.errors import BenchError, DeployError, Interrupted, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret, redact
from orchestrator.core.signals import defer_signals
from orchestrator.core.url import Address


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What is to be measured, and where the result goes."""

    url: str
    api: str
    key: Secret | None
    workload_name: str
    workload: Workload
    overridden: tuple[str, ...]  # options that changed the workload
    command: str
    provenance: ServerProvenance
    kernel_gate: Callable[[], dict[str, object] | None]  # looked at again: large shapes are looked up late
    price: Price | None
    label: str | None = None  # what the user calls it
    read_energy: EnergyReader | None
    directory: Path
    text: str  # that prompts of text are cut from
    earlier: BenchResult | None  # continue this one: its complete points are kept
    behind: tuple[str, ...] = ()  # base URLs of the servers, where `url` is that of their gateway
    enough: Callable[[BenchResult], BenchEnding | None] = lambda _: None  # asked after each point: how to end here


class ResultWriteError(Exception):
    """The result could not be written; it is here."""

    def __init__(self, result: BenchResult, cause: OSError) -> None:
        """Keep what would be lost."""
        super().__init__(str(cause))
        self.result = result
        self.cause = cause


def measure(request: BenchRequest, say: Callable[[str, str], None]) -> BenchResult:
    """Measure and write `result.json` after every point.

    Ctrl-C and a dying endpoint end the measurement with what is finished (see `BenchResult.ending`). Raises BenchError
    where nothing can be measured, UsageError where `earlier` is of another measurement, Interrupted where there is no
    result to return, UnwrittenError on a full disk.
    """
    try:
        return asyncio.run(_interruptible(request, say))
    except KeyboardInterrupt as error:  # a second Ctrl-C, or one after the last point
        hint = f"every point that was finished is in `{request.directory}`: go on with --resume"
        raise Interrupted("interrupted", hint=hint) from error


async def _interruptible(request: BenchRequest, say: Callable[[str, str], None]) -> BenchResult:
    with _ending_well_on_signals():
        return await _measure(request, say)


async def _measure(request: BenchRequest, say: Callable[[str, str], None]) -> BenchResult:
    address = Address.from_url(request.url)
    clock = asyncio.get_running_loop().time
    connections, *behind = (
        Connections(Address.from_url(url), key=request.key, clock=clock) for url in (request.url, *request.behind)
    )
    try:
        say("probing the endpoint", "")
        try:
            endpoint = await discover(connections, address, api=request.api, behind=tuple(behind))
        except asyncio.CancelledError as error:
            raise Interrupted("interrupted before anything was measured", hint="run the same command again") from error
        check_fits(request.workload, endpoint.facts)
        text = await _tokens(request, endpoint)
        result = _begin(request, endpoint.facts)
        _write(request, result)
        runner = PointRunner(
            workload=request.workload,
            text=text,
            endpoint=endpoint,
            gpus=request.provenance.gpus,
            price=request.price,
            read_energy=request.read_energy,
            say=say,
        )
        return await _all_points(request, runner, result)
    finally:
        for each in (connections, *behind):
            each.close()


async def _tokens(request: BenchRequest, endpoint: Endpoint) -> tuple[int, ...]:
    """The text that prompts are cut from, as tokens of the model. Raises BenchError where it has too few."""
    if request.workload.prompts == "random":
        return ()
    ids = await endpoint.tokenize(request.text)
    if len(ids) < LEAST_TOKENS:
        raise BenchError(
            f"the text has {len(ids)} tokens, prompts of text are cut from at least {LEAST_TOKENS}",
            where=request.workload.text_file or "",
            hint="name a longer `text_file`, or none: a text ships with the tool",
        )
    return ids


@contextmanager
def _ending_well_on_signals() -> Iterator[None]:
    """A terminal that goes away, or a scheduler's time limit, ends a measurement as Ctrl-C does.

    Afterwards they are answered as before: who measures may have a server to take down.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = {number: was for number, was in before.items() if was is not signal.SIG_IGN}  # ignored under `nohup`
    if task is not None:
        for number in taken:
            loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        with defer_signals():
            for number, was in taken.items():
                loop.remove_signal_handler(number)
                signal.signal(number, was)


def _begin(request: BenchRequest, facts: EndpointFacts) -> BenchResult:
    now = _now()
    run = Run(
        tool_version=__version__,
        started_at=now,
        ended_at=now,
        command=redact(request.command),
        workload_name=request.workload_name,
        workload=request.workload.to_dict(),
        workload_digest=request.workload.digest,
        seed=request.workload.seed,
        text_sha256=hashlib.sha256(request.text.encode()).hexdigest() if request.text else None,
        warmup="",
        endpoint=_without_secrets(facts),
        provenance=request.provenance,
        price=request.price,
        label=request.label,
    )
    if request.earlier is None:
        return BenchResult(schema_version=RESULT_SCHEMA, run=run, ending=BenchEnding.INTERRUPTED, points=(), marks=())
    _check_same(request.earlier.run, run)
    kept = tuple(point for point in request.earlier.points if point.ending is BenchEnding.COMPLETE)
    return replace(request.earlier, points=kept, ending=BenchEnding.INTERRUPTED)


def _check_same(earlier: Run, now: Run) -> None:
    for name, before, after in (
        ("workload", earlier.workload_digest, now.workload_digest),
        ("text", earlier.text_sha256, now.text_sha256),
        ("endpoint", earlier.endpoint, now.endpoint),
        ("plan", earlier.provenance.plan_digest, now.provenance.plan_digest),
    ):
        if before != after:
            raise UsageError(
                f"cannot resume: the {name} is not the one of the earlier run",
                hint="measure into another directory with --output",
            )


async def _all_points(request: BenchRequest, runner: PointRunner, result: BenchResult) -> BenchResult:
    ending = BenchEnding.COMPLETE
    try:
        async for measured, drive, warmup in _points(runner, result.points):
            point = replace(measured, capped=concurrency_capped(measured, request.provenance))
            run = replace(result.run, warmup=warmup, ended_at=_now())
            result = _marked(request, replace(result, run=run, points=(*result.points, point)))
            _write_samples(request, result, drive, label=point.label)
            result = _with_gate(request, result)
            ending = point.ending
            if ending is BenchEnding.COMPLETE and (end := request.enough(result)) is not None:
                ending = end
                break
    except asyncio.CancelledError:
        ending = BenchEnding.INTERRUPTED
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
    except BenchError as error:
        if not result.points:
            raise
        _with_gate(request, _marked(request, replace(result, ending=BenchEnding.ENDPOINT_DIED)))
        raise BenchError(
            f"the measurement ended early: {error.message}", where=error.where, hint=error.hint, details=error.details
        ) from error
    return _with_gate(request, _marked(request, replace(result, ending=ending)))


def _marked(request: BenchRequest, result: BenchResult) -> BenchResult:
    """`result` with its points in order, and what follows from them."""
    points = tuple(sorted(result.points, key=lambda point: point.offered_rps or 0.0))
    found = comparability_issues(
        points,
        result.run.provenance,
        ending=result.ending,
        overridden=request.overridden,
        guessed=result.run.endpoint.speculative if request.workload.prompts == "random" else None,
    )
    return replace(result, points=points, knee_rps=knee(points), marks=found)


def _with_gate(request: BenchRequest, result: BenchResult) -> BenchResult:
    """Write `result`, with what the kernel gate says by now; a gate that cannot be asked is a mark of the result."""
    _write(request, result)
    try:
        gate, failure = request.kernel_gate(), ""
    except DeployError as error:
        gate, failure = result.run.provenance.kernel_gate, error.message
    provenance = replace(result.run.provenance, kernel_gate=gate)
    result = _marked(request, replace(result, run=replace(result.run, provenance=provenance)))
    if failure:
        unknown = ComparabilityIssue(
            kind=MarkKind.UNKNOWN_KERNELS, detail=f"the server's log could not be read: {failure}"
        )
        result = replace(result, marks=(unknown, *result.marks))
    _write(request, result)
    return result


async def _points(runner: PointRunner, kept: tuple[Point, ...]) -> AsyncIterator[tuple[Point, LoadResult, str]]:
    """Each point that is not yet there, until one does not end well."""
    workload = runner.workload
    done = {point.label: point for point in kept}
    if workload.load == "closed":
        label = f"closed-{workload.concurrency}"
        if label not in done:
            warmup = await runner.warm_up(label)
            yield *(await runner.run_closed(label)), warmup
        return
    rates = list(workload.request_rates)
    while rates:
        rate = rates.pop(0)
        label = f"{rate:g}"
        point = done.get(label)
        if point is None:
            warmup = await runner.warm_up(label)
            point, drive = await runner.run_open(label, rate)
            yield point, drive, warmup
        if point.ending is not BenchEnding.COMPLETE:
            return
        climb = workload.ramp
        if not rates and climb and point.sustained and round(rate + climb.step_rps, 6) <= climb.max_rps:
            rates.append(round(rate + climb.step_rps, 6))


def _without_secrets(facts: EndpointFacts) -> EndpointFacts:
    return replace(
        facts,
        served_model=redact(facts.served_model),
        engine_version=facts.engine_version and redact(facts.engine_version),
        speculative=facts.speculative and redact(facts.speculative),
    )


def _write(request: BenchRequest, result: BenchResult) -> None:
    try:
        atomic_write(request.directory / RESULT_FILE, result.to_json())
    except OSError as error:
        raise ResultWriteError(result, error) from error


def _write_samples(request: BenchRequest, result: BenchResult, drive: LoadResult, *, label: str) -> None:
    lines = "".join(json.dumps(_plain(sample)) + "\n" for sample in drive.samples)
    try:
        atomic_write(request.directory / FileName(f"requests-{label}.jsonl"), lines)
    except OSError as error:
        raise ResultWriteError(result, error) from error


def _plain(sample: RequestRecord) -> dict[str, object]:
    """A sample as one line of JSON, times to the microsecond."""
    data = asdict(sample)
    times = {key: round(value, 6) for key, value in data.items() if isinstance(value, float)}
    return {**data, **times, "chunk_s": [round(at, 6) for at in sample.chunk_s]}


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
