"""One server on both nodes of a real Slurm, with real sglang as its ranks: one hangs."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import CommandLine
from cpu_server import CpuEngine
from ports import free_port
from slurm_cluster import SlurmCluster
from waits import wait_for

from orchestrator.core.paths import Home
from orchestrator.core.procfs import read_cmdline, server_processes
from orchestrator.runtimes.slurm.record import SERVER
from orchestrator.runtimes.supervisor.record import Record, read_record

pytestmark = [pytest.mark.engine, pytest.mark.slow]
NAME = "wide"
KEY = "sk-of-the-server-on-two-nodes"


@pytest.fixture
def deploy(slurm_home: Home, cpu_engine: CpuEngine, slurm_cluster: SlurmCluster) -> Iterator[CommandLine]:
    """Return `deploy`; cancel all jobs after the test."""
    assert cpu_engine.python.exists()
    yield CommandLine(slurm_home, {"THE_KEY": KEY})
    for number in slurm_cluster.queue():
        slurm_cluster.run("scancel", number)
    slurm_cluster.wait_for_nodes()
    wait_for(lambda: not slurm_cluster.queue())


def up(deploy: CommandLine) -> None:
    """Start the server on both nodes, with one tensor-parallel rank on each."""
    layout = ("layout.tp=2", "layout.nodes=2", "env.SGLANG_CPU_OMP_THREADS_BIND=0|1")
    settings = (*layout, "server.api_key_env=THE_KEY", f"server.port={free_port()}")
    sets = [word for setting in (*settings, "timeouts.termination_grace=20") for word in ("--set", setting)]
    done = deploy.run("up", "cpu-tiny", "--runtime", "slurm", "--name", NAME, *sets)
    assert done.returncode == 0, done.stderr


def status(deploy: CommandLine) -> dict[str, Any]:
    [server] = [entry for entry in json.loads(deploy.run("status", "--json").stdout) if entry["name"] == NAME]
    assert isinstance(server, dict)
    return server


def rank_record(run: Path, rank: int) -> Record:
    record = read_record(run / f"rank-{rank}" if rank else run, SERVER)
    assert record is not None
    return record


def scheduler(record: Record) -> int:
    [pid] = [process.pid for process in server_processes(record.markers) if "scheduler" in read_cmdline(process.pid)]
    return pid


def health(record: Record, host: str) -> int:
    port = record.argv[record.argv.index("--port") + 1]
    try:
        return httpx.get(f"http://{host}:{port}/health", timeout=30, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def test_two_node_server_lifecycle_with_hung_rank(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    up(deploy)
    [job] = slurm_cluster.queue()
    run = Path(status(deploy)["run_dir"])
    first, second = rank_record(run, 0), rank_record(run, 1)
    assert "nodes=2" in slurm_cluster.run("scontrol", "show", "job", job).lower()
    assert sorted(record.url[:9] for record in (first, second)) == ["http://n0", "http://n1"]
    assert "job-start.json" not in {path.name for path in run.rglob("*")}  # deleted after both have read their secrets
    assert deploy.run("smoke", NAME).returncode == 0
    assert deploy.run("status", NAME).returncode == 0
    logged = deploy.run("logs", NAME).stdout
    assert "==> server.log <==" in logged
    assert "==> rank-1/server.log <==" in logged
    assert KEY not in logged

    # A hung rank 1: only the health endpoint of rank 0 reports it.
    stopped = scheduler(second)
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    wait_for(lambda: health(first, "127.0.0.1") == 503)
    assert time.monotonic() - began > 5
    assert health(second, "127.0.0.2") == 200
    assert deploy.run("status", NAME).returncode != 0
    os.kill(stopped, signal.SIGCONT)
    wait_for(lambda: deploy.run("status", NAME).returncode == 0)

    # The others wait for rank 0, which is asked alone; that rank 1 then ends with 3 and a traceback is its way.
    assert deploy.run("down", NAME).returncode == 0
    assert not slurm_cluster.queue()
    assert rank_record(run, 1).exit_code == 3
    assert rank_record(run, 0).exit_code in {0, 137}
    ended = deploy.run("diagnose", NAME)
    assert "NoneType" not in ended.stdout
