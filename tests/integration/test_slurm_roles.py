"""Tests of prefill and decode servers as jobs of a real Slurm: on one node each, and a role on both nodes.

They use the scripted engine; `test_disaggregation.py` starts real sglang.
"""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import CommandLine
from cpu_server import CpuEngine
from ports import free_port
from slurm_cluster import SlurmCluster
from steady_load import client_of, complete
from waits import wait_for

from orchestrator.core.paths import Home
from orchestrator.core.procfs import find_process
from orchestrator.runtimes.slurm.record import SERVER
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from orchestrator.runtimes.supervisor.record import read_record
from orchestrator.servers.group import Server, servers_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ENGINE = Path(__file__).parents[1] / "support/scripted_engine.py"
NAME = "roles"
KEY = "sk-of-the-clients-of-both-roles"


@dataclass(frozen=True)
class Roles:
    deploy: CommandLine
    cluster: SlurmCluster
    port: int

    def words(self, *more: str) -> list[str]:
        scripted = (f"engine.python={ENGINE}", "model.questions=null", "timeouts.termination_grace=1")
        settings = (f"server.port={self.port}", "server.api_key_env=ROLES_KEY", "slurm.exclusive=false")
        sets = [word for setting in (*settings, *scripted, *more) for word in ("--set", setting)]
        return ["up", "cpu-tiny-1p1d", "--runtime", "slurm", "--name", NAME, *sets]

    @property
    def handle(self) -> Server:
        runtime = SlurmRuntime(self.deploy.home)
        [handle] = servers_of(runtime, runtime.find(NAME))
        return handle

    def role(self, role: str) -> Server:
        [server] = [server for server in self.handle.replicas if server.role == role]
        return server

    def kill(self, role: str, folder: str = "") -> None:
        """Kill the server of a role, or one of its ranks, as the kernel's OOM killer does."""
        record = read_record(Path(self.role(role).run_dir, folder), SERVER)
        assert record is not None
        assert record.server is not None
        process = find_process(record.server)
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)

    def jobs(self) -> dict[str, str]:
        """Return the node list of each job by the job's name."""
        rows = self.cluster.run("squeue", "--noheader", "--format=%j %N").splitlines()
        return {row.split()[0]: row.split()[1] for row in rows}


@pytest.fixture
def roles(slurm_home: Home, cpu_engine: CpuEngine, slurm_cluster: SlurmCluster) -> Iterator[Roles]:
    """Return the servers of both roles; cancel all jobs after the test."""
    assert cpu_engine.python.exists()
    yield Roles(CommandLine(slurm_home, {"ROLES_KEY": KEY}), slurm_cluster, free_port())
    for number in slurm_cluster.queue():
        slurm_cluster.run("scancel", number)
    slurm_cluster.wait_for_nodes()
    wait_for(lambda: not slurm_cluster.queue())


def test_pair_on_two_nodes_is_verified(roles: Roles) -> None:
    # Each server takes all GPUs of a node, so the roles run on different nodes.
    words = roles.words("slurm.sbatch_options=[--gpus-per-node=2]")
    done = roles.deploy.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check["verdict"] for check in json.loads(done.stdout)["smoke"]["checks"]}
    for name in ("pair: KV cache transferred", "pair: answer of one server", "gateway: replicas registered"):
        assert checks[name] == "passed", (name, checks)
    assert "is already up" in roles.deploy.run(*words).stderr
    jobs = roles.jobs()
    assert jobs.keys() == {f"{NAME}-prefill-1", f"{NAME}-decode-1", f"{NAME}-gateway"}
    assert jobs[f"{NAME}-prefill-1"] != jobs[f"{NAME}-decode-1"]

    assert roles.deploy.run("status", NAME).returncode == 0
    assert roles.deploy.run("down", NAME).returncode == 0
    assert not roles.cluster.queue()


def test_role_on_both_nodes_ends_and_restarts_as_one_job(roles: Roles) -> None:
    two_nodes = ("layout.decode.nodes=2", "layout.decode.tp=2", "layout.prefill.tp=1")
    done = roles.deploy.run(*roles.words(*two_nodes))
    assert done.returncode == 0, done.stderr
    jobs = roles.jobs()
    assert jobs.keys() == {f"{NAME}-prefill-1", f"{NAME}-decode-1", f"{NAME}-gateway"}
    assert jobs[f"{NAME}-decode-1"] == "n[0-1]"
    assert "==> decode-1/rank-1/server.log <==" in roles.deploy.run("logs", NAME).stdout

    untouched = roles.role("prefill")
    roles.kill("decode", "rank-1")
    wait_for(lambda: roles.deploy.run("status", NAME).returncode == 8)
    wait_for(lambda: f"{NAME}-decode-1" not in roles.jobs())
    stderr = roles.deploy.run("status", NAME).stderr
    assert "decode 1 of 1 is not running: rank 1 on n1 exited first: killed by SIGKILL" in stderr, stderr
    with roles.deploy.running("watch", NAME, "--json") as watch:
        assert [json.loads(watch.line())["event"] for _ in range(3)] == ["unhealthy", "died", "restarted"]
        assert watch.end(signal.SIGINT)[0] == 130
    assert roles.jobs()[f"{NAME}-decode-1"] == "n[0-1]"
    assert roles.role("prefill") == untouched
    with client_of(roles.handle.url, KEY) as client:
        assert complete(client).status_code == 200
    assert roles.deploy.run("down", NAME).returncode == 0
    assert not roles.cluster.queue()
