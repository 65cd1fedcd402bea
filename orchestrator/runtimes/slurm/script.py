"""The job: its sbatch options, its script, and the command in the site's container. Pure."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.engine.options import Meaning
from orchestrator.plan.host_needs import host_needs, mebibytes
from orchestrator.plan.plan import Plan
from orchestrator.profiles.slurm import SlurmSection
from orchestrator.runtimes.base import LOG

SCRIPT: Final = "job.sh"
JOB_LOG: Final = "job.log"  # output of Slurm and of this tool; the server's output is in `server.log`
MODULE: Final = "orchestrator.runtimes.slurm.job"
_OF_GATEWAY: Final = ("--cpus-per-task=2", "--mem=2G")  # a gateway forwards requests and keeps a prefix tree
# All nodes run `server.sh`; the job's script runs on the first.
_BY_HAND: Final = (
    "if [ $# -eq 0 ]; then",
    """  HEAD_ADDRESS=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')""",
    "  export HEAD_ADDRESS",
    """  exec srun --whole --mpi=none sh -c 'NODE_RANK=$SLURM_PROCID exec sh ./server.sh'""",
    "fi",
)
_GPU_OPTION: Final = {"amd": "--rocm", "nvidia": "--nv"}  # of apptainer exec


def job_of(plan: Plan) -> SlurmSection:
    """Return the plan's job. Raises ValueError for a plan of another runtime."""
    if plan.slurm is None:
        raise ValueError(plan.runtime)
    return plan.slurm


def job_name(name: str, plan: Plan, unit_name: str = "") -> str:
    """Return the job name of a server, of its replica or role `unit_name`, or of its gateway."""
    return "-".join(filter(None, (name, "gateway" if plan.gateway else unit_name.removeprefix("replica-"))))


def uses_whole_node(plan: Plan) -> bool:
    """Return whether a server takes the whole node."""
    exclusive = job_of(plan).exclusive
    return not plan.gpus or plan.gpus[-1] + 1 >= plan.hardware.gpus if exclusive is None else exclusive


def job_options(plan: Plan, name: str) -> tuple[str, ...]:
    """Return the sbatch options for a job of that name, for a server or a gateway (sbatch(1), 22.05).

    A node gets one task, since sglang itself starts its ranks there. Only the supervisor gets the signal (`B:`), and
    ends the server as `deploy down` does; by default, Slurm signals every process at once.
    """
    return tuple(_options(plan, job_of(plan), name))


def _options(plan: Plan, job: SlurmSection, name: str) -> Iterator[str]:
    if not plan.gateway:
        yield from job.sbatch_options  # first: sbatch uses the last of repeated options
    nodes = 1 if plan.gateway else plan.layout.nodes
    yield from (f"--job-name={name}", f"--nodes={nodes}", f"--ntasks={nodes}")
    if nodes > 1:
        yield "--ntasks-per-node=1"
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
    elif uses_whole_node(plan):
        yield from ("--exclusive", "--mem=0")
    elif plan.gpus:
        yield from _share(plan)
    yield f"--signal=B:TERM@{job.signal_before_end}"
    yield "--requeue" if job.requeue else "--no-requeue"  # the cluster's default may be either (JobRequeue)


def _share(plan: Plan) -> Iterator[str]:
    """Yield the options for CPUs and memory of a server that shares its node, unless the profile has its own."""
    needs, options = host_needs(plan), job_of(plan).sbatch_options
    for start, option in (
        ("--cpus-per", f"--cpus-per-task={needs.max_cpus}"),
        ("--mem", f"--mem={mebibytes(needs.max_memory)}M"),
    ):
        if not any(item.startswith(start) for item in options):
            yield option


def gres(plan: Plan) -> str | None:
    """Return the GPUs up to the ranks' last one, in Slurm's syntax; None without GPUs and for a gateway."""
    if not plan.gpus or plan.gateway:
        return None
    kind = job_of(plan).gpu_type
    return ":".join(filter(None, ("gpu", kind, str(plan.gpus[-1] + 1))))


