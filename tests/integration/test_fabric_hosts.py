"""The network between nodes: real ssh to two hosts, both this machine, and all-reduce of the engine's real torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cpu_server import CpuEngine
from loopback_ssh import needs_sshd, ssh_server
from patience import PATIENCE
from ports import free_port
from slurm_cluster import SlurmCluster

from orchestrator.core.paths import Home

pytestmark = pytest.mark.engine
PREFLIGHT = (sys.executable, "-P", "-m", "orchestrator", "preflight", "cpu-tiny", "--json")


def findings(*words: str) -> dict[str, dict[str, Any]]:
    """Run `deploy preflight` and return the findings about the network by check."""
    done = subprocess.run([*PREFLIGHT, *words], capture_output=True, text=True, check=False, timeout=PATIENCE)
    told = json.loads(done.stdout)
    assert "fabric" in told, done.stderr
    return {finding["check"]: finding for finding in told["fabric"]["findings"]}


@needs_sshd
def test_two_hosts_are_measured_recorded_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_engine: CpuEngine
) -> None:
    (folder := tmp_path / "ssh").mkdir()
    baseline = tmp_path / "site.json"
    with ssh_server(folder, deploy_home=tmp_path, monkeypatch=monkeypatch) as url:
        known = (folder / "known").read_text()
        (folder / "known").write_text(known + known.replace("127.0.0.1", "localhost"))
        monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
        hosts = ("--host", url, "--host", url.replace("127.0.0.1", "localhost"))
        settings = ("--set", f"engine.python={cpu_engine.python}", "--set", f"server.port={free_port()}")
        found = findings(*hosts, *settings, "--save-baseline", str(baseline))
        assert (found["nics"]["level"], found["nics"]["found"]) == ("info", "none: the nodes talk over TCP")
        assert found["all-reduce"]["level"] == "info", found
        recorded = json.loads(baseline.read_text())
        assert recorded["ranks"] == len(recorded["nodes"]) == 2
        assert {*recorded["all_reduce_gbytes"]} == {str(1 << 20), str(1 << 24)}
        figures = {size: figure * 1000 for size, figure in recorded["all_reduce_gbytes"].items()}
        baseline.write_text(json.dumps({**recorded, "all_reduce_gbytes": figures}))
        compared = findings(*hosts, *settings, "--baseline", str(baseline))["all-reduce"]
        assert (compared["level"], compared["needed"]) == ("warn", "95% of the baseline")
        hidden = findings(*hosts, "--set", "engine.python=/nowhere/python", "--save-baseline", str(baseline))
        assert "/nowhere/python" in hidden["all-reduce"]["found"]


def test_the_nodes_of_an_allocation_are_measured(
    slurm_home: Home, cpu_engine: CpuEngine, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(slurm_home.root))
    wide = ("layout.nodes=2", "layout.tp=2", f"engine.python={cpu_engine.python}", f"server.port={free_port()}")
    settings = (*wide, "env.GLOO_SOCKET_IFNAME=lo", "server.allow_unauthenticated=true")
    words = [*PREFLIGHT, "--runtime", "slurm", *(word for each in settings for word in ("--set", each))]
    told = json.loads(slurm_cluster.run("salloc", "--quiet", "--nodes=2", "--exclusive", *words))
    found = {finding["check"]: finding for finding in told["findings"]}
    assert found["slurm"]["level"] == "info"
    assert found["all-reduce"]["level"] == "info", found
    assert str(1 << 24) in found["all-reduce"]["found"]
    outside = json.loads(slurm_cluster.run(*words))
    (named,) = [finding for finding in outside["findings"] if finding["check"] == "fabric"]
    assert "salloc --nodes=2" in named["hint"]
