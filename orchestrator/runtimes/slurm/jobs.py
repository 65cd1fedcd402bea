"""Slurm's commands, parsers for their output, and the wait for the node of a job.

They use Slurm's oldest text formats (tested with 22.05): `squeue --format` lists this user's jobs, and `scontrol show
job` describes each. The types in the JSON output of both depend on the version of Slurm's data parser.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Final

from orchestrator.core.console import Progress, note
from orchestrator.core.errors import HostError, StartError
from orchestrator.core.polling import poll_until
from orchestrator.core.secrets import secret_variables
from orchestrator.core.subprocesses import CompletedProgram, run

_TIMEOUT: Final = 30.0  # timeout of a command in seconds: a busy controller answers late
_POLL: Final = 0.5  # seconds between two polls of a job
_ON_WAIT_INTERVAL: Final = 5.0  # seconds between two calls of `on_wait`
_RELIABLE_AFTER: Final = 5.0  # seconds after which a reason is reliable: the first one is often not the scheduler's
_QUEUE: Final = "--format=%i|%k"
_TIMES: Final = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
_NO_JOB: Final = "Invalid job id"
# For a job that is just ending, `scancel` prints nothing and exits with the low byte of the error (Slurm's
# src/scancel/scancel.c): ESLURM_ALREADY_DONE, seen with 22.05, or ESLURM_INVALID_JOB_ID.
_GONE: Final = frozenset({2021 % 256, 2017 % 256})
_SIGNALED: Final = 128
REQUEST_HINT: Final = (
    "`sinfo --format='%P %G %l %D %T'` lists partitions, GPUs, limits and states, `sacctmgr show associations "
    "user=$USER` your accounts, `scontrol ping` the controller; `--set slurm.partition=…`, or another key of `slurm`"
)
# Reasons that waiting does not change (slurm.schedmd.com/job_reason_codes.html).
_PERMANENT: Final = frozenset(
    {"ReqNodeNotAvail", "PartitionDown", "PartitionInactive", "PartitionConfig", "PartitionNodeLimit"}
    | {"PartitionTimeLimit", "BadConstraints", "AccountNotAllowed", "QOSNotAllowed", "InvalidAccount", "InvalidQOS"}
    | {"JobHeldAdmin", "JobHeldUser", "DependencyNeverSatisfied", "JobLaunchFailure", "launch failed requeued held"}
)
# A limit per job is permanent; a limit on all jobs of a user, an account or a group is temporary.
_LIMIT_REASON: Final = re.compile(r"(QOS|Assoc)(Max|Min)\w*(PerJob|PerNode|WallDurationPerJobLimit)\w*")
_ENDS: Final = {
    "CANCELLED": "its job was cancelled",
    "TIMEOUT": "its job reached its time limit",
    "DEADLINE": "its job reached its deadline",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not boot",
    "PREEMPTED": "a job of higher priority preempted it",
    "OUT_OF_MEMORY": "it exceeded the memory of its job",
}

WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
RUNNING: Final = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
ENDING: Final = frozenset({"COMPLETING"})


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as Slurm reports it; times are ISO 8601, UTC. `begins` is the start; if pending, the expected one."""

    id: str
    state: str = ""  # "" for a job that was not queried, or that Slurm no longer knows
    reason: str = ""  # why it is pending, or why it ended
    node: str = ""  # "" before it has a node
    restarts: int = 0
    exit_code: int = 0  # 128 + n if signal n ended it
    begins: str | None = None
    ended_at: str | None = None

    @property
    def waits(self) -> bool:
        """Whether the job is pending, for the first time or requeued."""
        return self.state in WAITING

    @property
    def runs(self) -> bool:
        """Whether the job has its node."""
        return self.state in RUNNING

    @property
    def is_over(self) -> bool:
        """Whether nothing of the job is running."""
        return not (self.waits or self.runs or self.state in ENDING)


def submit(options: Sequence[str], script: str, *arguments: str) -> str:
    """Submit a script; return the id of its job. Raises StartError with Slurm's reason.

    Slurm stores a job's environment on the controller's disk, so the job gets no variable with a secret name or value.
    """
    done = _run(["sbatch", "--parsable", *options, script, *arguments], env=dict.fromkeys(secret_variables()))
    if not done.ok:
        raise StartError(f"Slurm rejected the job: {last_error(done)}", hint=REQUEST_HINT)
    return done.stdout.strip().partition(";")[0]