def job_script(plan: Plan, name: str) -> str:
    """Return the script for a job of that name. `deploy up` passes it a Python and a run directory.

    Without these, it runs `server.sh` or `gateway.sh`. The script and its arguments contain no secret; a file in the
    run directory does.
    """
    command = "gateway.sh" if plan.gateway else "server.sh"
    needed = dict(_needed_by_hand(plan))
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in job_options(plan, name))]
    lines += [
        "# `deploy up` submits this script with its own Python and the run directory, where the server's output goes",
        f"# to {LOG}, secrets removed. By hand, `sbatch {SCRIPT}` in this folder runs {command}. Export before:",
        *(f"#   {variable:<{max(map(len, needed))}}  {description}" for variable, description in needed.items()),
        *_BY_HAND * (plan.gateway is None and plan.layout.nodes > 1),
        f"[ $# -gt 0 ] || exec sh ./{command}",
        f'exec "$1" -P -m {shlex.quote(MODULE)} "$2"',
    ]
    return "\n".join(lines) + "\n"


def _needed_by_hand(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the variables that a script run by hand needs, each with a description."""
    if plan.gateway:
        yield "PATH", f"a python3 that has smg {plan.gateway.version} comes first"
        for number, (name, server) in enumerate(plan.servers.items(), start=1):
            yield f"REPLICA_{number}", f"http://NODE:{server.server.port}, the node of {name} (squeue)"
    else:
        source, models = plan.model.checkpoint.source, f", with the checkpoint at models/{plan.model.name}"
        staged = f" (`deploy stage {plan.profile}`)" if source == "hub" else ""
        local = f"; so is {plan.model.checkpoint.path}, the checkpoint"
        yield "DEPLOY_HOME", f"an absolute path that all nodes share{local if source == 'local' else models}{staged}"
    if not plan.gateway and job_of(plan).container == "none" and plan.engine.python is None:
        yield "PATH", f"a python3 that has sglang {plan.engine.version} comes first"
    if not plan.gateway and job_of(plan).container == "none" and plan.patches:
        yield "PATCHED_SGLANG", "see server.sh"
    if plan.server.api_key_env is not None:
        below = " below DEPLOY_HOME" if not plan.gateway and job_of(plan).container != "none" else ""
        yield "API_KEY_FILE", f"the absolute path{below} of a .yaml file with the line {Meaning.API_KEY}: KEY"


def container_script(plan: Plan) -> tuple[str, ...]:
    """Return the shell lines by which a script run by hand mounts the working directory in its container.

    The variables are those of pyxis (NVIDIA/pyxis@0619349c, args.c) and of apptainer (`--bind`, apptainer-exec(1)).
    """
    location = _checkpoint_outside(plan)
    if job_of(plan).container == "pyxis":
        mount = shlex.quote(f",{location}:{location}") if location else ""
        return (f'export PYXIS_CONTAINER_MOUNTS="$PWD:$PWD"{mount} PYXIS_CONTAINER_WORKDIR="$PWD"',)
    mount = shlex.quote(f",{location}") if location else ""
    return (f'export APPTAINER_BIND="$PWD"{mount}"${{APPTAINER_BIND:+,$APPTAINER_BIND}}"',)


def _checkpoint_outside(plan: Plan, home: str = "") -> str | None:
    """Return the directory of a local checkpoint, which a container needs mounted unless it is below `home`."""
    checkpoint = plan.model.checkpoint
    if plan.gateway or checkpoint.source != "local" or (home and Path(checkpoint.path).is_relative_to(home)):
        return None
    return checkpoint.path


def container_words(plan: Plan, home: str | None) -> tuple[str, ...]:
    """Return the prefix that runs a command in the site's container, if any; `home` is mounted at the same path."""
    job = job_of(plan)
    mounted = [home, *filter(None, [_checkpoint_outside(plan, home)])] if home else []
    if job.container == "pyxis":
        binds = ",".join(f"{item}:{item}" for item in mounted)
        mounts = (f"--container-mounts={binds}", f"--container-workdir={home}") if home else ()
        return ("srun", "--mpi=none", "--kill-on-bad-exit=1", f"--container-image={job.image}", *mounts)
    if job.container == "apptainer":
        gpus = (option,) if (option := _GPU_OPTION.get(plan.hardware.vendor)) else ()
        bound = ("--bind", ",".join(mounted), "--pwd", home) if home else ()
        return ("apptainer", "exec", *gpus, *bound, str(job.image))
    return ()
