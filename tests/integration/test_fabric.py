"""Check the network between nodes: NICs as directory trees that a real shell reads, and recorded measurements."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.cli.fabric import fabric_of_cluster
from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError
from orchestrator.core.origin import Origin
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.core.validation import read_model
from orchestrator.hosts.fabric import Fabric, FabricBaseline, fabric_findings, read_fabric_nics
from orchestrator.hosts.fabric_measure import FabricNode, NotMeasuredError, all_reduce_gbytes, write_gbits
from orchestrator.hosts.nics import Nic, nic_survey, read_nics
from orchestrator.hosts.report import Finding, Level
from orchestrator.hosts.survey import local
from orchestrator.plan.plan import EnvVar, Plan
from orchestrator.planner.planning import read_networks
from orchestrator.servers.start.fabric import compare_hosts, preflight_fabric

NETWORKS = read_networks(Catalog.shipped())
TWO_NODES = ("runtime=slurm", "layout.nodes=2", "layout.tp=16", "server.api_key_env=K", "engine.python=/p")
WITHOUT_NETWORK = plan_of("mi355x-tp8", *TWO_NODES)
PLAN = plan_of("mi355x-tp8", *TWO_NODES, "hardware.network=ainic")
# `ibv_devinfo -v` of a ConnectX (Juniper, "How to Run NCCL Tests Using Autoconfigured IPv6 Address").
GIDS = {
    0: ("fe80:0000:0000:0000:a288:c2ff:fe3b:506a", "IB/RoCE v1"),
    1: ("fe80:0000:0000:0000:a288:c2ff:fe3b:506a", "RoCE v2"),
    2: ("0000:0000:0000:0000:0000:ffff:0ac8:010a", "IB/RoCE v1"),
    3: ("0000:0000:0000:0000:0000:ffff:0ac8:010a", "RoCE v2"),
    4: ("2010:0200:0000:0002:a288:c2ff:fe3b:506a", "IB/RoCE v1"),
    5: ("2010:0200:0000:0002:a288:c2ff:fe3b:506a", "RoCE v2"),
}
# Form of a result with `-D` (linux-rdma/perftest #234); %s is the average.
IB_WRITE_BW_OUTPUT = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 8388608    24470            0.00               %s               0.005823
---------------------------------------------------------------------------------------
"""


def add_nic(
    sysfs: Path,
    name: str,
    *,
    vendor: str = "0x1dd8",
    firmware: str = "1.117.5-a-45",
    state: str = "4: ACTIVE",
    rate: str = "400 Gb/sec (4X NDR)",
    gids: dict[int, tuple[str, str]] = GIDS,
) -> None:
    port = sysfs / "class/infiniband" / name / "ports/1"
    (port / "gid_attrs/types").mkdir(parents=True)
    (port / "gids").mkdir()
    (port.parents[1] / "device").mkdir()
    for path, text in (
        (port.parents[1] / "device/vendor", vendor),
        (port.parents[1] / "fw_ver", firmware),
        (port / "state", state),
        (port / "rate", rate),
        (port / "link_layer", "Ethernet"),
        (port / "gids/6", "0000:0000:0000:0000:0000:0000:0000:0000"),
        *((port / "gids" / str(index), gid) for index, (gid, _) in gids.items()),
        *((port / "gid_attrs/types" / str(index), kind) for index, (_, kind) in gids.items()),
    ):
        path.write_text(f"{text}\n")


def program(sysfs: Path, metric: str, argv: Sequence[str]) -> Sequence[str]:
    """Return the command that runs instead on a node: the survey of a directory tree, or a recorded measurement."""
    if "ib_write_bw" in argv:
        assert "-x" in argv
        return ("printf", "%s", IB_WRITE_BW_OUTPUT % metric)
    if argv[0] == "sh":
        return [word.replace("cd /sys/", f"cd {sysfs}/") for word in argv]
    return ("printf", "1048576 10.500\n8589934592 338.250\n")


def nodes_of(
    trees: Sequence[Path], metric: str = "391.50", argv: Callable[..., Sequence[str]] = program
) -> list[FabricNode]:
    return [FabricNode(name=tree.name, address="127.0.0.1", argv=partial(argv, tree, metric)) for tree in trees]