def queued() -> Iterator[tuple[str, str]]:
    """Yield the id and comment of each pending, running or completing job of this user. Raises HostError."""
    for line in _query(["squeue", "--me", "--noheader", _QUEUE]).stdout.splitlines():
        number, _, comment = line.partition("|")
        if number.isdecimal():  # skips tasks of an array
            yield number, comment


def find_job(number: str) -> Job | None:
    """Return a job; None if unknown to Slurm, which forgets it after MinJobAge (300 s by default). Raises HostError."""
    done = _run(["scontrol", "show", "job", number], env=_TIMES)
    if not done.ok and _NO_JOB in done.stderr:
        return None
    return read_job(_require(done).stdout)


def read_job(text: str) -> Job:
    """Parse the output of `scontrol show job` for one job. Raises HostError for any other text."""
    match = re.search(r"JobState=(?P<state>[A-Z_]+)\S* Reason=(?P<reason>.*?) Dependency=", text)
    counts = re.search(r"Restarts=(?P<restarts>\d+) .*ExitCode=(?P<code>\d+):(?P<signal>\d+)", text)
    number = re.match(r"JobId=(\d+)", text)
    if match is None or counts is None or number is None:
        hint = "tested with 22.05; `sinfo --version` shows the version"
        raise HostError("cannot parse the output of `scontrol show job`", hint=hint)
    nodes = re.search(r"^\s+NodeList=(\S*)", text, re.MULTILINE)
    node = nodes[1] if nodes and nodes[1] != "(null)" else ""
    begins, ended_at = (_time(re.search(rf"{key}=(\S+)", text)) for key in ("StartTime", "EndTime"))
    if match["state"] == "NODE_FAIL" and "[" in node:
        done = _run(["sinfo", "--noheader", "--Node", f"--nodes={node}", "--states=down", "--format=%N"])
        node = ",".join(dict.fromkeys(done.stdout.split())) or node  # all nodes, if none is down any more
    number_of_signal = int(counts["signal"])
    return Job(
        id=number[1],
        state=match["state"],
        reason=match["reason"].replace("_", " "),
        node=node,
        restarts=int(counts["restarts"]),
        exit_code=_SIGNALED + number_of_signal if number_of_signal else int(counts["code"]),
        begins=begins,
        ended_at=ended_at,
    )


def node_address(node: str) -> str:
    """Return the address of a node in the cluster's configuration. Raises HostError."""
    output = _query(["scontrol", "show", "node", node]).stdout
    match = re.search(r"NodeAddr=(\S+)", output)
    return match[1] if match else node


def signal_server(number: str) -> None:
    """Signal the supervisor of a job to end its server; a second call kills it. Raises HostError."""
    _cancelled(["scancel", "--signal=TERM", "--batch", number])


def cancel(number: str) -> None:
    """Remove a job from the queue, or end it completely. Raises HostError."""
    _cancelled(["scancel", number])


def run_in_job_step(number: str, argv: Sequence[str], *, timeout: float) -> str:
    """Return the output of a program, run next to the server on its node; "" if it cannot run there."""
    words = ["srun", f"--jobid={number}", "--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--quiet", "--chdir=/"]
    try:
        done = run([*words, *argv], timeout=timeout)
    except HostError:
        return ""
    return done.stdout if done.ok else ""


def _cancelled(argv: Sequence[str]) -> None:
    done = _run(argv)
    if done.code not in _GONE and _NO_JOB not in done.stderr and "already completing or completed" not in done.stderr:
        _require(done)


def _query(argv: Sequence[str]) -> CompletedProgram:
    return _require(_run(argv, env=_TIMES))


def _run(argv: Sequence[str], env: Mapping[str, str | None] | None = None) -> CompletedProgram:
    return run(argv, env=env, timeout=_TIMEOUT)


def _require(done: CompletedProgram) -> CompletedProgram:
    if not done.ok:
        hint = "`scontrol ping` shows the state of the controller"
        raise HostError(f"`{done.argv[0]}` failed: {last_error(done)}", hint=hint)
    return done


