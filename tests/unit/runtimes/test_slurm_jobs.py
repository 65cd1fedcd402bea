"""Recorded Slurm 22.05 output about jobs, and the state of a server from it."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.core.errors import HostError, StartError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.runtimes.base import Status, Unit
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.jobs import Job, exit_reason, pending_reason, read_job, unschedulable_hint
from orchestrator.runtimes.slurm.record import FILE, START, JobComment, Submission, read_submission
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from orchestrator.runtimes.slurm.state import saved_state, server_state
from orchestrator.runtimes.supervisor.record import CONFIG, Record, write_fields

RECORDED = Path(__file__).with_name("slurm_recorded")
COMMENT = JobComment(
    name="glm",
    profile="mi355x-tp8",
    plan="6204c84e",
    port=30000,
    run="/home/me/runs/glm/20261122T162449Z-6204c84e",
)


def recorded(name: str) -> Job:
    return read_job((RECORDED / f"{name}.txt").read_text())


def completed(stdout: str = "", *, stderr: str = "", code: int = 0) -> CompletedProgram:
    return CompletedProgram(argv=("scontrol",), code=code, stdout=stdout, stderr=stderr)


def record(*, started: str, code: int | None = None) -> Record:
    return Record(
        name="glm",
        profile="mi355x-tp8",
        plan_digest="6204c84e",
        url="http://n0:30000",
        argv=("python3",),
        started_at=started,
        token=COMMENT.run,
        supervisor="boot/1/1",
        server=None,
        output=None,
        exit_code=code,
        ended_at=started if code is not None else None,
        stopped=False,
    )


@pytest.mark.parametrize(
    ("name", "state", "node", "restarts", "code"),
    [
        ("pending", "PENDING", "", 0, 0),
        ("running", "RUNNING", "n0", 0, 0),
        ("ending", "COMPLETING", "n1", 0, 0),
        ("cancelled", "CANCELLED", "n1", 0, 143),
        ("failed", "FAILED", "n1", 0, 3),
        ("node-fail", "NODE_FAIL", "n1", 0, 143),
        ("requeued", "PENDING", "", 1, 0),
    ],
)
def test_recorded_job_is_parsed(name: str, state: str, node: str, restarts: int, code: int) -> None:
    job = recorded(name)
    assert (job.state, job.node, job.restarts, job.exit_code) == (state, node, restarts, code)
    assert (job.waits, job.runs) == (state == "PENDING", state == "RUNNING")
    assert job.is_over == (state in {"CANCELLED", "FAILED", "NODE_FAIL"})


def test_failed_node_of_several_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (RECORDED / "node-fail.txt").read_text()
    monkeypatch.setattr(jobs, "run", lambda argv, **_: completed("n1\nn1\n" * ("--states=down" in argv)))
    assert read_job(re.sub(r"(?m)^( +NodeList=).*", r"\1n[0-1]", text)).node == "n1"


def test_invalid_job_output_is_rejected() -> None:
    with pytest.raises(HostError, match="cannot parse"):
        read_job("slurm_load_jobs: something else")


def test_forgotten_job_is_none_but_unreachable_controller_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = "slurm_load_jobs error: Invalid job id specified"
    monkeypatch.setattr(jobs, "run", lambda *_, **__: completed(stderr=stderr, code=1))
    assert jobs.find_job("7") is None
    stderr = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    monkeypatch.setattr(jobs, "run", lambda *_, **__: completed(stderr=stderr, code=1))
    with pytest.raises(HostError, match="Unable to contact slurm controller"):
        jobs.find_job("7")


def test_sbatch_rejection_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: "
    stderr += "Invalid partition name specified"
    monkeypatch.setattr(jobs, "run", lambda *_, **__: completed(stderr=stderr, code=1))
    with pytest.raises(StartError, match="rejected the job: Invalid partition name specified") as caught:
        jobs.submit(("--partition=x",), "job.sh")
    assert "--set slurm.partition=" in caught.value.hint


def test_job_environment_contains_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    values_by_name: dict[str, str | None] = {}
    monkeypatch.setattr(
        jobs, "run", lambda _, *, env, timeout: values_by_name.update(env) or completed(f"{timeout:.0f};cluster\n")
    )
    monkeypatch.setenv("MY_TOKEN", "one")
    monkeypatch.setenv("HARMLESS", f"{Secret('another').reveal()}\n")
    assert jobs.submit((), "job.sh").isdecimal()
    assert {"MY_TOKEN", "HARMLESS"} <= values_by_name.keys()
    assert set(values_by_name.values()) == {None}


def test_own_jobs_are_recognized_by_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "run", lambda *_, **__: completed((RECORDED / "queue.txt").read_text()))
    assert {JobComment.read(text) for _, text in jobs.queued()} == {COMMENT}
    assert JobComment.read(COMMENT.to_text()) == COMMENT


@pytest.mark.parametrize(
    "text",
    ["(null)", "", "a note", "[1]", '{"kind": "other"}', '{"kind": "deploy"}']
    + [
        replace(COMMENT, **{key: value}).to_text()
        for key, value in (("name", "../x"), ("run", "runs"), ("port", "1"), ("port", True), ("profile", "a\nb"))
    ],
)
def test_comments_of_unmanaged_jobs_are_ignored(text: str) -> None:
    assert JobComment.read(text) is None


def test_pending_reason_includes_slurm_code() -> None:
    job = recorded("pending")
    assert pending_reason(job).startswith("job 3 is pending: Resources, expected at ")
    assert unschedulable_hint(job) == ""
    assert pending_reason(recorded("requeued")).startswith("job 1 is pending, requeued: BeginTime")
    assert "PartitionTimeLimit" in pending_reason(recorded("never"))
    assert (
        pending_reason(replace(job, reason="QOSMaxGRESPerUser", begins=None)) == "job 3 is pending: QOSMaxGRESPerUser"
    )


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionTimeLimit",
        "ReqNodeNotAvail, UnavailableNodes:n0",
        "QOSMaxWallDurationPerJobLimit",
        "AssocMaxGRESPerJob",
        "BadConstraints",
    ],
)
def test_permanent_pending_reasons_have_a_hint(reason: str) -> None:
    assert reason.partition(",")[0] in unschedulable_hint(replace(recorded("pending"), reason=reason))


@pytest.mark.parametrize("reason", ["QOSMaxGRESPerUser", "QOSGrpGRES", "Priority", "Resources", "BeginTime", "None"])
def test_temporary_pending_reasons_have_no_hint(reason: str) -> None:
    assert unschedulable_hint(replace(recorded("pending"), reason=reason)) == ""
    assert unschedulable_hint(replace(recorded("running"), reason="PartitionTimeLimit")) == ""


def test_slurm_job_state_explains_exit_code(tmp_path: Path) -> None:
    started = "2026-11-22T16:29:00+00:00"
    assert exit_reason(recorded("node-fail")) == "its node failed on n1 (NODE_FAIL)"
    state = server_state(recorded("cancelled"), record(started=started, code=143), tmp_path)
    assert (state.status, state.exit_code, state.detail) == (Status.EXITED, 143, "its job was cancelled (CANCELLED)")
    state = server_state(recorded("failed"), record(started=started, code=137), tmp_path)
    assert (state.exit_code, state.detail) == (137, "killed by SIGKILL")


def test_job_failed_before_start_shows_last_log_line(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("/bin/sh: 5: /shared/python: not found\n")
    state = server_state(recorded("failed"), None, tmp_path)
    assert state.detail == "exit code 3: /bin/sh: 5: /shared/python: not found"


def test_record_from_before_requeue_is_ignored(tmp_path: Path) -> None:
    job = replace(recorded("running"), restarts=1, begins="2026-11-22T16:29:00+00:00")
    old = record(started="2026-11-22T16:20:00+00:00", code=143)
    assert server_state(job, old, tmp_path).status is Status.RUNNING
    fresh = record(started="2026-11-22T16:28:58+00:00", code=143)  # the clock is slightly behind
    assert server_state(job, fresh, tmp_path).status is Status.EXITED


def test_exited_server_with_running_job_is_exited(tmp_path: Path) -> None:
    state = server_state(recorded("running"), record(started="2026-11-22T16:29:00+00:00", code=0), tmp_path)
    assert (state.status, state.detail) == (Status.EXITED, "exit code 0")


def test_state_of_forgotten_job_comes_from_records(tmp_path: Path) -> None:
    assert server_state(None, None, tmp_path).detail == "its node failed, or its job was cancelled"
    assert saved_state(tmp_path) is None
    submission = Submission(job="5", comment=COMMENT, python="/p", stopped=True)
    write_fields(tmp_path / FILE, asdict(submission))
    assert read_submission(tmp_path) == submission
    content = saved_state(tmp_path)
    assert content is not None
    assert content.detail == "stopped"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": "x"}'])
def test_unreadable_submission_record_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "slurm.json").write_text(text)
    with pytest.raises(HostError, match=r"cannot read the record `.*slurm\.json`"):
        read_submission(tmp_path)


def test_unreadable_record_is_unknown_and_cancels_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a number `scontrol show job` lists every job."""
    run_dir = tmp_path / "runs" / "glm" / "20261122T162449Z-6204c84e"
    run_dir.mkdir(parents=True)
    (run_dir / "slurm.json").write_text("{")
    programs: list[str] = []
    monkeypatch.setattr(jobs, "run", lambda argv, **_: programs.append(argv[0]) or completed())
    runtime = SlurmRuntime(Home(tmp_path))
    [handle] = runtime.find()
    assert runtime.state(handle).status is Status.UNKNOWN
    assert runtime.process_cmdlines(handle) == ()
    with pytest.raises(HostError, match="cannot read"):
        runtime.stop(handle, grace=0)
    assert set(programs) == {"squeue"}


