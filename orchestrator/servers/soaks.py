"""Soaks of a run: their records, the load of the next soak, and the memory gauges of the server."""

import os
from datetime import UTC, datetime

from orchestrator.bench.result_files import recorded_results
from orchestrator.core.errors import HostError
from orchestrator.hosts.gpus import read_gpus
from orchestrator.hosts.ssh import ssh_runner
from orchestrator.hosts.survey import local
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import FIRST_SAMPLE, SMOKE_FILE, SOAKED, STARTUP, RunDir
from orchestrator.runtimes import runtime_class
from orchestrator.servers.group import Server
from orchestrator.verify.memory import CACHED_TOKEN_BYTES, MemoryGauge
from orchestrator.verify.report import SmokeReport, Verdict


def save_report(run: RunDir, report: SmokeReport, *, of_start: bool = False) -> None:
    """Save the report of a smoke test; with `of_start`, its seconds count as part of the start.

    Later tests keep those seconds. A test without a soak keeps the record of the last soak; a failed soak removes it.
    """
    soaks = [check for check in report.checks if check.name.endswith("soak") and check.verdict is not Verdict.SKIPPED]
    saved = run.read(SMOKE_FILE)
    record: dict[str, object] = {key: saved[key] for key in (SOAKED, STARTUP) if key in saved}
    if of_start:
        checked = sum(check.seconds for check in report.checks)
        record[STARTUP] = {FIRST_SAMPLE: report.first_sample_seconds, "smoke test": checked}
    if soaks:
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        done = all(check.verdict is Verdict.PASSED for check in soaks)
        record[SOAKED] = {"seconds": min(check.seconds for check in soaks), "ended_at": ended} if done else None
    run.save(SMOKE_FILE, {**report.to_dict(), **record})


def knee_requests(run: RunDir) -> float | None:
    """Return the requests in flight at the knee that the run's benchmarks found last (Little's law); None if none."""
    for result in reversed([*recorded_results(run)]):
        for point in result.points:
            if result.knee_rps is not None and point.offered_rps == result.knee_rps and point.latency is not None:
                return result.knee_rps * point.latency.e2e_from_send_s.mean
    return None


def memory_gauges(server: Server, plan: Plan) -> tuple[MemoryGauge, ...]:
    """Return the memory gauges of a running server; without GPUs, only the gauge of host memory."""
    kind, layout = runtime_class(server.runtime), plan.layout

    def of_host() -> int | None:
        try:
            return server.host_memory()
        except HostError:
            return None

    def of_gpus() -> int | None:
        try:
            remote = kind.resolve_host(server.backend.host_name, os.environ)
            inventory = read_gpus(plan.hardware.vendor, ssh_runner(remote) if remote else local)
        except HostError:
            return None
        sizes = [gpu.vram_used for gpu in (inventory.gpus if inventory else ()) if gpu.index in plan.gpus]
        return None if not sizes or None in sizes else sum(filter(None, sizes))

    schedulers = len(server.engines) * layout.gpus // layout.dp
    host = MemoryGauge(
        name="host memory",
        read=of_host,
        unwatched="" if of_host() is not None else f"the {kind.name} runtime does not report it",
        token_bytes=CACHED_TOKEN_BYTES * schedulers,
    )
    if not plan.gpus:
        return (host,)
    unwatched = "" if kind.is_local else f"the {kind.name} runtime starts servers on other hosts"
    if kind.is_local and of_gpus() is None:
        unwatched = "no tool on the host reports it"
    return (host, MemoryGauge(name="GPU memory", read=of_gpus, unwatched=unwatched))
