"""What preflight finds out about a cluster, by what its controller said of jobs (sbatch 22.05)."""

from collections.abc import Sequence

import pytest
from machine_samples import runner_of, sections
from plan_samples import plan_of

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.checks import preflight
from orchestrator.hosts.context import HostAccess
from orchestrator.hosts.report import Finding, Level
from orchestrator.runtimes import runtime_class

NODE = ("runtime=slurm", "server.allow_unauthenticated=true", "engine.python=/shared/python", "slurm.time_limit=30")
TAKEN = "sbatch: Job 1 to start at 2026-11-24T11:59:35 using 4 processors on nodes n0 in partition main\n"
REFUSED = "allocation failure: Requested node configuration is not available\n"
NOWHERE = "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified\n"
AWAY = "allocation failure: Unable to contact slurm controller (connect failure)\n"


def findings(*settings: str, profile: str = "mi355x-tp8", missing: str = "", **outputs: str) -> dict[str, Finding]:
    """Preflight of MI355X TP2 from a login node; what Slurm has `said` of a job that has an option of that name."""
    machine, kind = runner_of(sections("h200-idle")), runtime_class("slurm")

    def runner(argv: Sequence[str]) -> CompletedProgram:
        code, stdout, stderr = 0, "", ""
        if argv[:2] == ("sbatch", "--version"):
            stdout = "slurm-wlm 22.05.8\n"
        elif argv[:2] == ("sbatch", "--test-only"):
            stderr = next((text for option, text in outputs.items() if f"--{option}" in " ".join(argv)), TAKEN)
            code = int(stderr != TAKEN)
        elif argv[0] == "sinfo":
            stdout = "main*|1\nmain*|1\nshort|1\nlarge|8\n"  # a line for each state
        elif argv[-1].startswith("command -v"):
            code = int(argv[-1].endswith(missing or "-"))
        else:
            return machine(argv)
        return CompletedProgram(argv=tuple(argv), code=code, stdout=stdout, stderr=stderr)

    shape = () if profile == "mi355x-1p1d" else ("layout.tp=2", "flags.context-length=131072")
    plan = plan_of(profile, *NODE, *shape, *settings)
    access = HostAccess(runner=runner, environ={}, spaces=(), checkpoint=None, in_container=False)
    report = preflight(plan, access, kind.checks, local=kind.is_local)
    return {finding.check: finding for finding in report.findings}


def test_login_node_hardware_is_not_checked() -> None:
    """It has no GPUs of the plan's, no devices and no free ports that a server would need."""
    assert set(findings()) == {"slurm", "job", "interpreter"}


def test_accepted_job_is_reported() -> None:
    found = findings("slurm.gpu_type=mi355x", "slurm.partition=main")
    assert (found["slurm"].level, found["slurm"].value) == (Level.INFO, "slurm-wlm 22.05.8")
    assert (found["job"].level, found["job"].value) == (Level.INFO, "n0 of main, from 2026-11-24T11:59:35")
    wanted = "--nodes=1 --ntasks=1 --partition=main --time=30 --gres=gpu:mi355x:2 --cpus-per-task=20 --mem=472273M"
    assert found["job"].needed == wanted


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (REFUSED, "Requested node configuration is not available", "slurm.partition"),
        (NOWHERE, "Invalid partition name specified", "slurm.partition"),
        (AWAY, "Unable to contact slurm controller (connect failure)", "scontrol ping"),
    ],
)
def test_rejected_job_fails_with_reason(text: str, reason: str, hint: str) -> None:
    found = findings(gres=text)["job"]
    assert (found.level, found.value, hint in found.hint) == (Level.FAIL, reason, True)


def test_gateway_job_needs_its_own_node() -> None:
    several = ("replicas=2", "slurm.gateway_partition=cpu", "slurm.exclusive=true")
    assert set(findings(*several)) == {"slurm", "job", "gateway", "interpreter"}
    assert findings(*several, **{"partition=cpu": NOWHERE})["gateway"].level is Level.FAIL
    for settings in (
        ("replicas=2",),
        ("replicas=2", "slurm.partition=main"),
        ("replicas=2", "slurm.gateway_partition=main"),
    ):
        found = findings(*settings, "slurm.exclusive=true")["nodes"]
        assert (found.level, found.value, "slurm.gateway_partition" in found.hint) == (Level.FAIL, "2", True)
    assert "number of servers" in findings(*several, "replicas=3")["nodes"].hint
    assert "nodes" not in findings("replicas=2")
    assert "nodes" not in findings("replicas=2", "slurm.partition=short,large", "slurm.exclusive=true")


def test_missing_time_limit_is_a_warning() -> None:
    assert findings("slurm.time_limit=null")["time"].level is Level.WARN


def test_host_without_slurm_fails() -> None:
    found = findings(missing="sbatch")["slurm"]
    assert (found.level, found.value) == (Level.FAIL, "without sbatch")


def test_job_of_each_role_is_checked() -> None:
    roles = ("layout.decode.replicas=2", "slurm.gateway_partition=cpu")
    found = findings(*roles, "layout.decode.tp=8", profile="mi355x-1p1d", **{"gres=gpu:8": REFUSED})
    assert (found["prefill job"].level, found["decode job"].level) == (Level.INFO, Level.FAIL)
    assert findings(*roles, "slurm.exclusive=true", profile="mi355x-1p1d")["nodes"].needed.startswith("3,")
