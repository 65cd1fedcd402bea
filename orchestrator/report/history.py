"""`deploy history`: all runs in this home, from their run directories and benchmark results."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.result import BenchResult, Point
from orchestrator.bench.result_files import recorded_results
from orchestrator.core.console import format_duration, table, warn
from orchestrator.core.text import objects_in
from orchestrator.runs.run_dir import (
    SMOKE_FILE,
    SOAKED,
    RunDir,
    known_names,
    not_started,
    require_name,
    runs_by_name,
    runs_of,
)
from orchestrator.runtimes.base import EXIT_FILE, Status
from orchestrator.servers.exit_record import saved_state
from orchestrator.servers.servers import PROCESSES_FILE, Servers, requested

_FAILED: Final = "failed"  # a value of `verify.report.Verdict`, which is slow to import
_BEST_METRICS: Final = (metrics.OUTPUT, metrics.TTFT_P95, metrics.TPOT_P50)


@dataclass(frozen=True, kw_only=True)
class BestMetrics:
    """The metrics of one workload at its knee, else at its highest output; `metrics` by metric key."""

    workload: str
    load: str
    metrics: Mapping[str, float | None]
    comparable: bool

    def __str__(self) -> str:
        texts = (
            f"{best_metric.name} {best_metric.with_unit(value)}"
            for best_metric in _BEST_METRICS
            if (value := self.metrics[best_metric.key])
        )
        marked = "" if self.comparable else ", NOT COMPARABLE"
        return f"{self.workload}: {', '.join(texts)} at {self.load}{marked}"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run; data that an older version did not save is None or empty."""

    name: str
    run: str  # name of the run directory: start time and prefix of the plan digest
    profile: str
    overrides: tuple[str, ...]  # values of `--set`
    plan: str  # first eight digits of the plan digest
    started_at: str
    ready_seconds: float | None
    smoke: Mapping[str, int]  # number of checks by verdict, in the last smoke test
    soak_seconds: float  # of the last soak that passed, per replica; 0: none
    soaked_at: str  # its end; "" if there was none
    failed: tuple[str, ...]  # names of the failed checks
    kernels: Mapping[str, int]  # lookups of tuned kernels, `hits` and `misses`
    best: tuple[BestMetrics, ...]
    status: str  # status of the server; "" if it no longer exists
    ended: str  # exit summary, or the age of a running server
    ended_at: str | None
    run_dir: str


def history(servers: Servers, name: str | None) -> tuple[RunSummary, ...]:
    """Return the runs in this home, by name and newest first, with their recorded results.

    `name` selects one server. Raises StartError if it has no run.
    """
    if name is None:
        runs_of_name = runs_by_name(servers.home)
        for item in sorted({*known_names(servers.home)} - runs_of_name.keys()):
            warn(f"cannot list the runs of `{item}`", hint=f"`deploy status {item}` shows the reason")
        runs = tuple(chain.from_iterable(runs_of_name.values()))
    else:
        require_name(name)
        runs = runs_of(servers.home, name)
        if not any(run.digest for run in runs):
            raise not_started(servers.home, name, hint="`deploy history` lists all")
    states = dict(_states(servers, name))
    return tuple(_starts(servers, runs, states))


def history_table(starts: Iterable[RunSummary], *, width: int | None = None) -> str:
    """Format runs as a table for a terminal."""
    header = ("run", "profile", "ready", "smoke test", "kernels", "best", "ended")
    rows = [
        (
            f"{start.name}/{start.run}",
            start.profile,
            "" if start.ready_seconds is None else f"{start.ready_seconds:.0f} s",
            _smoke_text(start),
            ", ".join(f"{count} {kind}" for kind, count in start.kernels.items()),
            "; ".join(map(str, start.best)),
            f"{start.ended}, {start.ended_at[:16]}Z" if start.ended_at else start.ended,
        )
        for start in starts
    ]
    return table(header, rows, width=width)


def _smoke_text(start: RunSummary) -> str:
    text = ", ".join(f"{count} {verdict}" for verdict, count in start.smoke.items())
    if start.soak_seconds:
        text += f", soak of {format_duration(start.soak_seconds)} ({start.soaked_at[:16]}Z)"
    return f"{text} ({', '.join(start.failed)})" if start.failed else text


