"""Why a job is pending and how it ended, as text (slurm.schedmd.com/job_reason_codes.html, job_state_codes.html)."""

import re
from typing import Final

from orchestrator.runtimes.slurm.jobs import Job

_LOOK: Final = "`sinfo --Node --long` and `scontrol show partition` list nodes and partitions"
_ELSEWHERE: Final = f"select another partition with `--set slurm.partition=…`; {_LOOK}"
_ASK: Final = "ask the cluster's administrator; the controller's log has the reason"
_REASONS: Final = {  # text, and a hint if waiting does not help
    "None": ("Slurm has not considered it yet", ""),
    "Priority": ("jobs of higher priority run first", ""),
    "Resources": ("no node has enough free resources", ""),
    "BeginTime": ("its start time is in the future", ""),
    "Dependency": ("it depends on another job", ""),
    "Licenses": ("no license is free", ""),
    "Reservation": ("its reservation has not begun", ""),
    "NodeDown": ("its node is down", ""),
    "ReqNodeNotAvail": ("the required nodes are down, drained or reserved", f"wait for them, or {_ELSEWHERE}"),
    "PartitionDown": ("the partition is down", _ELSEWHERE),
    "PartitionInactive": ("the partition accepts no jobs", _ELSEWHERE),
    "PartitionConfig": ("no node of the partition has the requested resources", _ELSEWHERE),
    "PartitionNodeLimit": ("the job exceeds the node limit of the partition, or matching nodes are down", _ELSEWHERE),
    "PartitionTimeLimit": (
        "it exceeds the time limit of the partition",
        f"`--set slurm.time_limit=…`, or {_ELSEWHERE}",
    ),
    "BadConstraints": (
        "no node has the requested resources",
        f"check `slurm.sbatch_options` and `slurm.gpu_type`; {_LOOK}",
    ),
    "AccountNotAllowed": ("its account may not use the partition", "`--set slurm.account=…`, or another partition"),
    "QOSNotAllowed": ("its quality of service may not use the partition", "`--set slurm.qos=…`, or another partition"),
    "InvalidAccount": (
        "invalid account",
        "`--set slurm.account=…`; `sacctmgr show associations user=$USER` lists yours",
    ),
    "InvalidQOS": ("invalid quality of service", "`--set slurm.qos=…`; `sacctmgr show qos` lists them"),
    "JobHeldAdmin": ("held by an administrator", "ask the cluster's administrator"),
    "JobHeldUser": ("held by its user", "remove `--hold` from `slurm.sbatch_options`"),
    "DependencyNeverSatisfied": (
        "the job that it depends on has failed",
        "see `--dependency` in `slurm.sbatch_options`",
    ),
    "JobLaunchFailure": ("its node could not start it", _ASK),
    "launch failed requeued held": ("its node could not start it, and Slurm holds it", _ASK),
}
# A limit per job is permanent; a limit on all jobs of a user, an account or a group is temporary.
_TOO_MUCH: Final = re.compile(r"(QOS|Assoc)(Max|Min)\w*(PerJob|PerNode|WallDurationPerJobLimit)\w*")
_ENDS: Final = {
    "CANCELLED": "its job was cancelled",
    "TIMEOUT": "its job reached its time limit",
    "DEADLINE": "its job reached its deadline",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not boot",
    "PREEMPTED": "a job of higher priority preempted it",
    "OUT_OF_MEMORY": "it exceeded the memory of its job",
}


def pending_reason(job: Job) -> str:
    """Return the reason with Slurm's own word: `job 5 is pending: no node has enough free resources (Resources)`."""
    if job.state == "CONFIGURING":
        return f"job {job.id}: node {job.node} is booting"
    word = job.reason.partition(",")[0]
    text = f"{_REASONS[word][0]} ({job.reason})" if word in _REASONS else job.reason
    begins = f", expected at {job.begins[11:16]} UTC on {job.begins[:10]}" if job.begins else ""
    again = ", requeued" if job.restarts else ""
    return f"job {job.id} is pending{again}: {text}{begins}"


def unschedulable_hint(job: Job) -> str:
    """Return how to fix a job that can never run; "" for a job that only has to wait."""
    if not job.waits:
        return ""
    word = job.reason.partition(",")[0]
    if _TOO_MUCH.fullmatch(word):
        return "request less, or another quality of service: `--set slurm.qos=…`; `sacctmgr show qos` lists limits"
    return _REASONS[word][1] if word in _REASONS else ""


def exit_reason(job: Job) -> str:
    """Return Slurm's reason for the end of a job; "" if the exit code of the job says enough."""
    words = _ENDS.get(job.state, "")
    node = f" on {job.node}" if job.state == "NODE_FAIL" and job.node else ""
    return f"{words}{node} ({job.state})" if words else ""
