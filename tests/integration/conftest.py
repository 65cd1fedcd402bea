"""One engine environment, one home and one running server for all integration tests; nothing outlives its test."""

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import own_cluster
import own_node
import pytest
from cluster_server import ClusterEngine
from cpu_server import CpuEngine, CpuServer
from docker_server import DockerEngine
from forked import Forks
from left_running import MARK, end_containers, end_marked
from loopback_registry import serving
from own_cluster import OwnCluster
from schedule import group_of
from slurm_cluster import MISSING, PACKAGES, SlurmCluster, SlurmEngine, slurm_running
from standin import base_image, packages_of, scripted_sources
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
    """Each test may start commands; `forks` begins before any of them."""


@pytest.fixture(autouse=True)
def leaves_nothing_running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However a test ends, what it started ends with it; what its own clean-up forgot is told.

    Every program it starts carries the test's mark; what the fixtures of a module or a session start does not.
    """
    home: Home | None = None
    if request.node.get_closest_marker("docker") is not None:
        home = request.getfixturevalue("engine_home")
    mark = f"{os.getpid()} {request.node.nodeid}"  # another run of the tests is none of ours
    monkeypatch.setenv(MARK, mark)
    yield
    left = end_marked(mark)
    if home is not None:
        left += end_containers(home)
    assert not left, "was left running, and is ended now"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a group of files shares ends with the group: idle, a Kubernetes or a Slurm takes CPU time from others."""
    if nextitem is None or group_of(nextitem.nodeid) != group_of(item.nodeid):
        for name in ("server", "cluster_without_node", "slurm_daemons"):
            for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
                if fixture.scope == "session":
                    fixture.finish(item._request)  # type: ignore[attr-defined]


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in this process, also where the tests are told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home of the tests' own, with the environments of the user's: they take a minute to build."""
    home, users = Home(tmp_path_factory.mktemp("home")), Home.from_environment()
    users.environments.mkdir(parents=True, exist_ok=True)
    home.environments.symlink_to(users.environments)
    return home


@pytest.fixture(scope="session")
def cpu_environment(engine_home: Home) -> venv.Venv:
    """Real sglang for a CPU, built on first use."""
    plan = load("cpu-tiny").plan
    assert plan.engine.requirements is not None
    return venv.ensure_venv(IMAGES / plan.engine.requirements, home=engine_home, progress=Progress())


@pytest.fixture(scope="session")
def tiny_model(engine_home: Home, cpu_environment: venv.Venv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated checkpoint that `cpu-tiny` serves: generated once for all workers, each has a copy."""
    model, run = load("cpu-tiny").plan.model, tmp_path_factory.getbasetemp()
    shared = Home((run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "shared-home")
    generator = IMAGES / model.checkpoint.path
    made = generate_model(model, generator, python=cpu_environment.python, home=shared, progress=Progress())
    return shutil.copytree(made, engine_home.models / model.name)


@pytest.fixture(scope="session")
def cpu_engine(engine_home: Home, cpu_environment: venv.Venv, tiny_model: Path) -> CpuEngine:
    """Everything a test needs to start a server of its own."""
    assert tiny_model.is_dir()
    return CpuEngine(home=engine_home, python=cpu_environment.python)


@pytest.fixture(scope="session")
def server(cpu_engine: CpuEngine) -> Iterator[CpuServer]:
    """A `cpu-tiny` server that is ready, for tests that only ask it. Do not stop it."""
    shared = cpu_engine.start("shared")
    try:
        shared.wait_until_ready()
        yield shared
    finally:
        shared.runtime.stop(shared.handle, grace=0)


@pytest.fixture(scope="session")
def docker_daemon() -> DockerCli:
    """The daemon of this machine."""
    try:
        return find_docker()
    except HostError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def docker_image(docker_daemon: DockerCli) -> str:
    """A base image with the real sources of sglang."""
    return base_image(wheel("0.5.14"), docker=docker_daemon.program)


@pytest.fixture(scope="session")
def scripted_image(docker_daemon: DockerCli) -> str:
    """The same image, in which the scripted engine serves."""
    return base_image(wheel("0.5.14"), replaced=scripted_sources(), docker=docker_daemon.program)


@pytest.fixture
def docker_engine(cpu_engine: CpuEngine, docker_image: str) -> Iterator[DockerEngine]:
    """Start servers in containers; they are taken down after the test, however it ends."""
    engine = DockerEngine(home=cpu_engine.home, image=docker_image, packages=packages_of(cpu_engine.python))
    yield engine
    engine.stop_all()


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[SlurmCluster]:
    """A cluster of two nodes, all of them this machine."""
    if MISSING:
        pytest.skip(PACKAGES)
    with TemporaryDirectory(prefix="slurm-") as folder, slurm_running(Path(folder)) as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(slurm_daemons: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """The cluster, as the one that this test's programs know; no job is left in it by the test before."""
    for name, value in slurm_daemons.environ.items():
        monkeypatch.setenv(name, value)
    return slurm_daemons


@pytest.fixture
def slurm_home(tmp_path_factory: pytest.TempPathFactory, engine_home: Home, tiny_model: Path) -> Home:
    """Return a home for one test: what a failed test has on record does not meet the next one."""
    home = Home(tmp_path_factory.mktemp("slurm-home"))
    home.environments.symlink_to(engine_home.environments)
    home.models.symlink_to(tiny_model.parent)
    return home


@pytest.fixture
def slurm_engine(cpu_engine: CpuEngine, slurm_home: Home, slurm_cluster: SlurmCluster) -> SlurmEngine:
    """Start servers as jobs."""
    return SlurmEngine(engine=replace(cpu_engine, home=slurm_home), cluster=slurm_cluster)


@pytest.fixture(scope="session")
def cluster_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home of its own: from one in which a pod was started, its cluster is asked by every later command."""
    return Home(tmp_path_factory.mktemp("cluster-home"))


@pytest.fixture(scope="session")
def cluster_without_node() -> Iterator[OwnCluster]:
    """A real Kubernetes that schedules and has no node; `schedule.GROUPS` puts its tests before those with a node."""
    if reason := own_cluster.unavailable():
        pytest.skip(f"a real Kubernetes {reason}")
    with own_cluster.own_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_of_tests(cluster_home: Home, cluster_without_node: OwnCluster) -> Iterator[ClusterEngine]:
    """The same with this machine as its node, for all tests that start something in one."""
    if reason := own_node.unavailable():
        pytest.skip(f"a real Kubernetes {reason}")
    with own_node.own_node(cluster_without_node) as node:
        yield ClusterEngine(home=cluster_home, cluster=cluster_without_node, node=node)


@pytest.fixture
def cluster_engine(cluster_of_tests: ClusterEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterEngine]:
    """The same, as what kubectl asks; what is held open to it ends with the test."""
    monkeypatch.setenv("KUBECONFIG", str(cluster_of_tests.cluster.config))
    yield cluster_of_tests
    while cluster_of_tests.runtimes:
        cluster_of_tests.runtimes.pop().close()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of an empty registry."""
    with serving(tmp_path) as address:
        yield address
