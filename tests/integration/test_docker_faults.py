"""What goes wrong in Docker, each with the real daemon: the cause is named, and nothing is left behind."""

import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from command_line import CommandLine
from cpu_server import CpuServer
from docker_server import DockerEngine
from waits import TIMEOUT, wait_for

from orchestrator.core.errors import DeployError, HostError, NameTakenError, StartError
from orchestrator.core.paths import Home
from orchestrator.plan.plan import ContainerRequirements, Ulimit
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import Cache, Status
from orchestrator.runtimes.caches import caches
from orchestrator.runtimes.docker.container import CacheVolume, spec_of
from orchestrator.runtimes.docker.runtime import DockerRuntime

pytestmark = [pytest.mark.engine, pytest.mark.docker]

SLEEP = ("sleep", "600")


def containers(engine: DockerEngine, name: str) -> list[str]:
    """The states of the containers of a server, running or not, as the docker command sees them."""
    command = ["docker", "ps", "--all", "--filter", f"label=deploy.name={engine.name(name)}", "--format", "{{.State}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def needing(artifacts: Artifacts, **needs: object) -> Artifacts:
    spec = spec_of(artifacts)
    changed: ContainerRequirements = replace(spec.needs, **needs)  # type: ignore[arg-type]
    return replace(artifacts, spec=replace(spec, needs=changed))


def refused(engine: DockerEngine, artifacts: Artifacts, kind: type[DeployError]) -> DeployError:
    """Start what cannot be started; the error, once it is sure that no container stayed."""
    with pytest.raises(kind) as caught:
        engine.start("refused", artifacts)
    assert containers(engine, "refused") == []
    return caught.value


def test_missing_device_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = needing(docker_engine.artifacts(argv=SLEEP), devices=("/dev/no-such-gpu",))
    assert refused(docker_engine, artifacts, HostError).message == "this host has no device `/dev/no-such-gpu`"


def test_forbidden_ulimit_is_reported(docker_engine: DockerEngine) -> None:
    beyond = Ulimit(name="nofile", soft=2**31 - 1, hard=2**31 - 1)  # above the kernel's fs.nr_open, for root too
    error = refused(docker_engine, needing(docker_engine.artifacts(argv=SLEEP), ulimits=(beyond,)), StartError)
    assert "error setting rlimit" in error.details


def test_port_used_by_process_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    with socket.create_server(("127.0.0.1", artifacts.plan.server.port)):
        error = refused(docker_engine, artifacts, HostError)
    assert error.message.startswith(f"port {artifacts.plan.server.port} is in use by ")
    assert f"(pid {os.getpid()})" in error.message


def test_port_used_by_container_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    holder = docker_engine.start("holder", artifacts)
    error = refused(docker_engine, artifacts, HostError)
    assert f"is in use by container `deploy-{holder.handle.name}`" in error.message


def test_missing_checkpoint_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    spec = spec_of(artifacts)
    moved = replace(spec, mounts=(replace(spec.mounts[0], source="/no/such/checkpoint"),))
    error = refused(docker_engine, replace(artifacts, spec=moved), StartError)
    assert "bind source path does not exist: /no/such/checkpoint" in error.details


def test_missing_image_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    spec = spec_of(artifacts)
    missing = replace(artifacts, spec=replace(spec, image="deploy/never-built:1"))
    assert "deploy/never-built:1" in refused(docker_engine, missing, StartError).message


def test_unreachable_daemon_is_reported(tmp_path: Path) -> None:
    done = CommandLine(Home(tmp_path)).run("prune", "--caches", "--host", "unix:///no/such.sock")
    assert done.returncode == HostError.exit_code
    assert "error: the Docker daemon at `unix:///no/such.sock` does not answer" in done.stderr


def test_concurrent_starts_create_one_server(docker_engine: DockerEngine) -> None:
    artifacts, ends = docker_engine.artifacts(argv=SLEEP), list[object]()

    def start() -> None:
        try:
            ends.append(docker_engine.start("twice", artifacts))
        except DeployError as error:
            ends.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(end) for end in ends} == {CpuServer, NameTakenError}
    assert containers(docker_engine, "twice") == ["running"]


def test_externally_removed_container_is_not_found(docker_engine: DockerEngine) -> None:
    server = docker_engine.start("removed", docker_engine.artifacts(argv=SLEEP))
    subprocess.run(["docker", "rm", "--force", server.handle.runtime_id], capture_output=True, check=True)
    assert server.runtime.state(server.handle).status is Status.NOT_FOUND
    assert server.runtime.find(server.handle.name) == ()
    assert list(server.runtime.logs(server.handle, follow=True)) == []
    server.runtime.stop(server.handle, grace=1)


def _start_and_hang(engine: DockerEngine, artifacts: Artifacts) -> None:
    """Start up to the moment before the container runs."""
    from docker.models.containers import Container

    Container.start = lambda *_, **__: time.sleep(600)  # type: ignore[method-assign, assignment, misc]
    engine.start("killed", artifacts)


@pytest.fixture
def killed_start(docker_engine: DockerEngine) -> Iterator[Artifacts]:
    """A start whose process was killed between `create` and `start`."""
    artifacts = docker_engine.artifacts(argv=SLEEP)
    starter = multiprocessing.get_context("fork").Process(target=_start_and_hang, args=(docker_engine, artifacts))
    name = docker_engine.name("killed")
    starter.start()
    with closing(DockerRuntime(docker_engine.home)) as runtime:
        try:
            wait_for(lambda: containers(docker_engine, "killed") == ["created"])
            with pytest.raises(NameTakenError):  # it may yet finish what it has begun
                runtime.start(artifacts, name=name, run_dir=Path("/tmp"), secrets={})
        finally:
            starter.kill()
            starter.join()
        yield artifacts
        for handle in runtime.find(name):
            runtime.stop(handle, grace=0)


