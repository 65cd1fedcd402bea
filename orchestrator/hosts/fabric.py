"""Preflight of the fabric: the NICs of all nodes compared with each other, and measured against a baseline."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from pydantic import Field

from orchestrator.core.console import Progress
from orchestrator.core.validation import StrictModel, Text
from orchestrator.hosts.context import CheckContext
from orchestrator.hosts.fabric_measure import FabricNode, NotMeasuredError, all_reduce_gbytes, write_gbits
from orchestrator.hosts.nics import Nic, nic_survey, read_nics
from orchestrator.hosts.report import Finding, fail, info, info_if, not_checked, warn
from orchestrator.hosts.survey import Runner, survey
from orchestrator.plan.networks import Network, Sample, ranks_use_rdma, transfer_uses_rdma
from orchestrator.plan.plan import Plan

# Variables that select a row of the GID table, each with the value that lets the library choose on each node:
# Mooncake 3b5a5941 config.cpp, ROCm/mori 624002c8 rdma.cpp, NCCL 2.21 (net_ib), UCX.
_GID_VARIABLES: Final[Mapping[str, str]] = {
    "MC_GID_INDEX": "-1",
    "MORI_IB_GID_INDEX": "-1",
    "NCCL_IB_GID_INDEX": "-1",
    "UCX_IB_GID_INDEX": "auto",
}
_RECORD: Final = "if the difference is intended, `--save-baseline FILE` records a new baseline"
_SHARE: Final = 0.95  # of the baseline: a smaller value is reported; two runs on an idle fabric differ by 1 to 2 %


class FabricBaseline(StrictModel):
    """The measurements of one run between nodes of a site, comparable with a run between other nodes."""

    firmware: dict[Text, list[Text]] = Field(default={}, description="versions of each NIC")
    write_gbits: dict[Text, float] = Field(default={}, description="Gb/s of each NIC, the lowest of all pairs of nodes")
    all_reduce_gbytes: dict[Text, float] = Field(default={}, description="bus bandwidth by size, GB/s by bytes")
    ranks: int = Field(ge=1, description="ranks of the all-reduce")


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The nodes of a plan and the NICs between them, by node and name.

    `python` is the argv of the engine's Python on a node; None if it is not installed yet.
    """

    plan: Plan
    nodes: Sequence[FabricNode]
    nics: Mapping[str, Mapping[str, Nic]]
    networks: Mapping[str, Network]
    python: Sequence[str] | None
    baseline: FabricBaseline | None
    busy: Sequence[str] = ()  # nodes where another program uses the GPUs
    write: dict[str, float] = field(default_factory=dict)  # filled by `write_bandwidth`: Gb/s by NIC
    reduced: dict[str, float] = field(default_factory=dict)  # filled by `all_reduce`: GB/s by size

    @property
    def metrics(self) -> FabricBaseline:
        """The measurements and firmware versions, as a baseline."""
        return FabricBaseline(
            firmware=self.firmware, write_gbits=self.write, all_reduce_gbytes=self.reduced, ranks=self.ranks
        )

    @property
    def ranks(self) -> int:
        """The number of ranks in the all-reduce."""
        return len(self.nodes) * max(len(self.plan.gpus), 1)

    @property
    def firmware(self) -> dict[str, list[str]]:
        """The firmware versions of each NIC across all nodes."""
        firmware: dict[str, list[str]] = {}
        for nic in sorted(self.all_nics, key=lambda nic: (nic.name, nic.firmware)):
            versions = firmware.setdefault(nic.name, [])
            versions += [nic.firmware] * (nic.firmware not in versions)
        return firmware

    @property
    def all_nics(self) -> list[Nic]:
        """The NICs of all nodes."""
        return [nic for nics in self.nics.values() for nic in nics.values()]

    @property
    def uses_rdma(self) -> bool:
        """Whether NICs were found and the plan's ranks or roles use RDMA."""
        return len(self.all_nics) > 0 and (ranks_use_rdma(self.plan) or transfer_uses_rdma(self.plan))

    @property
    def unmeasured(self) -> list[str]:
        """The missing measurements: names of NICs with a link, and `all-reduce`."""
        nics = {nic.name for nic in self.all_nics if nic.active and self.uses_rdma}
        return [*sorted(nics - {*self.write}), *(() if self.reduced else ("all-reduce",))]

    @property
    def network(self) -> Network | None:
        """The kind of the NICs; None if it is unknown."""
        vendors = {nic.vendor for nic in self.all_nics}
        return next((network for network in self.networks.values() if {network.pci_vendor} == vendors), None)


