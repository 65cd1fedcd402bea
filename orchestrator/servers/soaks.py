"""What a run keeps of its soaks, and the load of the next one."""

from datetime import UTC, datetime

from orchestrator.bench.result_files import recorded_results
from orchestrator.runs.run_dir import FIRST_SAMPLE, SMOKE_FILE, SOAKED, STARTUP, RunDir
from orchestrator.verify.report import SmokeReport, Verdict


def save_report(run: RunDir, report: SmokeReport, *, of_start: bool = False) -> None:
    """Save a smoke test; `of_start` saves its seconds as a part of the start, and later tests keep them.

    A test without a soak keeps what is known of the last one; a failed soak removes it.
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
    """Return the requests in flight at the knee of the run's last benchmark that found one (Little's law)."""
    for result in reversed([*recorded_results(run)]):
        for point in result.points:
            if result.knee_rps is not None and point.offered_rps == result.knee_rps and point.latency is not None:
                return result.knee_rps * point.latency.e2e_from_send_s.mean
    return None
