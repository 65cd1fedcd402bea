"""Two replicas of real sglang: each scheduler reads the table, each rank answers, and the death of one is told.

The schedulers are asked through /proc. In a container the scripted engine is asked: how a variable gets to a scheduler
is sglang's own matter, there as here.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer, healthy, processes_of, wait_by_its_log
from docker_server import DockerEngine
from kernel_samples import FUSED_TP8, every_bucket, glm_plan
from waits import wait_for

from orchestrator.core.procfs import read_process
from orchestrator.engine import liveness
from orchestrator.evals.logprobs.run import ProbeOptions, ProbeSide, measure_reference, run_probe
from orchestrator.kernels.disk.store import Store
from orchestrator.runtimes.base import Status
from orchestrator.servers.group import RunningServer, ServerGroup
from orchestrator.servers.servers import dead_processes, record_processes
from orchestrator.verify.smoke import smoke_test
from orchestrator.verify.target import target_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
VARIABLE = "AITER_CONFIG_FMOE"
IN_THE_IMAGE = "/opt/deploy/tables/tuned_fmoe.csv"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Store(tmp_path_factory.mktemp("kernels")).write(glm_plan(), every_bucket(FUSED_TP8))


@pytest.fixture(scope="module")
def replicas(cpu_engine: CpuEngine, table: Path) -> Iterator[CpuServer]:
    # sglang's setproctitle writes a process's title over its environment; SPT_NOENV makes it leave that alone.
    environment = (f"env.{VARIABLE}={table}", 'env.SPT_NOENV="1"')
    layout = ("hardware.gpus=2", "layout.dp=2", "flags.dtype=float32")  # exact enough to be told from bf16
    server = cpu_engine.start("replicas", *layout, *environment)
    try:
        assert wait_by_its_log(server)[-2:] == ["warming up", "answering"]
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def schedulers(server: CpuServer) -> list[int]:
    """The pids of the server's schedulers in the order of their ranks, by the title each gives itself."""
    titles = {process.pid: Path(f"/proc/{process.pid}/cmdline").read_text() for process in processes_of(server.handle)}
    return sorted((pid for pid in titles if "sglang::scheduler_DP" in titles[pid]), key=lambda pid: titles[pid])


def test_every_scheduler_reads_the_same_kernel_table(replicas: CpuServer, table: Path) -> None:
    found = schedulers(replicas)
    assert len(found) == 2
    for pid in found:
        check(pid, table, str(table))


def test_logprobs_cover_every_rank_and_detect_dtype(replicas: CpuServer, server: CpuServer) -> None:
    options = ProbeOptions(tolerance=None, max_length=512, allow_other_checkpoint=False)
    rounded, exact = (
        ProbeSide(name="tiny", engines=(("", target_of(side.plan, url=side.url, api_key=None)),), source=None, run=None)
        for side in (server, replicas)
    )
    report, _ = run_probe(exact, measure_reference(rounded, options), options, reference_name="bf16")
    print(report.to_table())
    assert report.ok
    assert report.differences == ("`dtype` is float32 on the server, auto in the reference",)
    beside = [row for row in report.rows if row.what == "the reference"]
    assert {row.rank_label for row in beside} == {"rank 0", "rank 1"}
    assert all(row.overall.mean > 1e-4 for row in beside)  # rounding, and the limit is of the noisier side
    strict, _ = run_probe(exact, measure_reference(exact, options), options, reference_name="itself")
    assert strict.ok
    assert strict.rows[0].limit is not None
    assert strict.rows[0].limit < 1e-5