def test_next_start_replaces_killed_start(docker_engine: DockerEngine, killed_start: Artifacts) -> None:
    docker_engine.start("killed", killed_start)
    assert containers(docker_engine, "killed") == ["running"]


@pytest.mark.usefixtures("killed_start")
def test_killed_start_is_listed_and_can_be_stopped(docker_engine: DockerEngine) -> None:
    with closing(DockerRuntime(docker_engine.home)) as runtime:
        (handle,) = runtime.find(docker_engine.name("killed"))
        state = runtime.state(handle)
        assert (state.status, state.exit_code, state.detail) == (Status.EXITED, None, "created and never started")
        runtime.stop(handle, grace=1)
    assert containers(docker_engine, "killed") == []


KILLS = 5


def _start_and_say(engine: DockerEngine, artifacts: Artifacts) -> None:
    with suppress(KeyboardInterrupt, DeployError):
        engine.start("struck", artifacts)


def settled(engine: DockerEngine, name: str) -> list[str]:
    """Its containers, once the daemon has done what it was last asked for: whoever asked may be dead."""
    before, left = [""], containers(engine, name)
    while left != before:
        time.sleep(0.4)
        before, left = left, containers(engine, name)
    return left


def test_randomly_killed_start_can_be_stopped_or_replaced(docker_engine: DockerEngine) -> None:
    """Whatever it was at, `down` finds what it has made, or the next start does; its ports and secrets are free."""
    artifacts, dice = docker_engine.artifacts(argv=SLEEP), Random(int(os.environ["ATTACK_SEED"]))
    name, stages = docker_engine.name("struck"), Counter[str]()
    began = time.monotonic()
    docker_engine.start("struck", artifacts)  # how long one takes here
    longest = time.monotonic() - began
    with closing(DockerRuntime(docker_engine.home)) as runtime:
        for number in range(KILLS):
            for handle in runtime.find(name):
                runtime.stop(handle, grace=0)
            assert containers(docker_engine, "struck") == []
            starter = multiprocessing.get_context("fork").Process(
                target=_start_and_say, args=(docker_engine, artifacts)
            )
            starter.start()
            time.sleep(longest * (number + dice.random()) / KILLS)
            os.kill(starter.pid or 0, dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            starter.join(TIMEOUT)
            assert starter.exitcode is not None
            left = settled(docker_engine, "struck")
            stages.update(left or ["nothing"])
            if number % 2 and left != ["running"]:
                try:
                    docker_engine.start("struck", artifacts)
                except NameTakenError:  # a busy daemon finished the request of the killed start only now
                    settled(docker_engine, "struck")
                    docker_engine.start("struck", artifacts)
                assert containers(docker_engine, "struck") == ["running"]
        for handle in runtime.find(name):
            runtime.stop(handle, grace=0)
    print(f"killed starts, by what they left: {dict(stages)}")
    assert containers(docker_engine, "struck") == []


def test_server_ignoring_sigterm_is_killed_after_grace(docker_engine: DockerEngine) -> None:
    deaf = ("sh", "-c", "trap '' TERM; while true; do sleep 0.1; done")
    server = docker_engine.start("deaf", docker_engine.artifacts(argv=deaf))
    server.runtime.stop(server.handle, grace=1)
    assert containers(docker_engine, "deaf") == []


def test_manual_docker_stop_is_not_a_failure(docker_engine: DockerEngine) -> None:
    server = docker_engine.start("by-hand", docker_engine.artifacts(argv=SLEEP))
    subprocess.run(["docker", "stop", "--time", "60", server.handle.runtime_id], capture_output=True, check=True)
    state = server.runtime.state(server.handle)
    assert (state.status, state.exit_code, state.restarts) == (Status.EXITED, 143, 0)
    assert state.detail.startswith("stopped by a command")


def test_server_exiting_during_load_restarts_up_to_limit(docker_engine: DockerEngine) -> None:
    """A program with argparse like sglang's; that takes six seconds to come to its options, four times over."""
    refuses = ("python3", "-m", "http.server", "--no-such-option")
    server = docker_engine.start("bad-flag", docker_engine.artifacts(argv=refuses))
    lines = list(server.runtime.logs(server.handle, follow=True))
    assert sum("unrecognized arguments: --no-such-option" in line for line in lines) == 4
    state = server.runtime.state(server.handle)
    assert (state.status, state.exit_code, state.restarts) == (Status.EXITED, 2, 3)
    assert state.detail == "reached the restart limit (restarted 3 of 3 times), last exit code 2"


def test_cache_volume_is_removable_only_when_unused(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    volume = CacheVolume(name=docker_engine.name("deploy-cache"), target="/root/.cache")
    with_volume = replace(artifacts, spec=replace(spec_of(artifacts), caches=(volume,)))
    server = docker_engine.start("cached", with_volume)

    def known() -> list[Cache]:
        return [cache for cache in caches(docker_engine.home, None) if cache.location == volume.name]

    [cache] = known()
    assert cache.requirements == {"image": docker_engine.image, "gfx": "x86_64"}
    assert cache.used_by == (f"deploy-{server.handle.name}",)
    assert not cache.remove()
    docker_engine.stop_all()
    assert known()[0].used_by == ()
    assert cache.remove()
    assert known() == []
