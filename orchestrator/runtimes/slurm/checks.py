"""Preflight checks of a Slurm cluster. Its controller tests the jobs without queueing them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from orchestrator.core.paths import Home
from orchestrator.hosts.context import CheckContext
from orchestrator.hosts.fabric_measure import FabricNode
from orchestrator.hosts.report import Finding, fail, info, warn
from orchestrator.hosts.survey import Runner, local
from orchestrator.plan.plan import Plan
from orchestrator.profiles.slurm import SlurmSection
from orchestrator.runtimes.slurm.jobs import REQUEST_HINT, last_error, node_address
from orchestrator.runtimes.slurm.script import job_of, job_options, uses_whole_node
from orchestrator.runtimes.supervisor.interpreter import interpreter, interpreter_argv

_COMMANDS: Final = ("sbatch", "squeue", "scontrol", "scancel", "srun", "sinfo")
_NODES: Final = ("sinfo", "--noheader", "--format=%P|%D")
_ASIDE: Final = ("--job-name", "--signal", "--no-requeue")  # irrelevant for the test
_PARTITION_HINT: Final = (
    "`--set slurm.exclusive=false`, or another partition for the gateway: `--set slurm.gateway_partition=…`"
)
_ALLOCATED: Final = re.compile(r"to start at (\S+) using .* on nodes (\S+) in partition (\S+)")


def cluster(context: CheckContext) -> Iterator[Finding]:
    """Check that Slurm is available and accepts the job of each server and of the gateway.

    Time limits are tested only if the cluster enforces them at submission (`EnforcePartLimits`); otherwise they appear
    as the reason of a pending job.
    """
    runner, plan, job = context.access.runner, context.plan, job_of(context.plan)
    if missing := [command for command in _COMMANDS if not runner(("sh", "-c", f"command -v {command}")).ok]:
        hint = "run this on a login node of the cluster, or install Slurm's client programs"
        yield fail("slurm", f"without {', '.join(missing)}", "its commands", hint)
        return
    yield info("slurm", runner(("sbatch", "--version")).stdout.strip(), "its commands")
    for role, server in {server.role: server for server in plan.servers.values()}.items():
        yield _tested(runner, f"{role} job" if plan.roles else "job", job_options(server, plan.profile))
    if plan.gateway is not None:
        yield _tested(runner, "gateway", job_options(plan, plan.profile))
        yield from _whole_nodes(runner, plan, job)
    if job.time_limit is None:
        hint = "`--set slurm.time_limit=7-00:00:00`"
        yield warn("time", "the partition's default", "the planned lifetime of the server", hint)


def _whole_nodes(runner: Runner, plan: Plan, job: SlurmSection) -> Iterator[Finding]:
    """Check that there are enough nodes for servers that take whole nodes, and for their gateway.

    Counts nodes, since one test job with all of them could exceed the cluster's limit per job (`MaxNodes`).
    """
    nodes = sum(server.layout.nodes for server in plan.servers.values() if uses_whole_node(server))
    if not nodes:
        return
    rows = re.findall(r"^(.+)\|(\d+)$", runner(_NODES).stdout, re.MULTILINE)  # the default partition has a `*`
    default = next((name for name, _ in rows if name.endswith("*")), "").removesuffix("*")
    partitions = {*(job.partition or default).split(",")}
    count_found = sum(int(count) for name, count in rows if name.removesuffix("*") in partitions)
    needed = nodes + (job.gateway_partition in {None, *partitions})
    if count_found < needed:
        hint = (
            _PARTITION_HINT if count_found >= nodes else "reduce the number of servers, or `--set slurm.partition=NAME`"
        )
        yield fail("nodes", str(count_found), f"{needed}, for servers that take whole nodes, and their gateway", hint)


def node_interpreter(context: CheckContext) -> Iterator[Finding]:
    """Check the interpreter for the plan's engine on this host, which shares its home directory with the nodes."""
    if job_of(context.plan).container == "none":
        yield from interpreter(context)


def engine_python(plan: Plan, home: Home) -> Sequence[str] | None:
    """Return the command that starts the interpreter on a node; None in the site's container."""
    return interpreter_argv(plan, home) if job_of(plan).container == "none" else None


def allocated_nodes(environ: Mapping[str, str]) -> Sequence[FabricNode]:
    """Return the nodes allocated to this shell (`salloc`); () outside an allocation. Raises HostError."""
    number = environ.get("SLURM_JOB_ID")
    if not number:
        return ()
    names = local(("scontrol", "show", "hostnames", environ.get("SLURM_JOB_NODELIST", ""))).stdout.split()
    return [
        FabricNode(name=name, address=node_address(name), argv=partial(_srun_on_node, number, name)) for name in names
    ]


def _srun_on_node(number: str, node: str, argv: Sequence[str]) -> Sequence[str]:
    step = ("--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--quiet", "--chdir=/", "--unbuffered")
    return ("srun", f"--jobid={number}", f"--nodelist={node}", *step, *argv)


def _tested(runner: Runner, check: str, options: Sequence[str]) -> Finding:
    """Return the controller's verdict on a job.

    The predicted start is reported, not judged, since some clusters predict too late a start.
    """
    done = runner(("sbatch", "--test-only", *options, "--export=NONE", "--wrap=true"))
    requested = " ".join(option for option in options if not option.startswith(_ASIDE))
    if not done.ok:
        return fail(check, last_error(done), requested, REQUEST_HINT)
    match = _ALLOCATED.search(done.stderr)
    return info(check, f"{match[2]} of {match[3]}, from {match[1]}" if match else "Slurm accepts the job", requested)


CHECKS: Final = (cluster, node_interpreter)
