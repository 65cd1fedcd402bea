"""The table reaches every rank: a real server with two replicas, each scheduler asked through /proc."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer
from kernel_samples import FUSED_TP8, every_bucket, glm_plan

from orchestrator.runtimes.procfs import family
from orchestrator.tuning.store import Store

pytestmark = pytest.mark.engine
VARIABLE = "AITER_CONFIG_FMOE"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Store(tmp_path_factory.mktemp("kernels")).write(glm_plan(), every_bucket(FUSED_TP8))


@pytest.fixture(scope="module")
def replicas(cpu_engine: CpuEngine, table: Path) -> Iterator[CpuServer]:
    # sglang's setproctitle writes a process's title over its environment; SPT_NOENV makes it leave that alone.
    environment = (f"env.{VARIABLE}={table}", 'env.SPT_NOENV="1"')
    server = cpu_engine.start("replicas", "hardware.gpus=2", "layout.dp=2", *environment)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def schedulers(server: CpuServer) -> list[int]:
    """The pids of the server's schedulers: one a rank, by the title each gives itself."""
    return [pid for pid in pids(server) if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def pids(server: CpuServer) -> list[int]:
    return sorted(process.pid for process in family(server.handle.identity))


def test_each_scheduler_has_the_variable_and_reads_the_same_file(replicas: CpuServer, table: Path) -> None:
    found = schedulers(replicas)
    assert len(found) == 2
    for pid in found:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert f"{VARIABLE}={table}".encode() in environment
        assert Path(f"/proc/{pid}/root{table}").read_bytes() == table.read_bytes()