def nics_of(nodes: Sequence[FabricNode], plan: Plan = PLAN) -> dict[str, dict[str, Nic]]:
    return read_fabric_nics(plan, {node.name: node.run for node in nodes})


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Create two nodes with two equal NICs each."""
    for node in ("n0", "n1"):
        for name in ("ionic_0", "ionic_1"):
            add_nic(tmp_path / node, name)
    return tmp_path / "n0", tmp_path / "n1"


def checked(
    trees: Sequence[Path],
    *,
    metric: str = "391.50",
    baseline: FabricBaseline | None = None,
    busy: Sequence[str] = (),
    plan: Plan = PLAN,
    **env: str,
) -> tuple[dict[str, Finding], FabricBaseline]:
    variables = (EnvVar(name=key, value=value, origin=Origin.USER, source="") for key, value in env.items())
    plan = replace(plan, env=(*(item for item in plan.env if item.name not in env), *variables))
    nodes = nodes_of(trees, metric)
    fabric = Fabric(
        plan=plan,
        nodes=nodes,
        nics=nics_of(nodes, plan),
        networks=NETWORKS,
        python=("python3",),
        baseline=baseline,
        busy=busy,
    )
    findings = list(fabric_findings(fabric))
    return {finding.check: finding for finding in findings}, fabric.metrics


def test_equal_nodes_pass_and_are_saved_as_baseline(trees: tuple[Path, Path], tmp_path: Path) -> None:
    findings, values = checked(trees)
    assert {finding.level for finding in findings.values()} == {Level.INFO}
    assert findings["nics"].value == "ionic_0, ionic_1, AMD Pensando Pollara 400 (AINIC)"
    assert findings["gid"].value == "index 3 on n0; index 3 on n1"
    assert (
        findings["ib_write_bw"].needed
        == "no baseline; a published result is 280 Gb/s (ROCm/cvs dddd9143, ibperf_config.json: a sample)"
    )
    (tmp_path / "site.json").write_text(values.model_dump_json())
    site = read_model(tmp_path / "site.json", FabricBaseline, "site.json")
    repeated, _ = checked(trees, baseline=site)
    assert repeated["ib_write_bw"].needed == repeated["all-reduce"].needed == "95% of the baseline"
    slower, _ = checked(trees, baseline=site, metric="300.00")
    assert slower["ib_write_bw"].level is Level.WARN
    assert slower["ib_write_bw"].value == "ionic_0 300 of 391.5, ionic_1 300 of 391.5 Gb/s"


def test_multi_host_start_compares_nics_without_measuring(trees: tuple[Path, Path], tmp_path: Path) -> None:
    def run_survey(tree: Path, argv: Sequence[str]) -> CompletedProgram:
        assert argv[0] == "sh"
        return local(program(tree, "", argv))

    findings = compare_hosts(PLAN, {tree.name: partial(run_survey, tree) for tree in trees}, Home(tmp_path))
    assert [finding.check for finding in findings] == ["nics", "gid", "nic firmware"]


def test_missing_nic_and_link_down_are_reported(tmp_path: Path) -> None:
    add_nic(tmp_path / "n0", "ionic_0")
    add_nic(tmp_path / "n0", "ionic_1")
    add_nic(tmp_path / "n1", "ionic_0", state="1: DOWN", rate="40 Gb/sec (4X QDR)")
    findings, _ = checked([tmp_path / "n0", tmp_path / "n1"])
    assert (findings["nics"].level, findings["nics"].value) == (Level.FAIL, "ionic_0 on n1 is DOWN; n1 lacks ionic_1")


def checked_all(trees: Sequence[Path]) -> list[Finding]:
    nodes = nodes_of(trees)
    fabric = Fabric(plan=PLAN, nodes=nodes, nics=nics_of(nodes), networks=NETWORKS, python=None, baseline=None)
    return list(fabric_findings(fabric))


def test_frontend_nics_are_excluded(trees: tuple[Path, Path]) -> None:
    add_nic(trees[0], "mlx5_0", vendor="0x15b3")
    add_nic(trees[0], "ionic_9", rate="25 Gb/sec (1X EDR)")
    findings, values = checked(trees)
    assert findings["nics"].level is Level.INFO
    assert {*values.write_gbits} == {"ionic_0", "ionic_1"}


@pytest.mark.parametrize(
    ("value", "names"),
    [("ionic_1:1", {"ionic_1"}), ("ionic", {"ionic_0", "ionic_1"}), ("^ionic_0", {"ionic_1"}), ("=ionic", set())],
)
def test_nics_are_selected_by_plan(trees: tuple[Path, Path], value: str, names: set[str]) -> None:
    findings, values = checked(trees, NCCL_IB_HCA=value)
    assert {*values.write_gbits} == names
    assert (findings["nics"].level is Level.INFO) == bool(names)


@pytest.mark.parametrize(
    ("rows", "value", "level", "hint"),
    [
        ({0: GIDS[1], 1: GIDS[3]}, "1", Level.FAIL, "`--set env.MC_GID_INDEX=-1`"),  # 1 is right on one node only
        (GIDS, "1", Level.FAIL, "`--set env.MC_GID_INDEX=3`"),
        (GIDS, "3", Level.INFO, ""),
        (GIDS, "5", Level.INFO, ""),  # a router forwards it as well
        ({0: GIDS[1], 1: GIDS[2]}, "1", Level.FAIL, "give the NIC's interface an address"),
    ],
)
def test_roce_v2_gid_index_is_checked_on_each_node(
    tmp_path: Path, rows: dict[int, tuple[str, str]], value: str, level: Level, hint: str
) -> None:
    add_nic(tmp_path / "n0", "ionic_0")
    add_nic(tmp_path / "n1", "ionic_0", gids=rows)
    findings, _ = checked([tmp_path / "n0", tmp_path / "n1"], MC_GID_INDEX=value)
    assert findings["gid"].level is level
    assert findings["gid"].hint.startswith(hint)


@pytest.mark.parametrize(
    ("versions", "level", "value"),
    [
        (("1.117.5-a-45", "1.117.5-a-50"), Level.WARN, "n0: 1.117.5-a-45; n1: 1.117.5-a-50"),
        (("1.117.1-a-63", "1.117.1-a-63"), Level.WARN, "1.117.1-a-63"),
        (("1.117.5-a-50", "1.117.5-a-50"), Level.INFO, "1.117.5-a-50"),
    ],
)
def test_old_or_differing_nic_firmware_warns(
    tmp_path: Path, versions: tuple[str, str], level: Level, value: str
) -> None:
    for node, firmware in zip(("n0", "n1"), versions, strict=True):
        add_nic(tmp_path / node, "ionic_0", firmware=firmware)
    finding = checked([tmp_path / "n0", tmp_path / "n1"])[0]["nic firmware"]
    assert (finding.level, finding.value) == (level, value)


def test_nics_are_surveyed_by_shell_command(tmp_path: Path) -> None:
    add_nic(tmp_path, "ionic_0")
    add_nic(tmp_path, "ionic_1", state="1: DOWN", rate="40 Gb/sec (4X QDR)", gids={})
    done = subprocess.run(["sh", "-c", nic_survey(str(tmp_path))], capture_output=True, text=True, check=True)
    up, down = read_nics(done.stdout)
    assert (up.name, up.vendor, up.firmware, up.state) == ("ionic_0", "0x1dd8", "1.117.5-a-45", "ACTIVE")
    assert (up.gbits, up.link_layer, up.gid_indexes, up.usable) == (400, "Ethernet", (3, 5), True)
    assert (down.name, down.state, down.gbits, down.gid_indexes, down.usable) == ("ionic_1", "DOWN", 40, (), False)


def test_missing_perftest_is_reported(trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    nic = nics_of(nodes_of(trees))["n0"]["ionic_0"]
    local_node = FabricNode(name="local", address="127.0.0.1", argv=tuple)
    for name in ("sh", "setpriv", "timeout", "sleep"):
        (trees[0] / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(trees[0]))
    with pytest.raises(NotMeasuredError, match="no `ib_write_bw` on local") as raised:
        write_gbits(local_node, local_node, (nic, nic))
    assert "apt-get install perftest" in raised.value.install


def test_ranks_over_tcp_need_no_nics(tmp_path: Path) -> None:
    add_nic(tmp_path / "n0", "ionic_0")
    add_nic(tmp_path / "n1", "ionic_1", state="1: DOWN", gids={})
    assert Level.FAIL in {finding.level for finding in checked_all([tmp_path / "n0", tmp_path / "n1"])}
    findings, _ = checked([tmp_path / "n0", tmp_path / "n1"], NCCL_IB_DISABLE="1")
    assert {*findings} == {"nics", "all-reduce"}
    assert findings["nics"].value == "not used: the ranks communicate over TCP"
    assert {finding.level for finding in findings.values()} == {Level.INFO}


def test_unconnected_ports_on_all_nodes_only_warn(trees: tuple[Path, Path]) -> None:
    add_nic(trees[0], "ionic_7", state="1: DOWN", gids={})
    add_nic(trees[1], "ionic_8", state="1: DOWN", gids={})
    findings = checked_all(trees)
    assert not [finding for finding in findings if finding.level is Level.FAIL]
    [unused] = [finding for finding in findings if finding.level is Level.WARN]
    assert unused.value == "ionic_7, ionic_8: no link on any node"
    assert unused.hint.endswith("`--set env.NCCL_IB_HCA==ionic_0,ionic_1`")
    value = next(
        value_.value for value_ in plan_of("mi355x-tp8", "env.NCCL_IB_HCA==ionic_0,ionic_1").env if "HCA" in value_.name
    )
    assert {finding.level for finding in checked(trees, NCCL_IB_HCA=value)[0].values()} == {Level.INFO}
    assert checked(trees, NCCL_IB_HCA="ionic")[0]["nics"].level is Level.FAIL


def test_plan_for_other_nics_warns(trees: tuple[Path, Path]) -> None:
    assert "nic environment" not in checked(trees)[0]
    assert "nic environment" not in checked(trees, NCCL_IB_TIMEOUT="22")[0]
    unset = checked(trees, plan=WITHOUT_NETWORK)[0]["nic environment"]
    assert unset.value.startswith("not set: HSA_NO_SCRATCH_RECLAIM, IB_RX_QUEUE_LEN, IONIC_LOCKFREE, ")
    assert unset.hint.startswith("`--set hardware.network=ainic`")
    other = checked(trees, plan=plan_of("mi355x-tp8", *TWO_NODES, "hardware.network=thor2"))[0]["nic environment"]
    assert "IONIC_LOCKFREE" in other.value
    assert "IB_RX_QUEUE_LEN" not in other.value  # both have it
    ranks_over_tcp = replace(WITHOUT_NETWORK, transfer="mori over ainic")
    assert "nic environment" not in checked(trees, plan=ranks_over_tcp, NCCL_IB_DISABLE="1")[0]
    transfer = checked(trees, plan=replace(PLAN, transfer="mori over thor2"))[0]["transfer network"]
    assert (transfer.level, transfer.value) == (Level.WARN, "thor2 in the plan")
    assert transfer.hint == "`--set layout.transfer.network=ainic`"


def test_baseline_of_different_nics_or_ranks_warns(trees: tuple[Path, Path]) -> None:
    _, values = checked(trees)
    other = values.model_copy(update={"write_gbits": {"ionic_0": 391.5, "ionic_9": 391.5}})
    compared = checked(trees, baseline=other)[0]["ib_write_bw"]
    assert compared.level is Level.WARN
    assert compared.value.endswith("Gb/s; ionic_9 only in the baseline; ionic_1 not in the baseline")
    more = checked(trees, baseline=values.model_copy(update={"ranks": 32}))[0]["all-reduce"]
    assert (more.level, more.needed) == (Level.WARN, "32 ranks, as in the baseline")
    none = checked(trees, baseline=values, NCCL_IB_DISABLE="1")[0]["ib_write_bw"]
    assert (none.level, none.value) == (Level.WARN, "no NICs in use; ionic_0, ionic_1 only in the baseline")
    older = {"ionic_0": ["1.117.5-a-45"], "ionic_1": ["1.117.5-a-44"]}
    changed = checked(trees, baseline=values.model_copy(update={"firmware": older}))[0]["nic firmware"]
    assert (changed.value, changed.needed) == ("1.117.5-a-45", "1.117.5-a-44, as in the baseline")
    fewer = values.model_copy(update={"firmware": {"ionic_0": ["1.117.5-a-45"]}})
    assert checked(trees, baseline=fewer)[0]["nic firmware"].level is Level.INFO


def test_fabric_is_not_measured_while_gpus_are_busy(trees: tuple[Path, Path]) -> None:
    findings, values = checked(trees, busy=("n1",))
    assert findings["fabric"].value == "not checked: VRAM is in use on n1"
    assert (values.write_gbits, values.all_reduce_gbytes) == ({}, {})


@pytest.mark.parametrize(("failing", "missing"), [("ionic_1", "ionic_0, ionic_1"), ("-c", "all-reduce")])
def test_failed_measurement_does_not_replace_baseline(
    trees: tuple[Path, Path], tmp_path: Path, failing: str, missing: str
) -> None:
    def broken(tree: Path, metric: str, argv: Sequence[str]) -> Sequence[str]:
        return (
            ("false",)
            if argv[0] == "setpriv" and failing in argv and ("ib_write_bw" in argv) == (failing != "-c")
            else program(tree, metric, argv)
        )

    file = tmp_path / "site.json"
    good = preflight_fabric(PLAN, nodes_of(trees), Home(tmp_path), None, file)
    assert good.ready
    before = file.read_text()
    report = preflight_fabric(PLAN, nodes_of(trees, argv=broken), Home(tmp_path), None, file)
    [rejection] = [finding for finding in report.findings if finding.check == "baseline"]
    assert (rejection.level, rejection.value) == (Level.FAIL, f"no baseline recorded: {missing} not measured")
    assert file.read_text() == before


def test_baseline_without_nodes_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    [finding] = fabric_of_cluster(PLAN, Home(tmp_path), None, None)
    assert finding.level is Level.INFO
    for files in ((None, tmp_path / "new.json"), (tmp_path / "old.json", None)):
        [rejection] = fabric_of_cluster(PLAN, Home(tmp_path), *files)
        assert (rejection.level, rejection.value) == (Level.FAIL, "no nodes named")


def test_roles_on_separate_nodes_are_checked(
    trees: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    words = ("runtime=slurm", "server.api_key_env=K", "engine.python=/p")
    roles = plan_of("mi355x-1p1d", *words, "layout.tp=8")
    [finding] = fabric_of_cluster(roles, Home(tmp_path), None, None)
    assert (finding.value, "`salloc --nodes=2`" in finding.hint) == ("not checked: no nodes named", True)
    [finding] = fabric_of_cluster(
        plan_of("cpu-tiny-1p1d", *words, "layout.decode.nodes=4", "layout.decode.tp=4", "layout.prefill.tp=1"),
        Home(tmp_path),
        None,
        None,
    )
    assert "`salloc --nodes=4`" in finding.hint
    assert not fabric_of_cluster(plan_of("cpu-tiny-1p1d", *words), Home(tmp_path), None, None)  # over TCP
    preflight_fabric(roles, nodes_of(trees), Home(tmp_path), None, tmp_path / "site.json")
    assert read_model(tmp_path / "site.json", FabricBaseline, "site.json").ranks == 16


def test_image_missing_on_one_node_is_reported() -> None:
    missing_image = ("sh", "-c", "echo 'docker: Error response from daemon: No such image: x' >&2; exit 125")
    first = FabricNode(name="n0", address="127.0.0.1", argv=lambda _: ("sh", "-c", "echo timeout >&2; exit 124"))
    last = FabricNode(name="n1", address="", argv=lambda _: missing_image)
    with pytest.raises(NotMeasuredError, match="no image on n1") as raised:
        all_reduce_gbytes(PLAN, (first, last), ("python3",))
    assert "docker pull" in raised.value.install


def test_invalid_baseline_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"ranks": 2, "write_gbits": {"ionic_0": "fast"}}')
    with pytest.raises(ProfileError, match=r"x\.json` is not valid"):
        read_model(tmp_path / "x.json", FabricBaseline, "x.json")
