"""The job: its sbatch options, its script, and the command in the site's container. Pure."""

import shlex
from collections.abc import Iterator
from typing import Final

from orchestrator.plan.plan import Plan
from orchestrator.profiles.slurm import SlurmSection
from orchestrator.runtimes.base import LOG

SCRIPT: Final = "job.sh"
JOB_LOG: Final = "job.log"  # output of Slurm and of this tool; the server's output is in `server.log`
MODULE: Final = "orchestrator.runtimes.slurm.job"
_OF_GATEWAY: Final = ("--cpus-per-task=2", "--mem=2G")  # it forwards requests and keeps a prefix tree
_GPU_OPTION: Final = {"amd": "--rocm", "nvidia": "--nv"}  # of apptainer exec


def job_of(plan: Plan) -> SlurmSection:
    """Return the plan's job. Raises ValueError for a plan of another runtime."""
    if plan.slurm is None:
        raise ValueError(plan.runtime)
    return plan.slurm


def job_options(plan: Plan, name: str) -> tuple[str, ...]:
    """Return the sbatch options for the job of a server or of a gateway (sbatch(1), 22.05).

    One node and one task: sglang starts its ranks itself. Only the supervisor gets the signal (`B:`), and it ends the
    server as `deploy down` does; by default Slurm signals every process at once.
    """
    return tuple(_options(plan, job_of(plan), name))


def _options(plan: Plan, job: SlurmSection, name: str) -> Iterator[str]:
    if not plan.gateway:
        yield from job.sbatch_options  # first: sbatch uses the last of repeated options
    yield from (f"--job-name=deploy-{name}", "--nodes=1", "--ntasks=1")
    for option, value in (
        ("partition", (plan.gateway and job.gateway_partition) or job.partition),
        ("account", job.account),
        ("qos", job.qos),
        ("time", job.time_limit),
        ("gres", gres(plan)),
    ):
        if value is not None:
            yield f"--{option}={value}"
    if plan.gateway:
        yield from _OF_GATEWAY
    elif job.exclusive:
        yield from ("--exclusive", "--mem=0")
    yield f"--signal=B:TERM@{job.signal_before_end}"
    yield "--requeue" if job.requeue else "--no-requeue"  # the cluster's default may be either (JobRequeue)


def gres(plan: Plan) -> str | None:
    """Return the GPUs in Slurm's syntax, up to the last one of the ranks; None on a CPU and for a gateway."""
    if not plan.gpus or plan.gateway:
        return None
    kind = job_of(plan).gpu_type
    return ":".join(filter(None, ("gpu", kind, str(plan.gpus[-1] + 1))))


def job_script(plan: Plan, name: str) -> str:
    """Return the script for sbatch. `deploy up` passes a Python and a run directory; without them it runs `server.sh`.

    Neither the script nor its arguments hold a secret: a file in the run directory does.
    """
    command = "gateway.sh" if plan.gateway else "server.sh"
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in job_options(plan, name))]
    lines += [
        "# `deploy up` submits this with its own Python and the directory of its run, where the server's output goes",
        f"# to {LOG}, secrets removed. By hand, `sbatch {SCRIPT}` in this folder runs {command}.",
        f"[ $# -gt 0 ] || exec sh ./{command}",
        f'exec "$1" -P -m {shlex.quote(MODULE)} "$2"',
    ]
    return "\n".join(lines) + "\n"


def container_words(plan: Plan, home: str | None) -> tuple[str, ...]:
    """Return the command prefix of a site with containers; `home` is mounted at the same path."""
    job = job_of(plan)
    if job.container == "pyxis":
        mounts = (f"--container-mounts={home}:{home}", f"--container-workdir={home}") if home else ()
        return ("srun", "--mpi=none", "--kill-on-bad-exit=1", f"--container-image={job.image}", *mounts)
    if job.container == "apptainer":
        gpus = (option,) if (option := _GPU_OPTION.get(plan.hardware.vendor)) else ()
        bound = ("--bind", home, "--pwd", home) if home else ()
        return ("apptainer", "exec", *gpus, *bound, str(job.image))
    return ()
