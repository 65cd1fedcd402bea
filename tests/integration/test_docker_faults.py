"""Docker errors of a real daemon name the cause and leave no container."""

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
    """Return the states of all containers of a server, as the docker command reports them."""
    command = ["docker", "ps", "--all", "--filter", f"label=deploy.name={engine.name(name)}", "--format", "{{.State}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def with_requirements(artifacts: Artifacts, **needs: object) -> Artifacts:
    spec = spec_of(artifacts)
    changed: ContainerRequirements = replace(spec.needs, **needs)  # type: ignore[arg-type]
    return replace(artifacts, spec=replace(spec, needs=changed))


def start_error(engine: DockerEngine, artifacts: Artifacts, kind: type[DeployError]) -> DeployError:
    """Start a server that must fail; return the error after checking that no container remains."""
    with pytest.raises(kind) as caught:
        engine.start("failed", artifacts)
    assert containers(engine, "failed") == []
    return caught.value


def test_missing_device_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = with_requirements(docker_engine.artifacts(argv=SLEEP), devices=("/dev/no-such-gpu",))
    assert start_error(docker_engine, artifacts, HostError).message == "this host has no device `/dev/no-such-gpu`"


def test_forbidden_ulimit_is_reported(docker_engine: DockerEngine) -> None:
    too_high = Ulimit(name="nofile", soft=2**31 - 1, hard=2**31 - 1)  # above fs.nr_open, which limits root too
    error = start_error(
        docker_engine, with_requirements(docker_engine.artifacts(argv=SLEEP), ulimits=(too_high,)), StartError
    )
    assert "error setting rlimit" in error.details


def test_port_used_by_process_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    with socket.create_server(("127.0.0.1", artifacts.plan.server.port)):
        error = start_error(docker_engine, artifacts, HostError)
    assert error.message.startswith(f"port {artifacts.plan.server.port} is in use by ")
    assert f"(pid {os.getpid()})" in error.message


def test_port_used_by_container_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    holder = docker_engine.start("holder", artifacts)
    error = start_error(docker_engine, artifacts, HostError)
    assert f"is in use by container `deploy-{holder.handle.name}`" in error.message


def test_missing_checkpoint_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    spec = spec_of(artifacts)
    moved = replace(spec, mounts=(replace(spec.mounts[0], source="/no/such/checkpoint"),))
    error = start_error(docker_engine, replace(artifacts, spec=moved), StartError)
    assert "bind source path does not exist: /no/such/checkpoint" in error.details


def test_missing_image_is_reported(docker_engine: DockerEngine) -> None:
    artifacts = docker_engine.artifacts(argv=SLEEP)
    spec = spec_of(artifacts)
    missing = replace(artifacts, spec=replace(spec, image="deploy/never-built:1"))
    assert "deploy/never-built:1" in start_error(docker_engine, missing, StartError).message


def test_unreachable_daemon_is_reported(tmp_path: Path) -> None:
    done = CommandLine(Home(tmp_path)).run("prune", "--caches", "--host", "unix:///no/such.sock")
    assert done.returncode == HostError.exit_code
    assert "error: the Docker daemon at `unix:///no/such.sock` does not answer" in done.stderr


def test_concurrent_starts_create_one_server(docker_engine: DockerEngine) -> None:
    artifacts, results = docker_engine.artifacts(argv=SLEEP), list[object]()

    def start() -> None:
        try:
            results.append(docker_engine.start("twice", artifacts))
        except DeployError as error:
            results.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(result) for result in results} == {CpuServer, NameTakenError}
    assert containers(docker_engine, "twice") == ["running"]


def test_externally_removed_container_is_not_found(docker_engine: DockerEngine) -> None:
    server = docker_engine.start("removed", docker_engine.artifacts(argv=SLEEP))
    subprocess.run(["docker", "rm", "--force", server.handle.runtime_id], capture_output=True, check=True)
    assert server.runtime.state(server.handle).status is Status.NOT_FOUND
    assert server.runtime.find(server.handle.name) == ()
    assert list(server.runtime.logs(server.handle, follow=True)) == []
    server.runtime.stop(server.handle, grace=1)


def _start_and_hang(engine: DockerEngine, artifacts: Artifacts) -> None:
    """Start a server, but hang before its container runs."""
    from docker.models.containers import Container

    Container.start = lambda *_, **__: time.sleep(600)  # type: ignore[method-assign, assignment, misc]
    engine.start("killed", artifacts)