def read_fabric_nics(plan: Plan, runners: Mapping[str, Runner]) -> dict[str, dict[str, Nic]]:
    """Return the NICs that connect the nodes, by node and name. Raises HostError if a survey fails."""
    surveys = {name: survey(runner, {"nics": nic_survey()})["nics"].text for name, runner in runners.items()}
    return {name: {nic.name: nic for nic in _of_fabric(plan, read_nics(text))} for name, text in surveys.items()}


def _of_fabric(plan: Plan, nics: Sequence[Nic]) -> Iterator[Nic]:
    """Yield the NICs that NCCL_IB_HCA selects, or the most common vendor's fastest, and those without a link."""
    variable = _named_nics(plan)
    vendor = Counter(nic.vendor for nic in nics).most_common(1)[0][0] if nics else ""
    rate = max((nic.gbits for nic in nics if nic.vendor == vendor), default=0)
    for nic in nics:
        if _is_named(nic, variable) if variable else nic.vendor == vendor and (nic.gbits == rate or not nic.active):
            yield nic


def _named_nics(plan: Plan) -> str:
    return next((item.value for item in plan.env if item.name == "NCCL_IB_HCA"), "")


def _is_named(nic: Nic, variable: str) -> bool:
    """Return whether NCCL uses a NIC: NCCL_IB_HCA lists name prefixes; `=` requires exact names, `^` excludes them."""
    names = [word.partition(":")[0] for word in variable.lstrip("^=").split(",")]
    matches = nic.name in names if "=" in variable[:2] else nic.name.startswith(tuple(names))
    return matches != variable.startswith("^")


def fabric_findings(fabric: Fabric) -> Iterator[Finding]:
    """Run every check of the fabric and store the measurements in `fabric.metrics`."""
    yield from compare_nics(fabric)
    if fabric.busy:
        reason, needed = f"VRAM is in use on {', '.join(fabric.busy)}", "bandwidth between the nodes"
        yield not_checked(
            "fabric", reason, needed, "stop the programs that use these GPUs: the measurement slows them down"
        )
        return
    if fabric.uses_rdma:
        yield from write_bandwidth(fabric)
    elif fabric.baseline and fabric.baseline.write_gbits:
        value = f"no NICs in use; {', '.join(fabric.baseline.write_gbits)} only in the baseline"
        yield warn("ib_write_bw", value, "RDMA writes between the nodes", _RECORD)
    yield from all_reduce(fabric)


def compare_nics(fabric: Fabric) -> Iterator[Finding]:
    """Run the checks that need no measurement."""
    needed = "RDMA NICs between the nodes"
    if not ranks_use_rdma(fabric.plan) and not transfer_uses_rdma(fabric.plan):
        yield info("nics", "not used: the ranks communicate over TCP", needed)
    elif not fabric.all_nics:
        yield warn("nics", "none on any node", needed, "load the driver of the NICs; `ibv_devices` lists them")
    else:
        yield from nics_agree(fabric)
        yield from gid_rows(fabric.plan, fabric.nics)
        yield from firmware(fabric)


def nics_agree(fabric: Fabric) -> Iterator[Finding]:
    """Check that all nodes have the same NICs, and that every link is up (ROCm/cvs, preflight).

    A NIC without a link on every node is only reported, unless the plan names NICs.
    """
    up = {nic.name for nic in fabric.all_nics if nic.active}
    names = sorted(up if up and not _named_nics(fabric.plan) else {nic.name for nic in fabric.all_nics})
    needed = f"the same NICs on all {len(fabric.nics)} nodes, each ACTIVE"
    wrong = [
        f"{name} on {node} is {nics[name].state}" if name in nics else f"{node} lacks {name}"
        for node, nics in fabric.nics.items()
        for name in names
        if name not in nics or not nics[name].active
    ]
    common = ",".join(name for name in names if all(name in nics for nics in fabric.nics.values())) or "NIC"
    hint = f"`rdma link show` on each node; or name the NICs in use: `--set env.NCCL_IB_HCA=={common}`"
    if wrong:
        yield fail("nics", "; ".join(wrong), needed, hint)
    if unused := sorted({nic.name for nic in fabric.all_nics} - {*names}):
        yield warn("nics", f"{', '.join(unused)}: no link on any node", needed, hint)
    rates = sorted({nic.gbits for nic in fabric.all_nics if nic.active})
    if len(rates) > 1:
        text = " and ".join(f"{rate} Gb/s" for rate in rates)
        yield warn("nics", text, "one rate on all nodes", "`rdma link show`, `ethtool` on each node")
    if not wrong:
        kind = f", {fabric.network.description}" if fabric.network else ""
        yield info("nics", f"{', '.join(names)}{kind}", needed)
        yield from _planned_network(fabric)


