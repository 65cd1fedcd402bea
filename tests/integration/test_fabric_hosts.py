"""Measure the network between nodes with real ssh to two hosts, both this machine, and the engine's real torch."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import processes_with
from cpu_server import CpuEngine
from loopback_ssh import needs_sshd, ssh_server
from ports import free_port
from slurm_cluster import SlurmCluster
from waits import TIMEOUT, wait_for

from orchestrator.core.paths import Home

pytestmark = pytest.mark.engine
PREFLIGHT = (sys.executable, "-P", "-m", "orchestrator", "preflight", "cpu-tiny", "--json")


def findings(*words: str) -> dict[str, dict[str, Any]]:
    """Run `deploy preflight` and return the findings about the network by check."""
    done = subprocess.run([*PREFLIGHT, *words], capture_output=True, text=True, check=False, timeout=TIMEOUT)
    report = json.loads(done.stdout)
    assert "fabric" in report, done.stderr
    return {finding["check"]: finding for finding in report["fabric"]["findings"]}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """The options of two hosts: this machine under two names."""
    (folder := tmp_path / "ssh").mkdir()
    with ssh_server(folder, deploy_home=tmp_path, monkeypatch=monkeypatch) as url:
        known_hosts = (folder / "known").read_text()
        (folder / "known").write_text(known_hosts + known_hosts.replace("127.0.0.1", "localhost"))
        monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
        yield ("--host", url, "--host", url.replace("127.0.0.1", "localhost"))


@needs_sshd
def test_two_host_measurement_is_recorded_and_compared(
    tmp_path: Path, hosts: tuple[str, ...], cpu_engine: CpuEngine
) -> None:
    baseline = tmp_path / "site.json"
    settings = ("--set", f"engine.python={cpu_engine.python}", "--set", f"server.port={free_port()}")
    results = findings(*hosts, *settings, "--save-baseline", str(baseline))
    assert (results["nics"]["level"], results["nics"]["value"]) == ("info", "not used: the ranks communicate over TCP")
    assert results["all-reduce"]["level"] == "info", results
    recorded = json.loads(baseline.read_text())
    assert recorded["ranks"] == 2
    assert {*recorded["all_reduce_gbytes"]} == {str(1 << 20), str(1 << 24)}
    values = {size: metric * 1000 for size, metric in recorded["all_reduce_gbytes"].items()}
    baseline.write_text(json.dumps({**recorded, "all_reduce_gbytes": values}))
    compared = findings(*hosts, *settings, "--baseline", str(baseline))["all-reduce"]
    assert (compared["level"], compared["needed"]) == ("warn", "95% of the baseline")
    before = baseline.read_text()
    broken = findings(*hosts, "--set", "engine.python=/nowhere/python", "--save-baseline", str(baseline))
    assert broken["all-reduce"]["level"] == "fail"
    assert "/nowhere/python" in broken["all-reduce"]["value"]
    assert broken["baseline"]["level"] == "fail"
    assert baseline.read_text() == before


@needs_sshd
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_measurement_on_every_host(tmp_path: Path, hosts: tuple[str, ...], number: signal.Signals) -> None:
    """The time limit would also end the program, but with an open connection; the program reports a closed one."""
    hanging = tmp_path / "hanging"
    begin = "exec 2>&-; connection() { grep PPid /proc/$PPID/status; }; begun=$(connection)"
    end = f'[ "$begun" = "$(connection)" ] || echo >{tmp_path}/disconnected.$$; exit'
    hanging.write_text(f"#!/bin/sh\n{begin}; trap '{end}' TERM; while :; do sleep 1; done\n")
    hanging.chmod(0o755)
    words = [*PREFLIGHT, *hosts, "--set", f"engine.python={hanging}", "--save-baseline", str(tmp_path / "site.json")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_for(lambda: len(processes_with(f"/bin/sh {hanging} -c")) == 2)
        process.send_signal(number)  # to the command alone, as a supervisor does
        assert process.wait(TIMEOUT) == 130
    wait_for(lambda: not processes_with(f"/bin/sh {hanging} -c"))
    assert len([*tmp_path.glob("disconnected.*")]) == 2
    assert not (tmp_path / "site.json").exists()


def test_nodes_of_slurm_allocation_are_measured(
    slurm_home: Home, cpu_engine: CpuEngine, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(slurm_home.root))
    wide = ("layout.nodes=2", "layout.tp=2", f"engine.python={cpu_engine.python}", f"server.port={free_port()}")
    settings = (*wide, "env.GLOO_SOCKET_IFNAME=lo", "server.allow_unauthenticated=true")
    words = [*PREFLIGHT, "--runtime", "slurm", *(word for setting in settings for word in ("--set", setting))]
    report = json.loads(slurm_cluster.run("salloc", "--quiet", "--nodes=2", "--exclusive", *words))
    results = {finding["check"]: finding for finding in report["findings"]}
    assert results["slurm"]["level"] == "info"
    assert results["all-reduce"]["level"] == "info", results
    assert str(1 << 24) in results["all-reduce"]["value"]
    outside = json.loads(slurm_cluster.run(*words))
    (finding,) = [finding for finding in outside["findings"] if finding["check"] == "fabric"]
    assert "salloc --nodes=2" in finding["hint"]