@pytest.mark.parametrize("below", ["elsewhere", "home/runs/other/20261122T162449Z-6204c84e", "home/runs"])
def test_stop_does_not_modify_run_of_another_job(below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may change a job's comment could once choose where files of these names were removed."""
    run_dir = tmp_path / below
    run_dir.mkdir(parents=True)
    comment = replace(COMMENT, run=str(run_dir))
    other_job = Submission(job="8", comment=comment, python="python3", stopped=False)
    write_fields(run_dir / FILE, asdict(other_job))  # the record of another job
    for name in (START, CONFIG):
        (run_dir / name).write_text("kept")
    before = {path: path.read_bytes() for path in run_dir.iterdir()}
    monkeypatch.setattr(jobs, "find_job", lambda _: None)
    runtime = SlurmRuntime(Home(tmp_path / "home"))
    handle = Unit(runtime="slurm", name="glm", profile="", plan_digest="", url="", run_dir=str(run_dir), runtime_id="7")
    runtime.stop(handle, grace=0)
    assert {path: path.read_bytes() for path in run_dir.iterdir()} == before
    runtime.stop(replace(handle, runtime_id="8"), grace=0)  # its own job, started from any home
    assert (submission := read_submission(run_dir)) is not None
    assert submission.stopped
    assert [path.name for path in run_dir.iterdir()] == ["slurm.json"]


def test_completing_job_has_no_exit_code(tmp_path: Path) -> None:
    state = server_state(recorded("ending"), None, tmp_path)
    assert (state.status, state.exit_code, state.detail) == (Status.EXITED, None, "its job is completing")
