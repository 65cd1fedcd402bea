"""`deploy history`: all runs, from their run directories and their recorded results."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from measured_samples import marked, save, tp8
from run_samples import past_run

from orchestrator.bench.result import BenchResult, IssueKind
from orchestrator.core.errors import HostError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.report.history import history, history_table
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import EXIT_FILE, ServerState, Status, Unit
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.servers.exit_record import failure_reason, record_exit, stop_server
from orchestrator.servers.group import Server
from orchestrator.servers.servers import Servers
from orchestrator.servers.soaks import knee_requests, save_report
from orchestrator.servers.start.verify import smoke_server
from orchestrator.servers.targets import record_result, side_of_server
from orchestrator.verify.report import CheckResult, SmokeReport, Verdict

CHECK = CheckResult(name="served model", verdict=Verdict.PASSED, evidence="tiny", seconds=0.1)


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    home = Home(tmp_path / "home")
    return Servers(home, {"process": ProcessRuntime(home)})


def result_of(run: RunDir, at: str, *, name: str = "owl") -> BenchResult:
    """Return a benchmark result of the run."""
    result = tp8()
    provenance = replace(result.run.provenance, name=name, plan_digest=run.digest + "0" * 56)
    return replace(result, run=replace(result.run, provenance=provenance, started_at=at))


def test_history_lists_runs_newest_first(servers: Servers, tmp_path: Path) -> None:
    first = past_run(servers.home, 1)
    second = past_run(servers.home, 2, verified=False)
    second.save("kernels.json", {"hits": [1, 2], "misses": [3]})
    past_run(servers.home, 3, "server.port=2", verified=None, running=True)
    past_run(servers.home, 1, name="hen")
    for run, folder in ((first, "a"), (second, "b")):
        record_result(run, save(result_of(run, "2026-07-01T01:00:00Z"), tmp_path / folder).parent)

    owl = history(servers, "owl")

    assert [(row.run[6:8], row.status) for row in owl] == [("03", "running"), ("02", ""), ("01", "")]
    assert owl[0].ended.startswith("runs, for ")
    assert owl[0].smoke == {}
    assert owl[0].ready_seconds is None
    assert owl[1].smoke == {"failed": 1, "passed": 1}
    assert owl[1].failed == ("streaming matches",)
    assert owl[1].kernels == {"hits": 2, "misses": 1}
    assert owl[2].ready_seconds == 12.5
    assert (owl[2].ended, owl[2].ended_at) == ("stopped", "2026-07-01T00:10:00+00:00")
    assert [len(row.best) for row in owl] == [0, 1, 1]
    assert str(owl[2].best[0]).startswith("wafer-20k-1k: output tok/s 1,478")
    assert str(owl[2].best[0]).endswith(" at 1.5 rps")  # the knee, not the rate with the most tokens
    assert {row.name for row in history(servers, None)} == {"hen", "owl"}
    text = history_table(owl)
    assert "1 failed, 1 passed (streaming matches)" in text
    assert "2 hits, 1 misses" in text


def test_recorded_results_are_found_from_any_directory(servers: Servers, tmp_path: Path) -> None:
    run = past_run(servers.home, 1, "server.port=2")
    result = result_of(run, "2026-07-01T01:00:00Z")
    save(result, tmp_path / "elsewhere")
    for directory in ("removed", "elsewhere", "elsewhere"):
        record_result(run, tmp_path / directory)
    [row] = history(servers, "owl")
    assert [best.workload for best in row.best] == ["wafer-20k-1k"]
    assert row.overrides == ("server.port=2",)
    record_result(run, save(result_of(run, "2026-07-01T02:00:00Z"), tmp_path / "second").parent)
    [merged] = history(servers, "owl")
    assert len(merged.best) == 1, "only the better result of each workload"


def test_result_with_comparability_issue_is_labeled(servers: Servers, tmp_path: Path) -> None:
    run = past_run(servers.home, 1)
    result = marked(result_of(run, "2026-07-01T01:00:00Z"), IssueKind.KERNEL_MISS)
    record_result(run, save(result, tmp_path / "results").parent)
    [row] = history(servers, "owl")
    assert "NOT COMPARABLE" in str(row.best[0])


def test_corrupt_result_is_skipped(servers: Servers, tmp_path: Path) -> None:
    run = past_run(servers.home, 1)
    save(result_of(run, "2026-07-01T01:00:00Z"), tmp_path / "b")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "result.json").write_text("{")
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / "result.json")
    for folder in "abc":
        record_result(run, tmp_path / folder)
    [row] = history(servers, "owl")
    assert len(row.best) == 1


def server_of(run: RunDir, runtime: "Stopping") -> Server:
    fields = {"profile": "", "plan_digest": "", "url": "", "runtime_id": "1"}
    unit = Unit(runtime="it", name="owl", run_dir=str(run.path), **fields)
    return Server.of(unit, runtime)  # type: ignore[arg-type]  # an incomplete runtime


class Stopping:
    """A runtime with one server in the given state."""

    def __init__(self, status: Status, detail: str = "", *, unreachable: bool = False) -> None:
        self.status, self.detail, self.unreachable = status, detail, unreachable

    def state(self, _: Unit) -> ServerState:
        if self.unreachable:
            raise HostError("the daemon does not answer")
        fields = {"exit_code": 137, "restarts": 3, "started_at": None, "ended_at": "2026-07-01T05:00:00+00:00"}
        return ServerState(status=self.status, detail=self.detail, **fields)  # type: ignore[arg-type]

    def stop(self, _: Unit, *, grace: float) -> None:
        assert grace == 5


@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        (Stopping(Status.RUNNING), "replaced"),
        (Stopping(Status.EXITED, "killed by SIGKILL"), "killed by SIGKILL"),
        (Stopping(Status.UNKNOWN, unreachable=True), "replaced"),
        (Stopping(Status.NOT_FOUND), ""),
    ],
)
def test_exit_reason_outlives_the_container(servers: Servers, runtime: Stopping, reason: str) -> None:
    run = past_run(servers.home, 1)
    (run.path / "process.json").unlink()
    stop_server(server_of(run, runtime), home=servers.home, grace=5, reason="replaced")
    [row] = history(servers, "owl")
    assert row.ended == reason
    assert row.ended_at == ("2026-07-01T05:00:00+00:00" if runtime.status is Status.EXITED else row.ended_at)


def test_exit_is_recorded_only_in_own_run_directory(servers: Servers, tmp_path: Path) -> None:
    outside_run = RunDir(tmp_path / "elsewhere")
    outside_run.path.mkdir()
    hen_run = past_run(servers.home, 1, name="hen")
    for run in (outside_run, hen_run):
        before = contents(run)
        stop_server(server_of(run, Stopping(Status.RUNNING)), home=servers.home, grace=5, reason="x")
        assert contents(run) == before


def test_smoke_report_is_saved_only_in_own_run_directory(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report was once saved in any directory that a label named, and marked another server as verified."""
    outside_run = RunDir(tmp_path / "elsewhere")
    outside_run.path.mkdir()
    hen_run = past_run(servers.home, 1, name="hen", verified=None)
    (outside_run.path / "plan.json").write_bytes((hen_run.path / "plan.json").read_bytes())
    report = SmokeReport(url="http://127.0.0.1:1", served_name="tiny", checks=())
    monkeypatch.setattr("orchestrator.servers.start.verify.run_smoke_test", lambda *_, **__: report)
    for run in (outside_run, hen_run):
        before = contents(run)
        runtime = Stopping(Status.RUNNING)
        unit = server_of(run, runtime).unit
        monkeypatch.setattr(Stopping, "find", lambda _, __, found=unit: (found,), raising=False)
        with_runtime = replace(servers, runtimes={"it": runtime})  # type: ignore[dict-item]
        with pytest.raises(StartError, match="is not in this home"):
            smoke_server(with_runtime, "owl", strict_kernels=False)
        with pytest.raises(StartError, match="is not in this home"):
            side_of_server(with_runtime, "owl")
        assert contents(run) == before


