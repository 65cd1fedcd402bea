"""Prefill and decode run as two real sglang servers on a CPU, with Mooncake over TCP and the real gateway."""

import json
import os
import re
import signal
from collections.abc import Iterator
from ctypes.util import find_library
from itertools import count
from pathlib import Path

import httpx
import pytest
from command_line import CommandLine
from cpu_server import CpuEngine
from ports import free_port
from steady_load import client_of, complete, load
from waits import wait_for

from orchestrator.core.paths import Home
from orchestrator.core.procfs import find_process
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor.record import read_record
from orchestrator.servers.group import Server, servers_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_library("ibverbs") is None, reason="only root installs libibverbs, which Mooncake loads"),
]
NAME, PROFILE = "pair", "cpu-tiny-1p1d"


class DisaggregatedServer:
    """Run `deploy` in a home with the environments and the checkpoint of another home."""

    def __init__(self, folder: Path, other: Home) -> None:
        home = Home(folder / "home")
        home.root.mkdir()
        home.environments.symlink_to(other.environments)
        home.models.symlink_to(other.models)
        self.deploy, self.port = CommandLine(home, {"DOCKER_HOST": "unix:///nonexistent"}), free_port()
        self.runtime = ProcessRuntime(home)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self, *more: str) -> None:
        settings = (f"server.port={self.port}", "timeouts.progress_deadline=600", *more)
        sets = [word for setting in settings for word in ("--set", setting)]
        ended = self.deploy.run("up", PROFILE, "--name", NAME, *sets, "--replace")
        assert ended.returncode == 0, ended.stderr

    @property
    def server(self) -> Server:
        return servers_of(self.runtime, self.runtime.find(NAME))[0]

    def kill(self, role: str) -> None:
        """Kill the server of a role, as the kernel does when memory runs out."""
        [server] = [server for server in self.server.replicas if server.role == role]
        record = read_record(Path(server.run_dir))
        assert record is not None
        assert record.server is not None
        process = find_process(record.server)
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: server.current_state().status is not Status.RUNNING)


@pytest.fixture
def disaggregated(cpu_engine: CpuEngine, tmp_path: Path) -> Iterator[DisaggregatedServer]:
    made = DisaggregatedServer(tmp_path, cpu_engine.home)
    try:
        made.up()
        yield made
        assert made.deploy.run("down", NAME).returncode == 0
        assert made.runtime.find(NAME) == ()
    finally:
        for handle in made.runtime.find(NAME):
            made.runtime.stop(handle, grace=0)


def _answers_equal_those_of_a_single_server(disaggregated: DisaggregatedServer) -> None:
    report = json.loads(disaggregated.deploy.run("smoke", NAME, "--json").stdout)
    checks = {check["name"]: check for check in report["checks"]}
    for name in ("pair: KV cache transferred", "pair: answer of one server", "pair: network", "correct answers"):
        assert checks[name]["verdict"] == "passed", checks[name]
    assert "mooncake over tcp" in checks["pair: network"]["evidence"]
    assert not [check for check in checks.values() if check["verdict"] == "failed"]


def _gateway_url_finds_roles_and_role_url_is_rejected(disaggregated: DisaggregatedServer) -> None:
    found = disaggregated.deploy.run("smoke", disaggregated.url, "--json")
    assert "pair: KV cache transferred" in found.stdout, found.stderr
    output = str(disaggregated.deploy.home.root / "result")
    measured = disaggregated.deploy.run(
        "bench", disaggregated.url, "--workload", "smoke-tiny", "--request-rate", "2", "--output", output
    )
    assert measured.returncode == 0, measured.stderr
    for command in ("smoke", "bench"):
        rejected = disaggregated.deploy.run(command, disaggregated.server.replicas[1].url)
        assert rejected.returncode != 0
        assert "a decode server rejects requests that do not come from its gateway" in rejected.stderr


def _killed_prefill_server_is_detected_and_restarted_alone(disaggregated: DisaggregatedServer) -> None:
    [decode] = [server for server in disaggregated.server.replicas if server.role == "decode"]
    statuses: list[int] = []
    with load(disaggregated.url, "no-key", statuses, clients=1):
        wait_for(lambda: statuses[-1:] == [200])
        disaggregated.kill("prefill")
        assert httpx.get(f"{disaggregated.url}/health", timeout=10, trust_env=False).status_code == 200
        status = disaggregated.deploy.run("status", NAME)
        assert status.returncode != 0
        assert "prefill 1 of 1 is not running: killed by SIGKILL" in status.stderr
        with disaggregated.deploy.running("watch", NAME) as watching:
            while "restarted" not in (line := watching.line()):
                assert line
                assert "restart-failed" not in line
            watching.end(signal.SIGINT)
        wait_for(lambda: statuses[-1:] == [200])
    assert disaggregated.deploy.run("status", NAME).returncode == 0
    assert decode.runtime_id in {server.runtime_id for server in disaggregated.server.replicas}


def _second_decode_server_is_added_and_removed(disaggregated: DisaggregatedServer) -> None:
    pair, prompts = [server.runtime_id for server in disaggregated.server.replicas], count()
    disaggregated.up("layout.decode.replicas=2")
    *original_replicas, added = disaggregated.server.replicas
    assert [server.runtime_id for server in original_replicas] == pair

    def answers() -> bool:
        assert complete(client, prompt=f"{next(prompts)} times upon a time").status_code == 200
        return generated(added) > alone

    alone = generated(added)  # what it generated for checks
    with client_of(disaggregated.url, "no-key") as client:
        wait_for(answers)
        disaggregated.up()
        assert [server.runtime_id for server in disaggregated.server.replicas] == pair
        assert complete(client).status_code == 200
    assert disaggregated.deploy.run("status", NAME).returncode == 0


def generated(server: Server) -> float:
    """The tokens that a server has generated for requests."""
    exported = httpx.get(f"{server.url}/metrics", timeout=10, trust_env=False).text
    found = re.findall(r"^sglang:generation_tokens_total\{.*\} (\S+)", exported, re.MULTILINE)
    return sum(map(float, found))


def test_disaggregated_roles_answer_and_restart_separately(disaggregated: DisaggregatedServer) -> None:
    """One test: real servers start slowly."""
    _answers_equal_those_of_a_single_server(disaggregated)
    _gateway_url_finds_roles_and_role_url_is_rejected(disaggregated)
    _second_decode_server_is_added_and_removed(disaggregated)
    _killed_prefill_server_is_detected_and_restarted_alone(disaggregated)