def _starts(servers: Servers, runs: Iterable[RunDir], states: Mapping[str, tuple[str, str]]) -> Iterator[RunSummary]:
    for run in runs:
        if run.started is not None and run.digest:
            start, _ = summarize_run(run)
            status, running = states.get(_real_path(run.path), ("", ""))
            runtime = run.read("plan.json").get("runtime")
            if not status and not start.ended and runtime in servers.unreachable:
                start = replace(start, ended=f"cannot query {runtime}")
            if run.other_version:
                start = replace(start, ended=f"not read: {run.other_version}")
            if status:
                start = replace(start, status=status, ended=running, ended_at=None)
            yield start


def summarize_run(run: RunDir) -> tuple[RunSummary, tuple[BenchResult, ...]]:
    """Summarize a run from its run directory, without querying its server; also return its results."""
    name = run.path.parent.name
    results = tuple(recorded_results(run))
    smoke, seconds = run.read(SMOKE_FILE), run.read(PROCESSES_FILE).get("ready_seconds")
    overrides = requested(run, "overrides")
    ended, ended_at = _ending(run)
    soaked, soaked_at = _soak_of(smoke)
    checks = objects_in(smoke, "checks")
    ascending = sorted(map(_best_metrics, results), key=lambda best: best.metrics[metrics.OUTPUT.key] or 0.0)
    start = RunSummary(
        name=name,
        run=run.path.name,
        profile=str(requested(run, "profile") or ""),
        overrides=tuple(map(str, overrides)) if isinstance(overrides, list) else (),
        plan=run.digest,
        started_at=run.started.isoformat() if run.started else "",
        ready_seconds=float(seconds) if isinstance(seconds, int | float) else None,
        smoke=dict(Counter(str(check.get("verdict")) for check in checks)),
        soak_seconds=soaked,
        soaked_at=soaked_at,
        failed=tuple(str(check.get("name")) for check in checks if check.get("verdict") == _FAILED),
        kernels=_counted(run.read("kernels.json")),
        best=tuple({values.workload: values for values in ascending}.values()),
        status="",
        ended=ended,
        ended_at=ended_at,
        run_dir=str(run.path),
    )
    return start, results


def _best_metrics(result: BenchResult) -> BestMetrics:
    points = [point for point in result.points if point.offered_rps == result.knee_rps] if result.knee_rps else []
    best = max(points or result.points, key=lambda point: metrics.OUTPUT.value_of(point) or 0.0)
    return BestMetrics(
        workload=result.run.workload_name,
        load=_load(best),
        metrics={metric.key: metric.value_of(best) for metric in _BEST_METRICS},
        comparable=result.comparable,
    )


def _load(point: Point) -> str:
    return f"{point.concurrency} at a time" if point.offered_rps is None else f"{point.offered_rps:g} rps"


def _soak_of(smoke: Mapping[str, object]) -> tuple[float, str]:
    """Return the seconds and the end of the last soak that passed; 0 and "" if there was none."""
    soaked = smoke.get(SOAKED)
    seconds, ended = (soaked.get("seconds"), soaked.get("ended_at")) if isinstance(soaked, dict) else (None, None)
    return (float(seconds), str(ended)) if isinstance(seconds, int | float) else (0.0, "")


def _counted(gate: Mapping[str, object]) -> dict[str, int]:
    lines_by_kind = {kind: gate.get(kind) for kind in ("hits", "misses")}
    return {kind: len(lines) for kind, lines in lines_by_kind.items() if isinstance(lines, list)}


def _ending(run: RunDir) -> tuple[str, str | None]:
    exit_record = run.read(EXIT_FILE)
    reason, at = exit_record.get("how"), exit_record.get("ended_at")
    if not isinstance(reason, str):
        state = saved_state(run)
        reason, at = (state.detail, state.ended_at) if state else ("", None)
    moment = _parse_time(at)
    return reason, moment.isoformat() if moment else None


def _states(servers: Servers, name: str | None) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (run directory, (status, description)) of each existing server."""
    for server in servers.find(name):
        state = server.state
        running = "; ".join(filter(None, [f"runs, for {state.age()}", state.detail]))
        words = running if state.status is Status.RUNNING else state.exit_summary
        yield _real_path(Path(server.run_dir)), (state.status, words)


def _real_path(path: Path) -> str:
    return str(path.absolute().resolve())


def _parse_time(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
