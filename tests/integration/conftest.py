"""Provide the engine environment, homes, servers and clusters that the integration tests share."""

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import private_cluster
import private_node
import pytest
from cluster_server import ClusterEngine
from cpu_server import CpuEngine, CpuServer
from docker_server import DockerEngine
from forked import Forks
from leftover_processes import MARK, end_containers, end_marked
from loopback_registry import serving
from private_cluster import PrivateCluster
from rocm_image import base_image, packages_of, scripted_sources
from schedule import group_of
from slurm_cluster import MISSING, PACKAGES, SlurmCluster, SlurmEngine, slurm_running
from wheels import wheel

from orchestrator.checkpoints.generate import generate_model
from orchestrator.core.console import Progress
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home, data_root
from orchestrator.hosts.venvs import venv
from orchestrator.images.client import DockerCli, find_docker
from orchestrator.planner.planning import load

IMAGES = data_root() / "images"


@pytest.fixture(scope="session", autouse=True)
def forked_commands(forks: Forks) -> None:
    """Start `forks` before any test starts a command."""


@pytest.fixture(autouse=True)
def no_leftover_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End everything that a test started; fail the test if its own cleanup forgot something.

    Every program that a test starts carries its mark; programs of module and session fixtures do not.
    """
    home: Home | None = None
    if request.node.get_closest_marker("docker") is not None:
        home = request.getfixturevalue("engine_home")
    mark = f"{os.getpid()} {request.node.nodeid}"  # the pid excludes other test runs
    monkeypatch.setenv(MARK, mark)
    yield
    leftovers = end_marked(mark)
    if home is not None:
        leftovers += end_containers(home)
    assert not leftovers, "the test left these running"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Finish the shared fixtures of a group after its last test: an idle Kubernetes or Slurm takes CPU time."""
    if nextitem is None or group_of(nextitem.nodeid) != group_of(item.nodeid):
        for name in ("server", "cluster_without_node", "slurm_daemons"):
            for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
                if fixture.scope == "session":
                    fixture.finish(item._request)  # type: ignore[attr-defined]


@pytest.fixture
def sigint_raises() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT, even if the test process was started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return a home for the tests with the environments of the user's home: building them takes a minute."""
    home, users = Home(tmp_path_factory.mktemp("home")), Home.from_environment()
    users.environments.mkdir(parents=True, exist_ok=True)
    home.environments.symlink_to(users.environments)
    return home


@pytest.fixture(scope="session")
def cpu_environment(engine_home: Home) -> venv.Venv:
    """Return an environment with real sglang for a CPU; build it on first use."""
    plan = load("cpu-tiny").plan
    assert plan.engine.requirements is not None
    return venv.ensure_venv(IMAGES / plan.engine.requirements, home=engine_home, progress=Progress())


@pytest.fixture(scope="session")
def tiny_model(engine_home: Home, cpu_environment: venv.Venv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of `cpu-tiny`: generated once for all workers, copied to each."""
    model, run = load("cpu-tiny").plan.model, tmp_path_factory.getbasetemp()
    shared = Home((run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "shared-home")
    generator = IMAGES / model.checkpoint.path
    made = generate_model(model, generator, python=cpu_environment.python, home=shared, progress=Progress())
    return shutil.copytree(made, engine_home.models / model.name)


@pytest.fixture(scope="session")
def cpu_engine(engine_home: Home, cpu_environment: venv.Venv, tiny_model: Path) -> CpuEngine:
    """Return what a test needs to start its own server."""
    assert tiny_model.is_dir()
    return CpuEngine(home=engine_home, python=cpu_environment.python)


@pytest.fixture(scope="session")
def server(cpu_engine: CpuEngine) -> Iterator[CpuServer]:
    """Return a ready `cpu-tiny` server for tests that only send requests. Do not stop it."""
    shared = cpu_engine.start("shared")
    try:
        shared.wait_until_ready()
        yield shared
    finally:
        shared.runtime.stop(shared.handle, grace=0)


@pytest.fixture(scope="session")
def docker_daemon() -> DockerCli:
    """Return the Docker daemon of this machine; skip the test if there is none."""
    try:
        return find_docker()
    except HostError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def docker_image(docker_daemon: DockerCli) -> str:
    """Return a base image with the real sources of sglang."""
    return base_image(wheel("0.5.14"), docker=docker_daemon.program)


@pytest.fixture(scope="session")
def scripted_image(docker_daemon: DockerCli) -> str:
    """Return a base image with the scripted engine in place of sglang."""
    return base_image(wheel("0.5.14"), replaced=scripted_sources(), docker=docker_daemon.program)


@pytest.fixture
def docker_engine(cpu_engine: CpuEngine, docker_image: str) -> Iterator[DockerEngine]:
    """Return an engine that starts servers in containers; stop them after the test."""
    engine = DockerEngine(home=cpu_engine.home, image=docker_image, packages=packages_of(cpu_engine.python))
    yield engine
    engine.stop_all()


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[SlurmCluster]:
    """Start a Slurm cluster whose two nodes are this machine."""
    if MISSING:
        pytest.skip(PACKAGES)
    with TemporaryDirectory(prefix="slurm-") as folder, slurm_running(Path(folder)) as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(slurm_daemons: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """Return the cluster and set its environment for the programs of this test."""
    for name, value in slurm_daemons.environ.items():
        monkeypatch.setenv(name, value)
    return slurm_daemons


@pytest.fixture
def slurm_home(tmp_path_factory: pytest.TempPathFactory, engine_home: Home, tiny_model: Path) -> Home:
    """Return a home for one test, so that records of a failed test do not affect the next one."""
    home = Home(tmp_path_factory.mktemp("slurm-home"))
    home.environments.symlink_to(engine_home.environments)
    home.models.symlink_to(tiny_model.parent)
    return home


@pytest.fixture
def slurm_engine(cpu_engine: CpuEngine, slurm_home: Home, slurm_cluster: SlurmCluster) -> SlurmEngine:
    return SlurmEngine(engine=replace(cpu_engine, home=slurm_home), cluster=slurm_cluster)


@pytest.fixture(scope="session")
def cluster_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return a separate home: once a home has started a pod, every later command in it queries the cluster."""
    return Home(tmp_path_factory.mktemp("cluster-home"))


@pytest.fixture(scope="session")
def cluster_without_node() -> Iterator[PrivateCluster]:
    """Start a real Kubernetes without nodes; `schedule.GROUPS` runs its tests before those that need a node."""
    if reason := private_cluster.unavailable():
        pytest.skip(f"a real Kubernetes {reason}")
    with private_cluster.private_cluster() as cluster, pytest.MonkeyPatch.context() as environ:
        environ.setenv(private_cluster.GC, "off")
        yield cluster


@pytest.fixture(scope="session")
def cluster_of_tests(cluster_home: Home, cluster_without_node: PrivateCluster) -> Iterator[ClusterEngine]:
    """Add this machine to the cluster as its node."""
    if reason := private_node.unavailable():
        pytest.skip(f"a real Kubernetes {reason}")
    with private_node.private_node(cluster_without_node) as node:
        yield ClusterEngine(home=cluster_home, cluster=cluster_without_node, node=node)


@pytest.fixture
def cluster_engine(cluster_of_tests: ClusterEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterEngine]:
    """Point kubectl at the cluster; close the test's connections afterwards."""
    monkeypatch.setenv("KUBECONFIG", str(cluster_of_tests.cluster.config))
    yield cluster_of_tests
    while cluster_of_tests.runtimes:
        cluster_of_tests.runtimes.pop().close()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Start an empty registry and return its address."""
    with serving(tmp_path) as address:
        yield address