def _planned_network(fabric: Fabric) -> Iterator[Finding]:
    """Warn if the plan is for other NICs than these: its transfer, or the variables of its ranks on AMD GPUs."""
    detected, plan = fabric.network, fabric.plan
    if not detected:
        return
    name = next(name for name, network in fabric.networks.items() if network is detected)
    planned = plan.transfer.partition(" over ")[2]
    if transfer_uses_rdma(plan) and planned != name:
        hint = f"`--set layout.transfer.network={name}`"
        yield warn("transfer network", f"{planned} in the plan", detected.description, hint)
    if plan.layout.nodes > 1 and plan.hardware.vendor == "amd" and ranks_use_rdma(plan):
        env = {item.name: item for item in plan.env}
        missing = [
            variable
            for variable, setting in detected.rccl_env.items()
            if variable not in env or (env[variable].origin != "user" and env[variable].value != setting.value)
        ]
        if missing:
            hint = f"`--set hardware.network={name}` sets the environment of the ranks for these NICs"
            yield warn("nic environment", f"not set: {', '.join(missing)}", f"that of {detected.description}", hint)


def gid_rows(plan: Plan, nics_by_node: Mapping[str, Mapping[str, Nic]]) -> Iterator[Finding]:
    """Check that every NIC on Ethernet has a RoCE v2 GID with an address, and that the plan selects a common row.

    NICs without a link are skipped, unless no NIC has one.
    """
    every = [(node, nic) for node, item in nics_by_node.items() for nic in item.values() if nic.is_roce]
    nics = [(node, nic) for node, nic in every if nic.active] or every
    needed = "RoCE v2 with an IPv4 or global IPv6 address on every NIC"
    if missing := [f"{nic.name} on {node}" for node, nic in nics if not nic.gid_indexes]:
        hint = "give the NIC's interface an address; `rdma link show` names the interface"
        yield fail("gid", f"none: {', '.join(missing)}", needed, hint)
    elif nics:
        rows = {node: sorted({str(nic.gid_indexes[0]) for item, nic in nics if item == node}) for node, _ in nics}
        text = "; ".join(f"index {', '.join(indexes)} on {node}" for node, indexes in rows.items())
        common = [str(row) for row in nics[0][1].gid_indexes if all(row in nic.gid_indexes for _, nic in nics)]
        variables = {item.name: item.value for item in plan.env if item.name in _GID_VARIABLES}
        for name, value in variables.items():
            if value not in (*common, _GID_VARIABLES[name]):
                expected = common[0] if common else _GID_VARIABLES[name]
                yield fail("gid", f"{text}; the plan has {name}={value}", needed, f"`--set env.{name}={expected}`")
                return
        yield info("gid", text, needed)


def gid_of_transfer(context: CheckContext) -> Iterator[Finding]:
    """Check the GID table row used by a transfer between roles on this host."""
    plan = context.plan
    if transfer_uses_rdma(plan):
        yield from gid_rows(plan, {"this host": {nic.name: nic for nic in _of_fabric(plan, context.host_state.rdma)}})


def firmware(fabric: Fabric) -> Iterator[Finding]:
    """Check that all NICs have the same firmware, that it is known to work, and that it matches the baseline."""
    versions = sorted({nic.firmware for nic in fabric.all_nics})
    text, network, now = ", ".join(versions), fabric.network, fabric.firmware
    recorded = fabric.baseline.firmware if fabric.baseline else {}
    before = {version for name, item in recorded.items() if now.get(name, item) != item for version in item}
    if len(versions) > 1:
        nodes = "; ".join(
            f"{node}: {', '.join(sorted({nic.firmware for nic in nics.values()}))}"
            for node, nics in fabric.nics.items()
        )
        yield warn("nic firmware", nodes, "one version on all nodes", "update the NICs with the older version")
    elif network and not network.is_good(versions[0]):
        needed = f"{' or '.join(network.firmware)} or newer ({network.firmware_source})"
        yield warn("nic firmware", text, needed, "update the firmware of the NICs")
    elif before:
        yield warn("nic firmware", text, f"{', '.join(sorted(before))}, as in the baseline", _RECORD)
    else:
        yield info("nic firmware", text, "one version on all nodes")


