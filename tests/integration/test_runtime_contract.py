"""Tests of the contract of all runtimes, with small programs in place of sglang."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from cluster_server import ClusterEngine
from cpu_server import CpuEngine, CpuServer
from docker_server import DockerEngine
from slurm_cluster import SlurmEngine
from waits import wait_for

from orchestrator.core.errors import NameTakenError
from orchestrator.runtimes import REGISTRY
from orchestrator.runtimes.base import Status

pytestmark = pytest.mark.engine

SERVES = "import time; print('serving', flush=True); time.sleep(600)"
IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"
FAILS = "import sys; print('going', flush=True); sys.exit(3)"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A runtime, and how to start a program in it."""

    start_argv: Callable[[str, tuple[str, ...]], CpuServer]
    python: str
    restarts: bool = False  # whether the runtime restarts a program that has exited
    started: list[CpuServer] = field(default_factory=list)

    def start(self, name: str, program: str) -> CpuServer:
        self.started.append(self.start_argv(name, (self.python, "-c", program)))
        return self.started[-1]


def process_case(request: pytest.FixtureRequest) -> Case:
    engine: CpuEngine = request.getfixturevalue("cpu_engine")
    return Case(
        start_argv=lambda name, argv: engine.start(name, artifacts=engine.artifacts(argv=argv)),
        python=str(engine.python),
    )


def docker_case(request: pytest.FixtureRequest) -> Case:
    engine: DockerEngine = request.getfixturevalue("docker_engine")
    return Case(start_argv=lambda name, argv: engine.start(name, engine.artifacts(argv=argv)), python="python3")


def kubernetes_case(request: pytest.FixtureRequest) -> Case:
    engine: ClusterEngine = request.getfixturevalue("cluster_engine")
    return Case(
        start_argv=lambda name, argv: engine.start(name, engine.artifacts(argv=argv)), python="python3", restarts=True
    )


def slurm_case(request: pytest.FixtureRequest) -> Case:
    engine: SlurmEngine = request.getfixturevalue("slurm_engine")
    return Case(start_argv=engine.start, python=str(engine.engine.python))


CASES = {"docker": docker_case, "kubernetes": kubernetes_case, "process": process_case, "slurm": slurm_case}


@pytest.fixture(
    params=[
        "process",
        "slurm",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("kubernetes", marks=pytest.mark.real_kubernetes),
    ]
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Return the case of each runtime; stop its servers after the test."""
    case = CASES[request.param](request)
    yield case
    for server in case.started:
        server.runtime.stop(server.handle, grace=0)


def has_logged(server: CpuServer, line: str) -> bool:
    return line in list(server.runtime.logs(server.handle, follow=False))


def status(server: CpuServer) -> Status:
    return server.runtime.state(server.handle).status


def test_contract_covers_every_runtime() -> None:
    assert set(CASES) == set(REGISTRY)


def test_started_server_is_discoverable_until_stopped(case: Case) -> None:
    """This is one test because a start in a cluster takes seconds."""
    server = case.start("found", SERVES)
    wait_for(lambda: has_logged(server, "serving"))  # a kubelet may need a minute to stop a starting container

    assert server.runtime.find("never-was") == ()
    assert server.runtime.find(server.handle.name) == (server.handle,)
    assert server.handle in server.runtime.find()
    assert status(server) is Status.RUNNING
    assert server.handle.plan_digest == server.plan.digest
    port = int(server.handle.url.removeprefix("http://127.0.0.1:"))
    assert bool(server.handle.forward_command) != (port == server.plan.server.port)

    assert list(server.runtime.logs(server.handle, follow=False)) == ["serving"]

    with pytest.raises(NameTakenError):
        case.start("found", SERVES)
    assert status(server) is Status.RUNNING
    assert server.runtime.find(server.handle.name) == (server.handle,)

    for _ in range(2):  # the second call has nothing to stop
        server.runtime.stop(server.handle, grace=5)
        assert status(server) is Status.NOT_FOUND
        assert server.runtime.find(server.handle.name) == ()
    assert has_logged(server, "serving")


def test_exited_server_reports_exit_code(case: Case) -> None:
    server = case.start("fails", FAILS)

    wait_for(lambda: status(server) is Status.EXITED)

    assert server.runtime.state(server.handle).exit_code == 3
    assert has_logged(server, "going")
    assert server.runtime.find(server.handle.name) == (server.handle,)  # until it is stopped


def test_process_cmdlines_exclude_zombies_and_memory_is_reported(case: Case) -> None:
    server = case.start(
        "titled",
        "import os, time; data = b'x' * (200 << 20); os.fork() or os._exit(0); print('forked', flush=True);"
        "time.sleep(600)",
    )
    wait_for(lambda: has_logged(server, "forked"))

    wait_for(lambda: len(program_cmdlines(server)) == 1)
    used = server.runtime.host_memory(server.handle)
    assert used is None if server.runtime.name in {"kubernetes", "slurm"} else used is not None
    assert used is None or 200 << 20 < used < 400 << 20

    server.runtime.stop(server.handle, grace=0)
    assert server.runtime.process_cmdlines(server.handle) == ()


def program_cmdlines(server: CpuServer) -> list[str]:
    """Return the command lines of the program's processes, without that of a container's init."""
    lines = server.runtime.process_cmdlines(server.handle)
    return [line for line in lines if ("os.fork" in line or "defunct" in line) and "docker-init" not in line]


def test_followed_log_ends_with_the_server(case: Case) -> None:
    if case.restarts:
        pytest.skip("a pod of a Deployment is always started again; `test_kubernetes_node.py` follows its log")
    server = case.start("followed", "print('one', flush=True); import time; time.sleep(1); print('two', flush=True)")

    assert list(server.runtime.logs(server.handle, follow=True)) == ["one", "two"]


def test_stop_kills_server_ignoring_sigterm(case: Case) -> None:
    server = case.start("stubborn", IGNORES_SIGTERM)
    wait_for(lambda: has_logged(server, "serving"))

    server.runtime.stop(server.handle, grace=1)

    assert status(server) is Status.NOT_FOUND
