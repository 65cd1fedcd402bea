"""Tests of replicas and their real gateway as jobs of a real Slurm, with the scripted engine."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import CommandLine, processes_with
from cpu_server import CpuEngine
from ports import free_port
from proc_files import environ_of
from slurm_cluster import GPU_TYPE, SlurmCluster
from steady_load import client_of, complete, load
from user_profiles import add_profiles
from waits import wait_for

from orchestrator.core.paths import Home
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from orchestrator.servers.group import Server, servers_of
from orchestrator.verify.gateway import count_workers

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"
KEY = "sk-of-the-clients-of-the-cluster"
NAME = "pair"
FILL = (("n0", 3), ("n1", 4))  # node and CPUs; a node has four CPUs, a server of these tests needs one


@dataclass(frozen=True)
class Pair:
    """Two replicas and their gateway in a cluster, and `deploy` to start them."""

    deploy: CommandLine
    cluster: SlurmCluster
    port: int

    @property
    def handle(self) -> Server:
        runtime = SlurmRuntime(self.deploy.home)
        [handle] = servers_of(runtime, runtime.find(NAME))
        return handle

    def words(self, *more: str) -> list[str]:
        own = [f"server.port={self.port}", f"engine.python={ENGINE}", "timeouts.termination_grace=1", "replicas=2"]
        fixed = ["model.questions=null", "server.api_key_env=PAIR_KEY", "slurm.exclusive=false"]
        settings = (word for setting in (*own, *fixed, *more) for word in ("--set", setting))
        return ["up", "cpu-tiny", "--runtime", "slurm", "--name", NAME, *settings]

    def up(self, *settings: str, replace: bool = False) -> None:
        done = self.deploy.run(*self.words(*settings), *(["--replace"] if replace else []))
        assert done.returncode == 0, done.stderr

    def status(self) -> dict[str, Any]:
        [server] = [entry for entry in json.loads(self.deploy.run("status", "--json").stdout) if entry["name"] == NAME]
        assert isinstance(server, dict)
        return server


@pytest.fixture
def pair(slurm_home: Home, cpu_engine: CpuEngine, slurm_cluster: SlurmCluster) -> Iterator[Pair]:
    """Return the pair; cancel all jobs after the test."""
    assert cpu_engine.python.exists()
    add_profiles(slurm_home.root)
    yield Pair(CommandLine(slurm_home, {"PAIR_KEY": KEY}), slurm_cluster, free_port())
    for number in slurm_cluster.queue():
        slurm_cluster.run("scancel", number)
    slurm_cluster.wait_for_nodes()
    wait_for(lambda: not slurm_cluster.queue())


def test_replica_and_gateway_jobs_full_lifecycle(pair: Pair) -> None:
    """The API key appears nowhere. When a replica's job is cancelled, no request fails, and the watch restarts it."""
    pair.up()
    jobs = pair.cluster.queue()
    assert len(jobs) == 3
    handle = pair.handle
    assert {server.url.rpartition(":")[2] for server in handle.replicas} == {
        str(pair.port + offset) for offset in (8, 16)
    }
    with client_of(handle.url, KEY) as client:
        assert complete(client).status_code == 200
        client.headers.pop("Authorization")
        assert complete(client).status_code == 401
        assert httpx.get(f"{handle.replicas[0].url}/v1/models", trust_env=False).status_code == 401
    control = Path(handle.run_dir, "gateway.key").read_text()
    texts = [pair.cluster.run("scontrol", "show", "job", job) for job in jobs]
    texts += [pair.cluster.run("scontrol", "write", "batch_script", job, "-") for job in jobs]
    texts += [*processes_with("scripted_engine"), *processes_with("launch_gateway"), *processes_with("slurm.job")]
    files = [path for path in Path(handle.run_dir).rglob("*") if path.is_file() and path.name != "gateway.key"]
    state = [path for path in (pair.cluster.folder / "state").rglob("*") if path.is_file()]
    texts += [path.read_text(errors="replace") for path in (*files, *state)]
    assert not [text for text in texts if KEY in text or control in text]

    smoke = json.loads(pair.deploy.run("smoke", NAME, "--json").stdout)
    names = {check["name"] for check in smoke["checks"]}
    assert (smoke["ok"], {"replica 2: served model", "gateway: replicas registered"} <= names) == (True, True)
    log = pair.deploy.run("logs", NAME).stdout
    assert all(f"==> {name} <==" in log for name in ("server.log", "replica-1/server.log", "replica-2/server.log"))
    again = pair.deploy.run(*pair.words())
    assert (again.returncode, "is already up" in again.stderr) == (0, True), again.stderr

    statuses: list[int] = []
    with load(handle.url, KEY, statuses):
        wait_for(lambda: len(statuses) > 20)
        pair.cluster.run("scancel", handle.replicas[1].runtime_id)
        wait_for(lambda: count_workers(handle.url) == 1)
        result = pair.deploy.run("status", NAME)
        assert (result.returncode, "replica 2 of 2 is not running: its job was cancelled" in result.stderr) == (
            8,
            True,
        ), result
        with pair.deploy.running("watch", NAME, "--json") as watch:
            events = [json.loads(watch.line()) for _ in range(3)]
            assert [event["event"] for event in events] == ["unhealthy", "died", "restarted"]
            assert watch.end(signal.SIGINT)[0] == 130
        assert count_workers(handle.url) == 2
    assert set(statuses) == {200}
    assert pair.handle.replicas[0] == handle.replicas[0]

    assert pair.deploy.run("down", NAME).returncode == 0
    assert not pair.cluster.queue()
    assert pair.deploy.run("status", NAME).returncode == 6


