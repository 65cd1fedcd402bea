"""What preflight asks of a cluster: its controller judges the jobs themselves, of which none is made."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.hosts.context import CheckContext
from orchestrator.hosts.report import Finding, Level, fail, info, warn
from orchestrator.hosts.survey import Runner
from orchestrator.plan.replicas import replica_plans
from orchestrator.runtimes.slurm.jobs import refusal
from orchestrator.runtimes.slurm.script import job_of, job_options
from orchestrator.runtimes.supervisor.interpreter import interpreter

_COMMANDS: Final = ("sbatch", "squeue", "scontrol", "scancel", "srun")
_ASIDE: Final = ("--job-name", "--signal", "--no-requeue")  # of no weight for the answer
_GIVE_ROOM: Final = "`--set slurm.exclusive=false`, or the gateway elsewhere: `--set slurm.gateway_partition=…`"
_TAKEN: Final = re.compile(r"to start at (\S+) using .* on nodes (\S+) in partition (\S+)")


def cluster(subject: CheckContext) -> Iterator[Finding]:
    """Slurm is there, and takes a job for each server and the gateway.

    Limits of time are judged where the cluster enforces them at submission (`EnforcePartLimits`); elsewhere the reason
    for which the job waits tells them.
    """
    runner, plan, job = subject.access.runner, subject.plan, job_of(subject.plan)
    if missing := [each for each in _COMMANDS if not runner(("sh", "-c", f"command -v {each}")).ok]:
        hint = "run this on a login node of the cluster, or install its client programs"
        yield fail("slurm", f"without {', '.join(missing)}", "its commands", hint)
        return
    yield info("slurm", runner(("sbatch", "--version")).stdout.strip(), "its commands")
    server = job_options(replica_plans(plan)[0], plan.profile)
    yield _judged(runner, "job", server)
    if plan.gateway is not None:
        yield _judged(runner, "gateway", job_options(plan, plan.profile))
    if plan.gateway is not None and job.exclusive:
        total = plan.replicas + (job.gateway_partition in {None, job.partition})
        found = _judged(runner, "nodes", (*server, f"--nodes={total}", f"--ntasks={total}"))
        # One job of so many nodes may be more than the cluster gives to one job.
        yield found if found.level is Level.INFO else warn("nodes", found.found, found.needed, _GIVE_ROOM)
    if job.time is None:
        yield warn("time", "the partition's default", "as long as it is to serve", "`--set slurm.time=7-00:00:00`")


def node_interpreter(subject: CheckContext) -> Iterator[Finding]:
    """The interpreter has the plan's engine, seen from here: the nodes share this machine's home directory."""
    if job_of(subject.plan).container == "none":
        yield from interpreter(subject)


def _judged(runner: Runner, check: str, options: Sequence[str]) -> Finding:
    """The controller's word on a job. The moment that it names is only told: some clusters see it late."""
    done = runner(("sbatch", "--test-only", *options, "--export=NONE", "--wrap=true"))
    wanted = " ".join(option for option in options if not option.startswith(_ASIDE))
    if not done.ok:
        why, hint = refusal(done)
        return fail(check, why, wanted, hint)
    found = _TAKEN.search(done.stderr)
    return info(check, f"{found[2]} of {found[3]}, from {found[1]}" if found else "Slurm takes it", wanted)
