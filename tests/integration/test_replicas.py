"""Tests of a real sglang with two data-parallel ranks: kernel table, logprobs, and the report of a dead rank.

The tests read the schedulers' variables in /proc. The test in a container uses the scripted engine, because sglang
passes its variables to the schedulers in the same way there.
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
from orchestrator.evals.logprobs.run import LogprobOptions, LogprobSide, measure_reference, run_logprobs
from orchestrator.kernels.disk.store import Store
from orchestrator.runtimes.base import Status
from orchestrator.servers.group import Server
from orchestrator.servers.servers import exited_processes, record_processes
from orchestrator.verify.smoke import smoke_test
from orchestrator.verify.target import target_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
VARIABLE = "AITER_CONFIG_FMOE"
PATH_IN_IMAGE = "/opt/deploy/tables/tuned_fmoe.csv"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Store(tmp_path_factory.mktemp("kernels")).write(glm_plan(), every_bucket(FUSED_TP8))


@pytest.fixture(scope="module")
def dp_server(cpu_engine: CpuEngine, table: Path) -> Iterator[CpuServer]:
    # sglang's setproctitle overwrites the environment of a process with its title, unless SPT_NOENV is set.
    environment = (f"env.{VARIABLE}={table}", 'env.SPT_NOENV="1"')
    layout = ("hardware.gpus=2", "layout.dp=2", "flags.dtype=float32")  # the logprobs differ from those of bf16
    server = cpu_engine.start("replicas", *layout, *environment)
    try:
        assert wait_by_its_log(server)[-2:] == ["warming up", "answering"]
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def schedulers(server: CpuServer) -> list[int]:
    """Return the pids of the server's schedulers, in the order of the ranks in their process titles."""
    titles = {process.pid: Path(f"/proc/{process.pid}/cmdline").read_text() for process in processes_of(server.handle)}
    return sorted((pid for pid in titles if "sglang::scheduler_DP" in titles[pid]), key=lambda pid: titles[pid])


def test_every_scheduler_reads_the_same_kernel_table(dp_server: CpuServer, table: Path) -> None:
    pids = schedulers(dp_server)
    assert len(pids) == 2
    for pid in pids:
        assert_reads_table(pid, table, str(table))


def test_logprobs_cover_every_rank_and_detect_dtype(dp_server: CpuServer, server: CpuServer) -> None:
    options = LogprobOptions(tolerance=None, max_length=512, allow_other_checkpoint=False)
    rounded, exact = (
        LogprobSide(
            name="tiny", engines=(("", target_of(side.plan, url=side.url, api_key=None)),), source=None, run=None
        )
        for side in (server, dp_server)
    )
    report, _ = run_logprobs(exact, measure_reference(rounded, options), options, reference_name="bf16")
    print(report.to_table())
    assert report.ok
    assert report.differences == ("`dtype` is float32 on the server, auto in the reference",)
    compared = [row for row in report.rows if row.compared_with == "the reference"]
    assert {row.rank_label for row in compared} == {"rank 0", "rank 1"}
    assert all(row.overall.mean > 1e-4 for row in compared)  # below the limit, which depends on the noisier server
    strict, _ = run_logprobs(exact, measure_reference(exact, options), options, reference_name="itself")
    assert strict.ok
    assert strict.rows[0].limit is not None
    assert strict.rows[0].limit < 1e-5


def run_liveness_probe(server: CpuServer, folder: Path) -> tuple[int, str]:
    """Run the liveness probe as a cluster does in the server's container; return exit code and stderr."""
    argv = [sys.executable, "-I", "-S", liveness.__file__, str(server.plan.server.port), "2", "4"]
    done = subprocess.run(argv, env={"TMPDIR": str(folder)}, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_every_rank_is_checked_and_dead_rank_reported(dp_server: CpuServer, tmp_path: Path) -> None:
    """This must be the last test with `dp_server`: it ends the server."""
    target = target_of(dp_server.plan, url=dp_server.url, api_key=None)
    report = smoke_test(target, faults=None)
    assert report.failures == ()
    assert "each of 2 ranks answered for itself" in report.to_table()

    server = Server.of(dp_server.handle, dp_server.runtime)
    record_processes(server, 0)
    first, second = schedulers(dp_server)
    hangs = (1, "rank 1 makes no progress: no response within 4 s\n")
    os.kill(second, signal.SIGSTOP)
    for _ in range(2):  # `/health` alternates between the ranks
        assert run_liveness_probe(dp_server, tmp_path) == hangs
    os.kill(second, signal.SIGCONT)
    assert run_liveness_probe(dp_server, tmp_path) == (0, "")
    os.kill(second, signal.SIGKILL)  # sglang 0.5.14 does not notice it: it logs nothing and keeps running
    wait_for(lambda: exited_processes(server) == "rank DP1 has exited while the server runs")
    dead = smoke_test(target, faults=None, timeout=4).failures
    assert any("within 4 s" in check.evidence for check in dead), dead
    code, output = run_liveness_probe(dp_server, tmp_path)
    assert (code, "rank 1 makes no progress" in output) == (1, True), output  # rank 0 may hang too
    assert dp_server.runtime.state(dp_server.handle).status is Status.RUNNING

    dp_server.runtime.stop(dp_server.handle, grace=2)  # the hanging server does not exit by itself
    assert read_process(first) is None
    wait_for(lambda: not processes_of(dp_server.handle))
    assert not healthy(dp_server.url)


def assert_reads_table(pid: int, table: Path, path: str) -> None:
    """Assert that the variable of a process is `path`, and that the process sees the bytes of `table` there."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"{VARIABLE}={path}".encode() in environment
    assert Path(f"/proc/{pid}/root{path}").read_bytes() == table.read_bytes()


@pytest.fixture
def image(docker_engine: DockerEngine, scripted_image: str, table: Path, tmp_path: Path) -> Iterator[str]:
    """Build an image with the kernel table; remove it and its cache volumes after the test."""
    tag = f"deploy-test/table:{os.getpid()}"
    (tmp_path / "table.csv").write_bytes(table.read_bytes())
    (tmp_path / "Dockerfile").write_text(f"FROM {scripted_image}\nCOPY table.csv {PATH_IN_IMAGE}\n")
    subprocess.run(["docker", "build", "--quiet", "--tag", tag, str(tmp_path)], check=True, capture_output=True)
    yield tag
    docker_engine.stop_all()
    volumes = ["docker", "volume", "ls", "--quiet", "--filter", f"label=deploy.cache={tag}"]
    names = subprocess.run(volumes, check=True, capture_output=True, text=True).stdout.split()
    assert names
    subprocess.run(["docker", "volume", "rm", *names], check=True, capture_output=True)
    subprocess.run(["docker", "image", "rm", tag], check=True, capture_output=True)


@pytest.mark.docker
@pytest.mark.skipif(os.getuid() != 0, reason="only root can read the processes of a container")
def test_containerized_scheduler_reads_kernel_table_from_image(
    docker_engine: DockerEngine, image: str, table: Path
) -> None:
    engine = replace(docker_engine, image=image)
    layout = ("hardware.gpus=2", "layout.dp=2")  # a server without GPUs has no caches
    server = engine.start("tables", engine.artifacts(*layout, f"env.{VARIABLE}={PATH_IN_IMAGE}"))
    server.wait_until_ready()
    argv = ["docker", "top", server.handle.runtime_id, "-eo", "pid,args"]
    processes = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    pid = min(int(line.split()[0]) for line in processes if line.split()[1:3] == ["python3", "-m"])  # not its fork
    assert_reads_table(pid, table, PATH_IN_IMAGE)
