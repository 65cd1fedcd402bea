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

pytestmark = [pytest.mark.engine, needs_sshd]


def findings(*words: str) -> dict[str, dict[str, Any]]:
    """Run `deploy preflight` and return the findings about the network by check."""
    argv = [sys.executable, "-P", "-m", "orchestrator", "preflight", "cpu-tiny", "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
    told = json.loads(done.stdout)
    assert "fabric" in told, done.stderr
    return {finding["check"]: finding for finding in told["fabric"]["findings"]}


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