def look(server: CpuServer, folder: Path) -> tuple[int, str]:
    """What a cluster asks a server by, in its container: exit code, and which rank is silent."""
    argv = [sys.executable, "-I", "-S", liveness.__file__, str(server.plan.server.port), "2", "4"]
    done = subprocess.run(argv, env={"TMPDIR": str(folder)}, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_every_rank_is_checked_and_dead_rank_reported(replicas: CpuServer, tmp_path: Path) -> None:
    """It ends the server: the last test that asks it."""
    target = target_of(replicas.plan, url=replicas.url, api_key=None)
    report = smoke_test(target, faults=None)
    assert report.failures == ()
    assert "each of 2 ranks answered for itself" in report.to_table()

    group, server = ServerGroup(replicas.runtime), RunningServer.of(replicas.handle)
    record_processes(group, server, 0)
    first, second = schedulers(replicas)
    hangs = (1, "rank 1 makes no progress: no response within 4 s\n")
    os.kill(second, signal.SIGSTOP)
    assert [look(replicas, tmp_path), look(replicas, tmp_path)] == [hangs, hangs]  # `/health` asks the ranks in turn
    os.kill(second, signal.SIGCONT)
    assert look(replicas, tmp_path) == (0, "")
    os.kill(second, signal.SIGKILL)  # sglang 0.5.14 notices nothing: no line in its log, and its process lives on
    wait_for(lambda: dead_processes(group, server) == "rank DP1 has ended while the server runs")
    dead = smoke_test(target, faults=None, timeout=4).failures
    assert any("within 4 s" in check.evidence for check in dead), dead
    code, output = look(replicas, tmp_path)
    assert (code, "rank 1 makes no progress" in output) == (1, True), output  # and the other one may hang with it
    assert replicas.runtime.state(replicas.handle).status is Status.RUNNING

    replicas.runtime.stop(replicas.handle, grace=2)  # without a bound it would not come back: the server hangs
    assert read_process(first) is None
    wait_for(lambda: not processes_of(replicas.handle))
    assert not healthy(replicas.url)


def check(pid: int, table: Path, state: str) -> None:
    """The process has the variable, and at its own `place` the bytes of `table`."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"{VARIABLE}={state}".encode() in environment
    assert Path(f"/proc/{pid}/root{state}").read_bytes() == table.read_bytes()


@pytest.fixture
def image(docker_engine: DockerEngine, scripted_image: str, table: Path, tmp_path: Path) -> Iterator[str]:
    """An image that holds the table; it goes, with the caches that were made for it."""
    tag = f"deploy-test/table:{os.getpid()}"
    (tmp_path / "table.csv").write_bytes(table.read_bytes())
    (tmp_path / "Dockerfile").write_text(f"FROM {scripted_image}\nCOPY table.csv {IN_THE_IMAGE}\n")
    subprocess.run(["docker", "build", "--quiet", "--tag", tag, str(tmp_path)], check=True, capture_output=True)
    yield tag
    docker_engine.stop_all()
    volumes = ["docker", "volume", "ls", "--quiet", "--filter", f"label=deploy.cache={tag}"]
    made = subprocess.run(volumes, check=True, capture_output=True, text=True).stdout.split()
    assert made
    subprocess.run(["docker", "volume", "rm", *made], check=True, capture_output=True)
    subprocess.run(["docker", "image", "rm", tag], check=True, capture_output=True)


@pytest.mark.docker
@pytest.mark.skipif(os.getuid() != 0, reason="only root looks into the processes of a container")
def test_containerized_scheduler_reads_kernel_table_from_image(
    docker_engine: DockerEngine, image: str, table: Path
) -> None:
    engine = replace(docker_engine, image=image)
    layout = ("hardware.gpus=2", "layout.dp=2")  # without GPUs no cache is made
    server = engine.start("tables", engine.artifacts(*layout, f"env.{VARIABLE}={IN_THE_IMAGE}"))
    server.wait_until_ready()
    listed = ["docker", "top", server.handle.runtime_id, "-eo", "pid,args"]
    processes = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    pid = min(int(line.split()[0]) for line in processes if line.split()[1:3] == ["python3", "-m"])  # not a fork of it
    check(pid, table, IN_THE_IMAGE)
