"""What preflight asks of a cluster."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orchestrator.hosts.context import CheckContext
from orchestrator.hosts.report import Finding, fail, info, warn
from orchestrator.plan.replicas import replica_plans
from orchestrator.runtimes.slurm.script import job_of
from orchestrator.runtimes.supervisor.interpreter import interpreter

_COMMANDS: Final = ("sbatch", "squeue", "scontrol", "scancel", "srun", "sinfo")
_SINFO: Final = ("sinfo", "--noheader", "--format=%P|%l|%a|%D|%T|%G")
_DAY: Final = 86400


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Equal nodes of a partition: a line of sinfo."""

    partition: str
    default: bool
    limit: str  # that a job may run, as Slurm writes it
    up: bool
    nodes: int
    state: str
    gpus: tuple[tuple[str, int], ...]  # type and count, "" for GPUs without one


def cluster(subject: CheckContext) -> Iterator[Finding]:
    """Slurm is there and answers; the partition has nodes with these GPUs, and gives that much time."""
    runner, job = subject.access.runner, job_of(subject.plan)
    if missing := [each for each in _COMMANDS if not runner(("sh", "-c", f"command -v {each}")).ok]:
        hint = "run this on a login node of the cluster, or install its client programs"
        yield fail("slurm", f"without {', '.join(missing)}", "its commands", hint)
        return
    asked = runner(_SINFO)
    if not asked.ok:
        yield fail(
            "slurm", (asked.stderr.strip().splitlines() or ["it does not answer"])[-1], "a cluster", "`scontrol ping`"
        )
        return
    yield info("slurm", runner(("sinfo", "--version")).stdout.strip(), "its commands")
    groups = read_groups(asked.stdout)
    ours = [group for group in groups if (group.default if job.partition is None else group.partition == job.partition)]
    names = ", ".join(dict.fromkeys(group.partition for group in groups))
    if not ours:
        wanted = "a default" if job.partition is None else f"`{job.partition}`"
        yield fail("partition", names or "none", wanted, "`--set slurm.partition=…` names one")
        return
    yield from _partition(ours)
    yield from _several(subject, groups, ours)
    yield from _gpus(subject, ours)
    yield from _time(job.time, ours)


def node_interpreter(subject: CheckContext) -> Iterator[Finding]:
    """The interpreter has the plan's engine, seen from here: the nodes share this machine's home directory."""
    if job_of(subject.plan).container == "none":
        yield from interpreter(subject)


def read_groups(text: str) -> tuple[NodeGroup, ...]:
    """The lines of `sinfo --format=%P|%l|%a|%D|%T|%G`."""
    rows = (line.split("|", 5) for line in text.splitlines() if line.count("|") >= 5)
    return tuple(
        NodeGroup(
            partition=name.removesuffix("*"),
            default=name.endswith("*"),
            limit=limit,
            up=available == "up",
            nodes=int(nodes) if nodes.isdecimal() else 0,
            state=state,
            gpus=tuple((kind, int(count)) for kind, count in re.findall(r"gpu:(?:([^:,(]+):)?(\d+)", gres)),
        )
        for name, limit, available, nodes, state, gres in rows
    )


def seconds(time: str) -> float:
    """A time as Slurm writes it: `30`, `1:00:00`, `2-12`, `infinite`."""
    days, dash, rest = time.rpartition("-")
    if not re.fullmatch(r"[\d:]+", rest):
        return float("inf")
    parts = [int(part or 0) for part in rest.split(":")]
    if dash or len(parts) == 3:
        hours, minutes, left = (*parts, 0, 0)[:3]
    else:
        hours, minutes, left = 0, parts[0], parts[1] if len(parts) > 1 else 0
    return int(days or 0) * _DAY + hours * 3600 + minutes * 60 + left


def _partition(ours: list[NodeGroup]) -> Iterator[Finding]:
    name, total = ours[0].partition, sum(group.nodes for group in ours)
    states = ", ".join(f"{group.nodes} {group.state}" for group in ours)
    usable = sum(group.nodes for group in ours if not re.match(r"down|drain|fail|maint|unk", group.state))
    if not ours[0].up:
        yield fail("partition", f"{name} is not up", "up", "`--set slurm.partition=…` names another")
    elif not usable:
        yield warn("partition", f"{name}: {states}", "a node that takes jobs", "`sinfo --list-reasons` says why")
    else:
        yield info("partition", f"{name}: {total} nodes, {states}", "a node")


def _several(subject: CheckContext, groups: tuple[NodeGroup, ...], ours: list[NodeGroup]) -> Iterator[Finding]:
    """There are nodes for all servers that take whole ones, and for the gateway before them."""
    plan, job = subject.plan, job_of(subject.plan)
    if plan.gateway is None:
        return
    own = job.gateway_partition
    if own is not None and own not in {group.partition for group in groups}:
        names = ", ".join(dict.fromkeys(group.partition for group in groups))
        yield fail("gateway", names, own, "`--set slurm.gateway_partition=…` names one")
    if not job.exclusive:
        return
    beside = own in {None, ours[0].partition}
    total, needed = sum(group.nodes for group in ours), plan.replicas + beside
    what = f"{needed}: one a server" + (", and one for the gateway" if beside else "")
    if total < needed:
        hint = "`--set slurm.exclusive=false` takes parts of nodes"
        more = "; `--set slurm.gateway_partition=…` has the gateway elsewhere" if beside else ""
        yield fail("nodes", f"{total} in {ours[0].partition}", what, hint + more)
    else:
        yield info("nodes", f"{total} in {ours[0].partition}", what)


def _gpus(subject: CheckContext, ours: list[NodeGroup]) -> Iterator[Finding]:
    plan = replica_plans(subject.plan)[0]
    if not plan.gpus:
        return
    kind, count = job_of(plan).gpu_type, plan.gpus[-1] + 1
    needed = f"{count} of {kind}" if kind else f"{count}"
    there = sorted({(found, number) for group in ours for found, number in group.gpus})
    shown = ", ".join(f"{number} of {found}" if found else str(number) for found, number in there) or "none"
    if any(number >= count and kind in {None, found} for found, number in there):
        yield info("gres", f"{shown} a node", needed)
    else:
        yield fail("gres", f"{shown} a node", needed, "`--set slurm.gpu_type=…`, or another `slurm.partition`")


def _time(wanted: str | None, ours: list[NodeGroup]) -> Iterator[Finding]:
    limit = ours[0].limit
    if wanted is None:
        yield warn("time", "the partition's default", "as long as it is to serve", "`--set slurm.time=7-00:00:00`")
    elif seconds(wanted) > seconds(limit):
        yield fail("time", f"{ours[0].partition} gives {limit}", wanted, "`--set slurm.time=…`")
    else:
        yield info("time", wanted, "within the partition's limit")
