"""Preflight checks of a Slurm cluster with recorded output of `sbatch --test-only` (22.05)."""

from collections.abc import Sequence

import pytest
from host_samples import runner_of, sections
from plan_samples import plan_of

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.checks import preflight
from orchestrator.hosts.context import HostAccess
from orchestrator.hosts.report import Finding, Level
from orchestrator.runtimes import runtime_class

SETTINGS = ("runtime=slurm", "server.allow_unauthenticated=true", "engine.python=/shared/python", "slurm.time_limit=30")
ACCEPTED = "sbatch: Job 1 to start at 2026-11-24T11:59:35 using 4 processors on nodes n0 in partition main\n"
REJECTED = "allocation failure: Requested node configuration is not available\n"
INVALID_PARTITION = (
    "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified\n"
)
UNREACHABLE = "allocation failure: Unable to contact slurm controller (connect failure)\n"


def findings(*settings: str, profile: str = "mi355x-tp8", missing: str = "", **outputs: str) -> dict[str, Finding]:
    """Return the findings on a login node; `outputs` are the responses of sbatch by option of the job."""
    recorded, runtime = runner_of(sections("h200-idle")), runtime_class("slurm")

    def runner(argv: Sequence[str]) -> CompletedProgram:
        code, stdout, stderr = 0, "", ""
        if argv[:2] == ("sbatch", "--version"):
            stdout = "slurm-wlm 22.05.8\n"
        elif argv[:2] == ("sbatch", "--test-only"):
            stderr = next((text for option, text in outputs.items() if f"--{option}" in " ".join(argv)), ACCEPTED)
            code = int(stderr != ACCEPTED)
        elif argv[0] == "sinfo":
            stdout = "main*|1\nmain*|1\nshort|1\nlarge|8\n"  # a line for each state
        elif argv[-1].startswith("command -v"):
            code = int(argv[-1].endswith(missing or "-"))
        else:
            return recorded(argv)
        return CompletedProgram(argv=tuple(argv), code=code, stdout=stdout, stderr=stderr)

    layout = () if profile == "mi355x-1p1d" else ("layout.tp=2", "flags.context-length=131072")
    plan = plan_of(profile, *SETTINGS, *layout, *settings)
    access = HostAccess(runner=runner, environ={}, spaces=(), checkpoint=None, in_container=False)
    report = preflight(plan, access, runtime.checks, local=runtime.is_local)
    return {finding.check: finding for finding in report.findings}


def test_login_node_hardware_is_not_checked() -> None:
    """The login node has neither the GPUs nor the devices nor the ports of the server."""
    assert set(findings()) == {"slurm", "job", "interpreter"}


def test_accepted_job_is_reported() -> None:
    result = findings("slurm.gpu_type=mi355x", "slurm.partition=main")
    assert (result["slurm"].level, result["slurm"].value) == (Level.INFO, "slurm-wlm 22.05.8")
    assert (result["job"].level, result["job"].value) == (Level.INFO, "n0 of main, from 2026-11-24T11:59:35")
    expected = "--nodes=1 --ntasks=1 --partition=main --time=30 --gres=gpu:mi355x:2 --cpus-per-task=20 --mem=472273M"
    assert result["job"].needed == expected


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (REJECTED, "Requested node configuration is not available", "slurm.partition"),
        (INVALID_PARTITION, "Invalid partition name specified", "slurm.partition"),
        (UNREACHABLE, "Unable to contact slurm controller (connect failure)", "scontrol ping"),
    ],
)
def test_rejected_job_fails_with_reason(text: str, reason: str, hint: str) -> None:
    result = findings(gres=text)["job"]
    assert (result.level, result.value, hint in result.hint) == (Level.FAIL, reason, True)


def test_gateway_job_needs_its_own_node() -> None:
    two_replicas = ("replicas=2", "slurm.gateway_partition=cpu", "slurm.exclusive=true")
    assert set(findings(*two_replicas)) == {"slurm", "job", "gateway", "interpreter"}
    assert findings(*two_replicas, **{"partition=cpu": INVALID_PARTITION})["gateway"].level is Level.FAIL
    for settings in (
        ("replicas=2",),
        ("replicas=2", "slurm.partition=main"),
        ("replicas=2", "slurm.gateway_partition=main"),
    ):
        result = findings(*settings, "slurm.exclusive=true")["nodes"]
        assert (result.level, result.value, "slurm.gateway_partition" in result.hint) == (Level.FAIL, "2", True)
    assert "number of servers" in findings(*two_replicas, "replicas=3")["nodes"].hint
    assert "nodes" not in findings("replicas=2")
    assert "nodes" not in findings("replicas=2", "slurm.partition=short,large", "slurm.exclusive=true")


def test_missing_time_limit_is_a_warning() -> None:
    assert findings("slurm.time_limit=null")["time"].level is Level.WARN


def test_host_without_slurm_fails() -> None:
    result = findings(missing="sbatch")["slurm"]
    assert (result.level, result.value) == (Level.FAIL, "without sbatch")


def test_job_of_each_role_is_checked() -> None:
    roles = ("layout.decode.replicas=2", "slurm.gateway_partition=cpu")
    result = findings(*roles, "layout.decode.tp=8", profile="mi355x-1p1d", **{"gres=gpu:8": REJECTED})
    assert (result["prefill job"].level, result["decode job"].level) == (Level.INFO, Level.FAIL)
    assert findings(*roles, "slurm.exclusive=true", profile="mi355x-1p1d")["nodes"].needed.startswith("3,")
