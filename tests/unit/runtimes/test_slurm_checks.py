"""What preflight finds out about a cluster, by what sinfo printed of one."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from machine_samples import runner_of, sections
from plan_samples import plan_of

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.checks import preflight
from orchestrator.hosts.context import HostAccess
from orchestrator.hosts.report import Level
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.slurm.checks import read_groups, seconds

SINFO = (Path(__file__).with_name("slurm_recorded") / "sinfo.txt").read_text()
NODE = ("runtime=slurm", "server.allow_public=true", "engine.python=/shared/python", "slurm.time=30")


def findings(*settings: str, sinfo: str = SINFO, missing: str = "", code: int = 0) -> dict[str, tuple[Level, str]]:
    """Preflight of MI355X TP2 from a login node, by the name of each check that a cluster or its nodes are asked."""
    machine, kind = runner_of(sections("h200-idle")), runtime_class("slurm")

    def runner(argv: Sequence[str]) -> CompletedProgram:
        if argv[0] == "sinfo":
            stdout = "slurm-wlm 22.05.8\n" if argv[-1] == "--version" else sinfo
            return CompletedProgram(argv=tuple(argv), code=code, stdout=stdout, stderr="sinfo: error: no controller")
        if argv[-1].startswith("command -v"):
            return CompletedProgram(argv=tuple(argv), code=int(argv[-1].endswith(missing or "-")), stdout="", stderr="")
        return machine(argv)

    plan = plan_of("mi355x-tp8", *NODE, "layout.tp=2", *settings)
    access = HostAccess(runner=runner, environ={}, spaces=(), checkpoint=None, contained=False)
    report = preflight(plan, access, kind.checks(), here=kind.here)
    return {finding.check: (finding.level, finding.found) for finding in report.findings}


def test_nothing_of_the_login_node_matters() -> None:
    """It has no GPUs of the plan's, no devices and no free ports that a server would need."""
    assert set(findings("slurm.gpu_type=mi355x")) == {"slurm", "partition", "gres", "time", "interpreter"}


def test_a_cluster_that_has_all() -> None:
    found = findings("slurm.gpu_type=mi355x")
    assert found["slurm"] == (Level.INFO, "slurm-wlm 22.05.8")
    assert found["partition"] == (Level.INFO, "main: 2 nodes, 2 mixed")
    assert found["gres"] == (Level.INFO, "2 of mi355x a node")
    assert found["time"] == (Level.INFO, "30")


@pytest.mark.parametrize(
    ("settings", "check", "level", "text"),
    [
        (["slurm.partition=nope"], "partition", Level.FAIL, "main, short"),
        (["slurm.gpu_type=h100"], "gres", Level.FAIL, "2 of mi355x a node"),
        (["layout.tp=4"], "gres", Level.FAIL, "2 of mi355x a node"),
        (["slurm.partition=short"], "time", Level.FAIL, "short gives 1:00"),
        (["slurm.time=null"], "time", Level.WARN, "the partition's default"),
        (["replicas=2"], "nodes", Level.FAIL, "2 in main"),  # and one for their gateway
        (["replicas=2", "slurm.gateway_partition=main"], "nodes", Level.FAIL, "2 in main"),
        (["replicas=2", "slurm.gateway_partition=short"], "nodes", Level.INFO, "2 in main"),
        (["replicas=2", "slurm.gateway_partition=nope"], "gateway", Level.FAIL, "main, short"),
    ],
)
def test_what_a_cluster_lacks(settings: list[str], check: str, level: Level, text: str) -> None:
    assert findings(*settings)[check] == (level, text)


def test_a_partition_that_takes_no_jobs() -> None:
    assert findings(sinfo=SINFO.replace("|up|", "|drain|"))["partition"][0] is Level.FAIL
    assert findings(sinfo=SINFO.replace("mixed", "down*"))["partition"] == (Level.WARN, "main: 2 down*")


def test_a_machine_without_slurm() -> None:
    assert findings(missing="sbatch")["slurm"] == (Level.FAIL, "without sbatch")
    assert findings(code=1)["slurm"] == (Level.FAIL, "sinfo: error: no controller")


def test_gpus_are_read_from_every_form_of_gres() -> None:
    line = "main*|infinite|up|4|idle|gpu:mi355x:8(S:0-1),nvme:2,gpu:2"
    [group] = read_groups(line)
    assert (group.gpus, group.default, group.limit) == ((("mi355x", 8), ("", 2)), True, "infinite")
    assert read_groups("main|1:00|up|1|idle|(null)")[0].gpus == ()
    assert read_groups("something else") == ()


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("30", 1800),
        ("infinite", float("inf")),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("2-12", 216000),
        ("1-00:30", 88200),
        ("7-00:00:00", 604800),
    ],
)
def test_times_as_slurm_writes_them(time: str, expected: float) -> None:
    assert seconds(time) == expected