def contents(run: RunDir) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_exit_record_is_redacted(servers: Servers) -> None:
    run, message = past_run(servers.home, 1), "api_key='wJ4-zTq8-mMv2'"
    exited = ServerState(status=Status.EXITED, exit_code=1, restarts=0, started_at=None, detail=message)
    for reason, state in ((failure_reason(StartError(message)), None), ("stopped", exited)):
        record_exit(run, reason, state)
        content = (run.path / EXIT_FILE).read_text()
        assert "[REDACTED]" in content
        assert "wJ4" not in content


def test_secret_equal_to_verdict_does_not_change_verdicts(servers: Servers) -> None:
    Secret("passed")
    report = SmokeReport(url="http://127.0.0.1:1", served_name="tiny", checks=(CHECK,))
    past_run(servers.home, 1).save("smoke.json", report.to_dict())
    (row,) = history(servers, "owl")
    assert row.smoke == {"passed": 1}


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ((CHECK,), "1 passed"),
        ((CHECK, replace(CHECK, name="soak", seconds=3600.2)), "2 passed, soak of 60 min (20"),
        (
            tuple(replace(CHECK, name=f"replica {number}: soak", seconds=600 * number) for number in (1, 2)),
            "2 passed, soak of 10 min (20",
        ),
        ((replace(CHECK, name="soak", seconds=18.3),), "1 passed, soak of 18 s (20"),
        ((replace(CHECK, name="soak", verdict=Verdict.FAILED),), "1 failed (soak)"),
    ],
)
def test_history_shows_soak_duration(servers: Servers, checks: tuple[CheckResult, ...], expected: str) -> None:
    save_report(past_run(servers.home, 1), report_of(*checks))
    assert expected in history_table(history(servers, "owl"))