def test_replicas_share_a_node_when_they_fit(pair: Pair, tmp_path: Path) -> None:
    """Each replica takes one of a node's two GPUs; the gateway does not need a whole node."""
    python, versions = tmp_path / "python", '{"sglang": "0.5.16", "cuda": "13.0"}'
    python.write_text(f"#!/bin/sh\nSCRIPTED_VERSIONS='{versions}' exec {ENGINE} \"$@\"\n")
    python.chmod(0o755)
    share = "slurm.sbatch_options=[--cpus-per-task=1, --mem=1G]"  # a node of the tests has 4 CPUs and 4 GB
    settings = [f"server.port={pair.port}", "replicas=2", f"engine.python={python}", "model.questions=null", share]
    settings += ["server.api_key_env=PAIR_KEY", "hardware.gpus=2", f"slurm.gpu_type={GPU_TYPE}"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = pair.deploy.run("up", "h200-tiny", "--runtime", "slurm", "--name", NAME, *words)
    assert done.returncode == 0, done.stderr
    listed = pair.cluster.run("squeue", "--noheader", "--format=%j %N %b").splitlines()
    jobs = {name: (node, gres) for name, node, gres in map(str.split, listed)}
    assert jobs.keys() == {f"{NAME}-1", f"{NAME}-2", f"{NAME}-gateway"}
    assert jobs[f"{NAME}-1"] == jobs[f"{NAME}-2"] == (jobs[f"{NAME}-1"][0], f"gres:gpu:{GPU_TYPE}:1")
    ports = [replica.url.rpartition(":")[2] for replica in pair.handle.replicas]
    assert len(set(ports)) == 2
    assert {environ_of(f"--port {port} ")["ROCR_VISIBLE_DEVICES"] for port in ports} == {"0", "1"}


def test_rolling_update_and_rollback_of_jobs_lose_no_response(pair: Pair) -> None:
    pair.up()
    first, statuses = pair.handle, []
    with load(first.url, KEY, statuses):
        pair.up("env.SCRIPTED_STEP=0.001", replace=True)
        changed = pair.handle
        assert {Path(server.run_dir).parent for server in changed.replicas} == {Path(changed.run_dir)}
        assert (changed.runtime_id, changed.gateway_dir) == (first.runtime_id, first.run_dir)
        assert set(changed.replicas).isdisjoint(first.replicas)

        broken = pair.deploy.run(*pair.words("env.SCRIPTED_BROKEN=1"), "--replace")
        assert broken.returncode == 7
        assert "0 of 2 replicas have this plan, 1 has another plan, 1 is down" in broken.stderr
        assert count_workers(first.url) == 1
        back = pair.deploy.run("rollback", NAME)
        assert (back.returncode, "replica 2 of 2: draining" in back.stderr) == (0, False), back.stderr
        assert pair.handle.plan_digest == changed.plan_digest
        assert count_workers(first.url) == 2
    assert set(statuses) == {200}
    assert pair.deploy.run("down", NAME).returncode == 0
    assert not pair.cluster.queue()


@pytest.mark.parametrize("stage", ["started replica 2", "replica 1 of 2 is ready"])
def test_ctrl_c_cancels_every_job(pair: Pair, stage: str) -> None:
    with pair.deploy.running(*pair.words("env.SCRIPTED_PAUSE=0.2")) as command:
        command.wait_for(stage)
        command.send(signal.SIGINT)
        assert command.wait()[0] == 130
    assert not pair.cluster.queue()
    assert SlurmRuntime(pair.deploy.home).find(NAME) == ()


def test_exited_replica_aborts_start_while_another_is_pending(pair: Pair) -> None:
    """The other replica may be pending for hours. Other jobs occupy all CPUs of the nodes except one."""
    words = ("sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", "--wrap=sleep 600")
    job_ids = [pair.cluster.run(*words, f"--nodelist={node}", f"--ntasks={tasks}").strip() for node, tasks in FILL]
    wait_for(lambda: pair.cluster.run("squeue", "--noheader", "--states=running", "--format=%i").split() >= job_ids)
    with pair.deploy.running(*pair.words()) as command:
        command.wait_for("job .* is pending: Resources")
        [first] = set(pair.cluster.run("squeue", "--noheader", "--states=running", "--format=%i").split()) - {*job_ids}
        pair.cluster.run("scancel", first)
        assert command.wait()[0] == 7
    assert sorted(pair.cluster.queue()) == sorted(job_ids)


def test_unschedulable_gateway_hints_at_gateway_partition(pair: Pair) -> None:
    """The replicas would occupy both nodes, so the error is reported before a job is submitted."""
    done = pair.deploy.run(*pair.words("slurm.exclusive=true"))
    assert done.returncode == 4, done.stderr
    assert "slurm.gateway_partition" in done.stderr
    assert not pair.cluster.queue()