def last_error(done: CompletedProgram) -> str:
    """Return the last line of a command's error, without the program's name."""
    if done.code == 124:
        return f"no response within {_TIMEOUT:.0f} s"
    lines = done.stderr.strip().splitlines()
    last = re.sub(r"^\w+:? (?:error|fatal): ", "", lines[-1]) if lines else f"exit code {done.code}"
    return last.removeprefix("Batch job submission failed: ").removeprefix("allocation failure: ")


def _time(match: re.Match[str] | None) -> str | None:
    try:
        return datetime.fromisoformat(match[1]).replace(tzinfo=UTC).isoformat() if match else None
    except ValueError:  # Unknown, N/A
        return None


def pending_reason(job: Job) -> str:
    """Return Slurm's reason: `job 5 is pending: Resources, expected at 16:38 UTC on 2026-11-22`."""
    if job.state == "CONFIGURING":
        return f"job {job.id}: node {job.node} is booting"
    text = "Slurm has not considered it yet" if job.reason == "None" else job.reason
    begins = f", expected at {job.begins[11:16]} UTC on {job.begins[:10]}" if job.begins else ""
    requeued = ", requeued" if job.restarts else ""
    return f"job {job.id} is pending{requeued}: {text}{begins}"


def unschedulable_hint(job: Job) -> str:
    """Return how to fix a job that can never run; "" for a job that only has to wait."""
    word = job.reason.partition(",")[0]
    if not job.waits or (word not in _PERMANENT and not _LIMIT_REASON.fullmatch(word)):
        return ""
    return f"slurm.schedmd.com/job_reason_codes.html explains `{word}`; {REQUEST_HINT}"


def exit_reason(job: Job) -> str:
    """Return Slurm's reason for the end of a job; "" if the job's exit code is sufficient."""
    words = _ENDS.get(job.state, "")
    node = f" on {job.node}" if job.state == "NODE_FAIL" and job.node else ""
    return f"{words}{node} ({job.state})" if words else ""


def wait_for_node(number: str, *, limit: float | None, hint: str, on_wait: Callable[[], object]) -> Job:
    """Wait, reporting the reason, until a job is running or has run.

    `hint` suggests another way to get a node; `on_wait` is called every few seconds. Raises StartError if the job can
    never run, was cancelled meanwhile, or has waited for `limit` seconds.
    """
    began = seen_to = time.monotonic()
    reasons: dict[str, float] = {}  # the time at which the current reason was first seen

    def on_tick(job: Job) -> None:
        nonlocal seen_to
        now, word = time.monotonic(), job.reason.partition(",")[0]
        if now - seen_to >= _ON_WAIT_INTERVAL:
            on_wait()
            seen_to = now
        since = reasons.get(word, now)
        reasons.clear()
        reasons[word] = since
        if now - since >= _RELIABLE_AFTER and (never := unschedulable_hint(job)):
            raise StartError(pending_reason(job), hint=never)
        suffix = f"; {hint}" if hint and now - since >= _RELIABLE_AFTER else ""
        progress.update(f"{pending_reason(job)}{suffix}", stage=f"{job.state} {word}", transient=f"{now - began:.0f} s")

    with Progress() as progress:
        job = poll_until(
            lambda job: not job.waits,
            lambda: _known(number),
            timeout=inf if limit is None else limit,
            interval=_POLL,
            on_tick=on_tick,
        )
    if job.waits:
        longer = "raise `slurm.queue_timeout` in the profile"
        message = f"{pending_reason(job)}; gave up after {limit:g} s"
        raise StartError(message, hint="; ".join(filter(None, [longer, hint])))
    if not job.node:
        hint = f"`scontrol show job {number}` shows details"
        raise StartError(f"job {number} ended before it started: {exit_reason(job) or job.state}", hint=hint)
    note(f"job {number} is running on {job.node}")
    return job


def _known(number: str) -> Job:
    job = find_job(number)
    if job is None:
        hint = "`sacct` may have a record of the job"
        raise StartError(f"job {number} disappeared from Slurm before it started", hint=hint)
    return job
