"""A whole measurement: probe, every point in turn, the knee; what is finished is written at once and never lost."""

import asyncio
import datetime as dt
import json
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator import __version__
from orchestrator.bench.connection import Address, Connections
from orchestrator.bench.drive import Drive, Sample
from orchestrator.bench.endpoint import check_fits, probe
from orchestrator.bench.marks import marks
from orchestrator.bench.point import Setting, run_closed, run_open, warm_up
from orchestrator.bench.power import Reader
from orchestrator.bench.steady import knee
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.files import write_whole
from orchestrator.core.secret import Secret
from orchestrator.results.result import (
    RESULT_FILE,
    SCHEMA,
    Ending,
    EndpointFacts,
    Point,
    Price,
    Provenance,
    Result,
    Run,
    to_json,
)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be measured, and where the result goes."""

    url: str
    api: str
    key: Secret | None
    workload_name: str
    workload: Workload
    overridden: tuple[str, ...]  # options that changed the workload
    command: str
    provenance: Provenance
    kernel_gate: Callable[[], dict[str, object] | None]  # looked at again: large shapes are looked up late
    price: Price | None
    read_energy: Reader | None
    directory: Path
    earlier: Result | None  # continue this one: its complete points are kept


class UnwrittenError(Exception):
    """The result could not be written; it is here."""

    def __init__(self, result: Result, cause: OSError) -> None:
        """Keep what would be lost."""
        super().__init__(str(cause))
        self.result = result
        self.cause = cause


def measure(order: Order, say: Callable[[str, str], None]) -> Result:
    """Measure and write `result.json` after every point.

    Ctrl-C and a dying endpoint end the measurement with what is finished (see `Result.ending`). Raises BenchError where
    nothing can be measured, UsageError where `earlier` is of another measurement, UnwrittenError on a full disk.
    """
    return asyncio.run(_measure(order, say))


async def _measure(order: Order, say: Callable[[str, str], None]) -> Result:
    _end_well_on_signals()
    address = Address.from_url(order.url)
    connections = Connections(address, key=order.key, clock=asyncio.get_running_loop().time)
    try:
        say("probing the endpoint", "")
        endpoint = await probe(connections, address, api=order.api)
        check_fits(order.workload, endpoint.facts)
        result = _begin(order, endpoint.facts)
        _write(result, order.directory)
        setting = Setting(
            workload=order.workload,
            endpoint=endpoint,
            gpus=order.provenance.gpus,
            price=order.price,
            read_energy=order.read_energy,
            say=say,
        )
        return await _all_points(order, setting, result)
    finally:
        connections.close()


def _end_well_on_signals() -> None:
    """A terminal that goes away, or a scheduler's time limit, ends a measurement as Ctrl-C does."""
    if (task := asyncio.current_task()) is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:  # under `nohup`
                continue
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _begin(order: Order, facts: EndpointFacts) -> Result:
    now = _now()
    run = Run(
        tool_version=__version__,
        started_at=now,
        ended_at=now,
        command=order.command,
        workload_name=order.workload_name,
        workload=order.workload.to_dict(),
        workload_digest=order.workload.digest,
        seed=order.workload.seed,
        warmup="",
        endpoint=facts,
        provenance=order.provenance,
        price=order.price,
    )
    if order.earlier is None:
        return Result(schema_version=SCHEMA, run=run, ending=Ending.INTERRUPTED, points=(), marks=())
    _check_same(order.earlier.run, run)
    kept = tuple(point for point in order.earlier.points if point.ending is Ending.COMPLETE)
    return replace(order.earlier, points=kept, ending=Ending.INTERRUPTED)


def _check_same(earlier: Run, now: Run) -> None:
    for name, before, after in (
        ("workload", earlier.workload_digest, now.workload_digest),
        ("endpoint", earlier.endpoint, now.endpoint),
        ("plan", earlier.provenance.plan_digest, now.provenance.plan_digest),
    ):
        if before != after:
            raise UsageError(
                f"cannot resume: the {name} is not the one of the earlier run",
                hint="measure into another directory with --output",
            )


async def _all_points(order: Order, setting: Setting, result: Result) -> Result:
    ending = Ending.COMPLETE
    try:
        async for point, drive, warmup in _points(setting, result.points):
            run = replace(result.run, warmup=warmup, ended_at=_now())
            result = _with(order, replace(result, run=run, points=(*result.points, point)))
            _write_samples(result, drive, order.directory / f"requests-{point.label}.jsonl")
            _write(result, order.directory)
            ending = point.ending
    except asyncio.CancelledError:
        ending = Ending.INTERRUPTED
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
    except BenchError as error:
        if not result.points:
            raise
        _write(_with(order, replace(result, ending=Ending.ENDPOINT_DIED)), order.directory)
        raise BenchError(
            f"the measurement ended early: {error.message}", where=error.where, hint=error.hint, details=error.details
        ) from error
    result = _with(order, replace(result, ending=ending))
    _write(result, order.directory)
    return result


def _with(order: Order, result: Result) -> Result:
    """`result` with its points in order, and what follows from them."""
    points = tuple(sorted(result.points, key=lambda point: point.offered_rps or 0.0))
    provenance = replace(result.run.provenance, kernel_gate=order.kernel_gate())
    found = marks(points, order.workload, provenance, ending=result.ending, overridden=order.overridden)
    run = replace(result.run, provenance=provenance)
    return replace(result, run=run, points=points, knee_rps=knee(points), marks=found)


async def _points(setting: Setting, kept: tuple[Point, ...]) -> AsyncIterator[tuple[Point, Drive, str]]:
    """Each point that is not yet there, until one does not end well."""
    workload = setting.workload
    done = {point.label: point for point in kept}
    if workload.load == "closed":
        label = f"closed-{workload.concurrency}"
        if label not in done:
            warmup = await warm_up(setting, label)
            yield *(await run_closed(setting, label)), warmup
        return
    rates = list(workload.rates_rps)
    while rates:
        rate = rates.pop(0)
        label = f"{rate:g}"
        point = done.get(label)
        if point is None:
            warmup = await warm_up(setting, label)
            point, drive = await run_open(setting, label, rate)
            yield point, drive, warmup
        if point.ending is not Ending.COMPLETE:
            return
        climb = workload.climb
        if not rates and climb and point.sustained and round(rate + climb.step_rps, 6) <= climb.up_to_rps:
            rates.append(round(rate + climb.step_rps, 6))


def _write(result: Result, directory: Path) -> None:
    try:
        write_whole(directory / RESULT_FILE, to_json(result))
    except OSError as error:
        raise UnwrittenError(result, error) from error


def _write_samples(result: Result, drive: Drive, path: Path) -> None:
    try:
        write_whole(path, "".join(json.dumps(_plain(sample)) + "\n" for sample in drive.samples))
    except OSError as error:
        raise UnwrittenError(result, error) from error


def _plain(sample: Sample) -> dict[str, object]:
    """A sample as one line of JSON, times to the microsecond."""
    data = asdict(sample)
    times = {key: round(value, 6) for key, value in data.items() if isinstance(value, float)}
    return {**data, **times, "chunk_s": [round(at, 6) for at in sample.chunk_s]}


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