def write_bandwidth(fabric: Fabric) -> Iterator[Finding]:
    """Measure RDMA writes between neighboring nodes on each NIC, one after the other."""
    check, needed = "ib_write_bw", "RDMA writes between the nodes"
    pairs = [
        (server, client, fabric.nics[server.name][name], nic)
        for server, client in pairwise(fabric.nodes)
        for name, nic in fabric.nics[client.name].items()
        if nic.usable and name in fabric.nics[server.name] and fabric.nics[server.name][name].usable
    ]
    try:
        with Progress() as progress:
            for server, client, other, nic in pairs:
                progress.update(f"ib_write_bw: {nic.name} from {client.name} to {server.name}")
                metric = write_gbits(server, client, (other, nic))
                fabric.write[nic.name] = min(metric, fabric.write.get(nic.name, metric))
    except NotMeasuredError as error:
        fabric.write.clear()  # without one pair, the minimum over all pairs is unknown
        yield _not_measured(check, error, needed, "run `ib_write_bw` by hand; check PFC, MTU and routes")
        return
    if not pairs:
        yield not_checked(check, "no NIC is usable on two neighboring nodes", needed, "fix the links and GIDs first")
        return
    expected = fabric.baseline.write_gbits if fabric.baseline else None
    yield _compared(check, fabric.write, expected, "Gb/s", fabric.network.write_gbits if fabric.network else None)


def all_reduce(fabric: Fabric) -> Iterator[Finding]:
    """Measure all-reduce over all ranks with the engine's torch, by RCCL, NCCL or (on CPUs) gloo."""
    check, needed = "all-reduce", "bandwidth between the ranks of all nodes"
    if fabric.python is None:
        hint = "run `deploy up PROFILE` or `deploy build PROFILE` first"
        yield not_checked(check, "no Python with the engine on this host", needed, hint)
        return
    try:
        with Progress() as progress:
            progress.update("all-reduce over all nodes")
            values = all_reduce_gbytes(fabric.plan, fabric.nodes, fabric.python)
    except NotMeasuredError as error:
        yield _not_measured(check, error, needed, "`--set env.NCCL_DEBUG=INFO` shows which network was chosen")
        return
    fabric.reduced.update({str(size): metric for size, metric in values.items()})
    expected = fabric.baseline.all_reduce_gbytes if fabric.baseline else None
    if fabric.baseline and fabric.baseline.ranks != fabric.ranks:
        value = f"{_metrics_text(fabric.reduced, 'GB/s')}, of {fabric.ranks} ranks"
        yield warn(check, value, f"{fabric.baseline.ranks} ranks, as in the baseline", _RECORD)
        return
    sample = fabric.network.all_reduce_gbytes if fabric.network and fabric.plan.gpus else None
    yield _compared(check, fabric.reduced, expected, "GB/s", sample)


def _not_measured(check: str, error: NotMeasuredError, needed: str, hint: str) -> Finding:
    if error.install:
        return not_checked(check, str(error), needed, error.install)
    return fail(check, str(error), needed, hint)


def _metrics_text(metrics: Mapping[str, float], unit: str) -> str:
    return ", ".join(f"{name} {metric:.4g}" for name, metric in metrics.items()) + f" {unit}"


def _compared(
    check: str, measured: Mapping[str, float], expected: Mapping[str, float] | None, unit: str, sample: Sample | None
) -> Finding:
    """Compare measurements with the baseline; without one, with the published sample, which is not a limit."""
    text = _metrics_text(measured, unit)
    if expected is not None:
        slower = [
            f"{name} {measured[name]:.4g} of {before:.4g}"
            for name, before in expected.items()
            if name in measured and measured[name] < before * _SHARE
        ]
        only = [f"{name} only in the baseline" for name in expected if name not in measured]
        only += [f"{name} not in the baseline" for name in measured if name not in expected]
        needed, first = f"{_SHARE:.0%} of the baseline", f"{', '.join(slower)} {unit}" if slower else text
        hint = "measure again on an idle network; then compare link, firmware and PCIe of these NICs"
        return info_if(not slower + only, warn, check, "; ".join([first, *only]), needed, hint if slower else _RECORD)
    if sample:
        return info(check, text, f"no baseline; a published result is {sample.value:g} {unit} ({sample.source})")
    return info(check, text, "no baseline: `--save-baseline FILE` records it")