def report_of(*checks: CheckResult) -> SmokeReport:
    return SmokeReport(url="http://127.0.0.1:1", served_name="tiny", checks=checks)


def test_soak_is_kept_until_a_failed_check(servers: Servers) -> None:
    run, soak = past_run(servers.home, 1), replace(CHECK, name="soak", seconds=3600.2)

    def table() -> str:
        return history_table(history(servers, "owl"))

    save_report(run, report_of(CHECK, soak))
    [first] = history(servers, "owl")
    save_report(run, report_of(CHECK, replace(soak, verdict=Verdict.SKIPPED, seconds=0.0)))
    [second] = history(servers, "owl")
    assert (second.soak_seconds, second.soaked_at) == (3600.2, first.soaked_at)
    assert f"1 passed, 1 skipped, soak of 60 min ({first.soaked_at[:16]}Z)" in table()
    save_report(run, report_of(CHECK, replace(soak, verdict=Verdict.FAILED)))
    assert "soak of" not in table()
    save_report(run, report_of(replace(CHECK, verdict=Verdict.FAILED)))
    assert "soak of" not in table()
    save_report(past_run(servers.home, 2), report_of(CHECK))
    assert "soak of" not in table()


def test_knee_requests_come_from_latest_benchmark(servers: Servers, tmp_path: Path) -> None:
    run, result = past_run(servers.home, 1), tp8()
    assert knee_requests(run) is None
    record_result(run, tmp_path / "gone")
    assert knee_requests(run) is None
    [knee] = [point for point in result.points if point.offered_rps == result.knee_rps]
    assert knee.latency is not None
    save(result, tmp_path / "measured")
    record_result(run, tmp_path / "measured")
    assert result.knee_rps is not None
    assert knee_requests(run) == pytest.approx(result.knee_rps * knee.latency.e2e_from_send_s.mean)


def test_full_disk_does_not_prevent_stop(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(*_: object, **__: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    run = past_run(servers.home, 1)
    monkeypatch.setattr("orchestrator.runs.run_dir.atomic_write_all", disk_full)
    stop_server(server_of(run, Stopping(Status.RUNNING)), home=servers.home, grace=5, reason="x")
    assert not (run.path / EXIT_FILE).exists()


def as_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def as_deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def damage(path: Path) -> None:
    path.write_text('{"checks": [7, {}], "ready_seconds": "soon", "how": 5, "hits": 7, "request": [], "ended_at": []}')


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [as_fifo, as_link, as_deep, damage])
@pytest.mark.parametrize(
    "file", ["smoke.json", "processes.json", "request.json", "kernels.json", "exit.json", "plan.json", "process.json"]
)
def test_malformed_records_do_not_break_history(servers: Servers, make: Callable[[Path], None], file: str) -> None:
    run = past_run(servers.home, 1)
    past_run(servers.home, 2)
    make(run.path / file)
    assert len(history(servers, "owl")) == 2
    assert history_table(history(servers, None), width=80)


def test_run_of_unreachable_docker_is_not_reported_as_ended(tmp_path: Path) -> None:
    class Unreachable:
        def find(self, _name: str | None = None) -> tuple[Unit, ...]:
            raise HostError("the daemon does not answer")

    home = Home(tmp_path)
    run = past_run(home, 1, "runtime=docker", "engine.image=x")
    (run.path / "process.json").unlink()
    [row] = history(Servers(home, {"docker": Unreachable()}), "owl")  # type: ignore[dict-item]
    assert row.ended == "cannot query docker"


def test_unknown_name_is_rejected(servers: Servers) -> None:
    past_run(servers.home, 1)
    with pytest.raises(StartError, match="no previous run of `owls`"):
        history(servers, "owls")
    with pytest.raises(UsageError):
        history(servers, "../owl")
