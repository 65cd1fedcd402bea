"""The checks of the network between nodes: NICs as trees of files, read by the real shell; recorded measurements."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.fabric import Fabric, fabric_findings, read_fabric_nics
from orchestrator.hosts.fabric_baseline import FabricBaseline, read_baseline, save_baseline
from orchestrator.hosts.fabric_measure import FabricNode, NotMeasuredError, write_gbits
from orchestrator.hosts.nics import nic_survey, read_nics
from orchestrator.hosts.report import Finding, Level
from orchestrator.hosts.survey import local
from orchestrator.plan.plan import EnvVar
from orchestrator.planner.planning import read_networks
from orchestrator.servers.start.fabric import compare_hosts

NETWORKS = read_networks(Catalog.shipped())
PLAN = plan_of(
    "mi355x-tp8", "runtime=slurm", "layout.nodes=2", "layout.tp=16", "server.api_key_env=K", "engine.python=/p"
)
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
WRITTEN = """\
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


def run(sysfs: Path, figure: str, argv: Sequence[str]) -> CompletedProgram:
    """Run what the checks run on a node: the survey on a tree of files, and a recorded measurement."""
    if "ib_write_bw" in argv:
        assert "-x" in argv
        return CompletedProgram(argv=tuple(argv), code=0, stdout=WRITTEN % figure, stderr="")
    if argv[0] == "sh":
        return local([word.replace("cd /sys/", f"cd {sysfs}/") for word in argv])
    printed = "1048576 10.500\n8589934592 338.250\n"
    return CompletedProgram(argv=tuple(argv), code=0, stdout=printed, stderr="")


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Two nodes with two equal NICs each."""
    for node in ("n0", "n1"):
        for name in ("ionic_0", "ionic_1"):
            add_nic(tmp_path / node, name)
    return tmp_path / "n0", tmp_path / "n1"


def checked(
    trees: Sequence[Path], *, figure: str = "391.50", baseline: FabricBaseline | None = None, **env: str
) -> tuple[dict[str, Finding], FabricBaseline]:
    plan = replace(PLAN, env=tuple(EnvVar(name=key, value=each, origin="user", source="") for key, each in env.items()))  # type: ignore[arg-type]
    nodes = [FabricNode(name=tree.name, address="127.0.0.1", runner=partial(run, tree, figure)) for tree in trees]
    fabric = Fabric(
        plan=plan,
        nodes=nodes,
        nics=read_fabric_nics(plan, nodes),
        networks=NETWORKS,
        python=("python3",),
        baseline=baseline,
    )
    found = list(fabric_findings(fabric))
    return {finding.check: finding for finding in found}, fabric.figures


def test_equal_nodes_pass_and_become_a_baseline(trees: tuple[Path, Path], tmp_path: Path) -> None:
    found, figures = checked(trees)
    assert {finding.level for finding in found.values()} == {Level.INFO}
    assert found["nics"].found == "ionic_0, ionic_1, AMD Pensando Pollara 400 (AINIC)"
    assert found["gid"].found == "index 3 on n0; index 3 on n1"
    assert (
        found["ib_write_bw"].needed
        == "no baseline; 280 Gb/s elsewhere (ROCm/cvs dddd9143, ibperf_config.json: a sample)"
    )
    save_baseline(tmp_path / "site.json", figures)
    again, _ = checked(trees, baseline=read_baseline(tmp_path / "site.json"))
    assert again["ib_write_bw"].needed == again["all-reduce"].needed == "95% of the baseline"
    slower, _ = checked(trees, baseline=read_baseline(tmp_path / "site.json"), figure="300.00")
    assert slower["ib_write_bw"].level is Level.WARN
    assert slower["ib_write_bw"].found == "ionic_0 300 of 391.5, ionic_1 300 of 391.5 Gb/s"


def test_a_start_on_several_hosts_compares_and_measures_nothing(trees: tuple[Path, Path], tmp_path: Path) -> None:
    def asked(tree: Path, argv: Sequence[str]) -> CompletedProgram:
        assert argv[0] == "sh"
        return run(tree, "", argv)

    found = compare_hosts(PLAN, {tree.name: partial(asked, tree) for tree in trees}, Home(tmp_path))
    assert [finding.check for finding in found] == ["nics", "gid", "nic firmware"]


def test_a_nic_that_one_node_lacks_and_a_link_that_is_down(tmp_path: Path) -> None:
    add_nic(tmp_path / "n0", "ionic_0")
    add_nic(tmp_path / "n0", "ionic_1")
    add_nic(tmp_path / "n1", "ionic_0", state="1: DOWN", rate="40 Gb/sec (4X QDR)")
    found, _ = checked([tmp_path / "n0", tmp_path / "n1"])
    assert (found["nics"].level, found["nics"].found) == (Level.FAIL, "ionic_0 on n1 is DOWN")
    lacking = [each for each in checked_all([tmp_path / "n0", tmp_path / "n1"]) if "lacks" in each.found]
    assert [each.found for each in lacking] == ["n1 lacks ionic_1"]


def checked_all(trees: Sequence[Path]) -> list[Finding]:
    nodes = [FabricNode(name=tree.name, address="127.0.0.1", runner=partial(run, tree, "1")) for tree in trees]
    nics = read_fabric_nics(PLAN, nodes)
    return list(
        fabric_findings(Fabric(plan=PLAN, nodes=nodes, nics=nics, networks=NETWORKS, python=None, baseline=None))
    )


def test_the_front_network_is_no_part_of_the_fabric(trees: tuple[Path, Path]) -> None:
    add_nic(trees[0], "mlx5_0", vendor="0x15b3")
    add_nic(trees[0], "ionic_9", rate="25 Gb/sec (1X EDR)")
    found, figures = checked(trees)
    assert found["nics"].level is Level.INFO
    assert {*figures.write_gbits} == {"ionic_0", "ionic_1"}


@pytest.mark.parametrize(
    ("value", "names"),
    [("ionic_1:1", {"ionic_1"}), ("ionic", {"ionic_0", "ionic_1"}), ("^ionic_0", {"ionic_1"}), ("=ionic", set())],
)
def test_the_plan_names_the_nics(trees: tuple[Path, Path], value: str, names: set[str]) -> None:
    found, figures = checked(trees, NCCL_IB_HCA=value)
    assert {*figures.write_gbits} == names
    assert (found["nics"].level is Level.INFO) == bool(names)


@pytest.mark.parametrize(
    ("rows", "value", "level", "hint"),
    [
        ({0: GIDS[1], 1: GIDS[3]}, "1", Level.FAIL, "`--set env.MC_GID_INDEX=-1`"),  # 1 is right on one node only
        (GIDS, "1", Level.FAIL, "`--set env.MC_GID_INDEX=3`"),
        (GIDS, "3", Level.INFO, ""),
        ({0: GIDS[1], 1: GIDS[2]}, "1", Level.FAIL, "give the NIC's interface an address"),
    ],
)
def test_the_row_of_roce_v2_is_read_on_each_node(
    tmp_path: Path, rows: dict[int, tuple[str, str]], value: str, level: Level, hint: str
) -> None:
    add_nic(tmp_path / "n0", "ionic_0")
    add_nic(tmp_path / "n1", "ionic_0", gids=rows)
    found, _ = checked([tmp_path / "n0", tmp_path / "n1"], MC_GID_INDEX=value)
    assert found["gid"].level is level
    assert found["gid"].hint.startswith(hint)


@pytest.mark.parametrize(
    ("versions", "level", "found"),
    [
        (("1.117.5-a-45", "1.117.5-a-50"), Level.WARN, "n0: 1.117.5-a-45; n1: 1.117.5-a-50"),
        (("1.117.1-a-63", "1.117.1-a-63"), Level.WARN, "1.117.1-a-63"),
        (("1.117.5-a-50", "1.117.5-a-50"), Level.INFO, "1.117.5-a-50"),
    ],
)
def test_firmware(tmp_path: Path, versions: tuple[str, str], level: Level, found: str) -> None:
    for node, firmware in zip(("n0", "n1"), versions, strict=True):
        add_nic(tmp_path / node, "ionic_0", firmware=firmware)
    finding = checked([tmp_path / "n0", tmp_path / "n1"])[0]["nic firmware"]
    assert (finding.level, finding.found) == (level, found)


def test_this_machine_is_read_by_the_same_command() -> None:
    done = subprocess.run(["sh", "-c", nic_survey()], capture_output=True, text=True, check=True)
    folder = Path("/sys/class/infiniband")
    assert {nic.name for nic in read_nics(done.stdout)} == {path.name for path in folder.glob("*")}


def test_a_program_that_is_missing_is_named(trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [FabricNode(name=tree.name, address="127.0.0.1", runner=partial(run, tree, "1")) for tree in trees]
    nic = read_fabric_nics(PLAN, nodes)["n0"]["ionic_0"]
    here = FabricNode(name="here", address="127.0.0.1", runner=local)
    for program in ("sh", "setpriv", "timeout", "sleep"):
        (trees[0] / program).symlink_to(shutil.which(program) or "")
    monkeypatch.setenv("PATH", str(trees[0]))
    with pytest.raises(NotMeasuredError, match="no `ib_write_bw` on here") as raised:
        write_gbits(here, here, (nic, nic))
    assert "apt-get install perftest" in raised.value.install


def test_a_file_that_is_no_baseline(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"nodes": ["a"], "write_gbits": {"ionic_0": "fast"}}')
    with pytest.raises(UsageError, match=r"x\.json` is not valid"):
        read_baseline(tmp_path / "x.json")
