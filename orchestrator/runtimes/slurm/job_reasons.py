"""Why a job is pending and how it ended, as text (slurm.schedmd.com/job_reason_codes.html, job_state_codes.html)."""

import re
from typing import Final

from orchestrator.runtimes.slurm.jobs import Job

_LOOK: Final = "`sinfo --Node --long` and `scontrol show partition` say what there is"
_ELSEWHERE: Final = f"name another partition with `--set slurm.partition=…`; {_LOOK}"
_ASK: Final = "ask who runs the cluster; the controller's log says why"
_REASONS: Final = {  # text, and a hint if waiting does not help
    "None": ("Slurm has not looked at it yet", ""),
    "Priority": ("jobs of higher priority come first", ""),
    "Resources": ("no node has what it asks for free", ""),
    "BeginTime": ("its time to begin has not come", ""),
    "Dependency": ("another job has to end first", ""),
    "Licenses": ("a license is not free", ""),
    "Reservation": ("its reservation has not begun", ""),
    "NodeDown": ("its node is down", ""),
    "ReqNodeNotAvail": ("the nodes that it needs are down, drained or reserved", f"wait for them, or {_ELSEWHERE}"),
    "PartitionDown": ("the partition is down", _ELSEWHERE),
    "PartitionInactive": ("the partition takes no jobs", _ELSEWHERE),
    "PartitionConfig": ("the partition has no node with what it asks for", _ELSEWHERE),
    "PartitionNodeLimit": ("the partition does not give that many nodes, or those that fit are down", _ELSEWHERE),
    "PartitionTimeLimit": (
        "it asks for more time than the partition gives",
        f"`--set slurm.time_limit=…`, or {_ELSEWHERE}",
    ),
    "BadConstraints": (
        "no node can ever have what it asks for",
        f"see `slurm.sbatch_options` and `slurm.gpu_type`; {_LOOK}",
    ),
    "AccountNotAllowed": ("its account may not use the partition", "`--set slurm.account=…`, or another partition"),
    "QOSNotAllowed": ("its quality of service may not use the partition", "`--set slurm.qos=…`, or another partition"),
    "InvalidAccount": (
        "its account is none",
        "`--set slurm.account=…`; `sacctmgr show associations user=$USER` lists yours",
    ),
    "InvalidQOS": ("its quality of service is none", "`--set slurm.qos=…`; `sacctmgr show qos` lists them"),
    "JobHeldAdmin": ("an administrator holds it", "ask who runs the cluster"),
    "JobHeldUser": ("it is held", "leave `--hold` out of `slurm.sbatch_options`"),
    "DependencyNeverSatisfied": (
        "the job that has to end first never ends as it should",
        "see `--dependency` in `slurm.sbatch_options`",
    ),
    "JobLaunchFailure": ("its node could not start it", _ASK),
    "launch failed requeued held": ("its node could not start it, and Slurm holds it", _ASK),
}
# A limit per job is permanent; a limit on all jobs of a user, an account or a group is temporary.
_TOO_MUCH: Final = re.compile(r"(QOS|Assoc)(Max|Min)\w*(PerJob|PerNode|WallDurationPerJobLimit)\w*")
_ENDS: Final = {
    "CANCELLED": "its job was cancelled",
    "TIMEOUT": "the time of its job was over",
    "DEADLINE": "the deadline of its job was over",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not boot",
    "PREEMPTED": "a job of higher priority took its place",
    "OUT_OF_MEMORY": "it took more memory than its job has",
}


def pending_reason(job: Job) -> str:
    """Return the reason with Slurm's own word: `job 5 waits: no node has what it asks for free (Resources)`."""
    if job.state == "CONFIGURING":
        return f"job {job.id}: its node {job.node} boots"
    word = job.reason.partition(",")[0]
    said = f"{_REASONS[word][0]} ({job.reason})" if word in _REASONS else job.reason
    begins = f", expected at {job.begins[11:16]} UTC on {job.begins[:10]}" if job.begins else ""
    again = ", requeued" if job.restarts else ""
    return f"job {job.id} waits{again}: {said}{begins}"


def unschedulable_hint(job: Job) -> str:
    """Return how to fix a job that can never run; "" for a job that only has to wait."""
    if not job.waits:
        return ""
    word = job.reason.partition(",")[0]
    if _TOO_MUCH.fullmatch(word):
        return "ask for less, or for another quality of service: `--set slurm.qos=…`; `sacctmgr show qos` lists limits"
    return _REASONS[word][1] if word in _REASONS else ""


def exit_reason(job: Job) -> str:
    """Return Slurm's reason for the end of a job; "" if the exit code of the job says enough."""
    words = _ENDS.get(job.state, "")
    node = f" on {job.node}" if job.state == "NODE_FAIL" and job.node else ""
    return f"{words}{node} ({job.state})" if words else ""