@pytest.fixture
def killed_start(docker_engine: DockerEngine) -> Iterator[Artifacts]:
    """Kill a start between `create` and `start`, and return its artifacts."""
    artifacts = docker_engine.artifacts(argv=SLEEP)
    starter = multiprocessing.get_context("fork").Process(target=_start_and_hang, args=(docker_engine, artifacts))
    name = docker_engine.name("killed")
    starter.start()
    with closing(DockerRuntime(docker_engine.home)) as runtime:
        try:
            wait_for(lambda: containers(docker_engine, "killed") == ["created"])
            with pytest.raises(NameTakenError):  # the first start may still finish
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


def _start_and_ignore_errors(engine: DockerEngine, artifacts: Artifacts) -> None:
    with suppress(KeyboardInterrupt, DeployError):
        engine.start("random", artifacts)


def settled(engine: DockerEngine, name: str) -> list[str]:
    """Return the container states once they no longer change: the daemon may finish a killed client's request."""
    previous, states = [""], containers(engine, name)
    while states != previous:
        time.sleep(0.4)
        previous, states = states, containers(engine, name)
    return states


def test_randomly_killed_start_can_be_stopped_or_replaced(docker_engine: DockerEngine) -> None:
    """At every stage, `down` removes the container or the next start replaces it."""
    artifacts, rng = docker_engine.artifacts(argv=SLEEP), Random(int(os.environ["ATTACK_SEED"]))
    name, stages = docker_engine.name("random"), Counter[str]()
    began = time.monotonic()
    docker_engine.start("random", artifacts)  # measures the time of a start
    duration = time.monotonic() - began
    with closing(DockerRuntime(docker_engine.home)) as runtime:
        for number in range(KILLS):
            for handle in runtime.find(name):
                runtime.stop(handle, grace=0)
            assert containers(docker_engine, "random") == []
            starter = multiprocessing.get_context("fork").Process(
                target=_start_and_ignore_errors, args=(docker_engine, artifacts)
            )
            starter.start()
            time.sleep(duration * (number + rng.random()) / KILLS)
            os.kill(starter.pid or 0, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            starter.join(TIMEOUT)
            assert starter.exitcode is not None
            states = settled(docker_engine, "random")
            stages.update(states or ["nothing"])
            if number % 2 and states != ["running"]:
                try:
                    docker_engine.start("random", artifacts)
                except NameTakenError:  # a busy daemon may finish the killed start late
                    settled(docker_engine, "random")
                    docker_engine.start("random", artifacts)
                assert containers(docker_engine, "random") == ["running"]
        for handle in runtime.find(name):
            runtime.stop(handle, grace=0)
    print(f"containers of killed starts: {dict(stages)}")
    assert containers(docker_engine, "random") == []


def test_server_ignoring_sigterm_is_killed_after_grace(docker_engine: DockerEngine) -> None:
    ignores_sigterm = ("sh", "-c", "trap '' TERM; while true; do sleep 0.1; done")
    server = docker_engine.start("ignores-sigterm", docker_engine.artifacts(argv=ignores_sigterm))
    server.runtime.stop(server.handle, grace=1)
    assert containers(docker_engine, "ignores-sigterm") == []


def test_manual_docker_stop_is_not_a_failure(docker_engine: DockerEngine) -> None:
    server = docker_engine.start("by-hand", docker_engine.artifacts(argv=SLEEP))
    subprocess.run(["docker", "stop", "--time", "60", server.handle.runtime_id], capture_output=True, check=True)
    state = server.runtime.state(server.handle)
    assert (state.status, state.exit_code, state.restarts) == (Status.EXITED, 143, 0)
    assert state.detail.startswith("stopped by a command")


def test_server_exiting_during_load_restarts_up_to_limit(docker_engine: DockerEngine) -> None:
    """`http.server` rejects unknown options like sglang, which would take six seconds for each of four starts."""
    argv = ("python3", "-m", "http.server", "--no-such-option")
    server = docker_engine.start("bad-flag", docker_engine.artifacts(argv=argv))
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

    def existing() -> list[Cache]:
        return [cache for cache in caches(docker_engine.home, None) if cache.location == volume.name]

    [cache] = existing()
    assert cache.requirements == {"image": docker_engine.image, "gfx": "x86_64"}
    assert cache.used_by == (f"deploy-{server.handle.name}",)
    assert not cache.remove()
    docker_engine.stop_all()
    assert existing()[0].used_by == ()
    assert cache.remove()
    assert existing() == []
