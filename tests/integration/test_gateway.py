"""Run replicas of the scripted engine behind the real gateway; `test_scripted_engine.py` uses real sglang."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest
from cpu_server import processes_in
from gateway_pair import KEY, NAME, Pair, pair_in
from ports import free_port
from steady_load import complete, load
from waits import wait_for

from orchestrator.core.errors import NotReadyError
from orchestrator.core.secrets import Secret
from orchestrator.runtimes.base import Status
from orchestrator.servers.group import Server
from orchestrator.servers.rollout.gateway_workers import require_own_gateway
from orchestrator.verify.gateway import count_workers


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_in(tmp_path) as made:
        yield made


def test_gateway_requires_key_and_leaves_no_trace(pair: Pair) -> None:
    pair.up()
    handle = pair.server
    assert [server.url for server in handle.replicas] == [
        f"http://127.0.0.1:{pair.port + offset}" for offset in (8, 16)
    ]
    with pair.client() as client:
        client.headers["Connection"] = "close"  # after a 401, the gateway closes the connection without announcing it
        assert complete(client).status_code == 200
        assert client.post("/workers", json={"url": "http://127.0.0.1:1"}).status_code == 401
        assert client.delete("/workers/01a203fd-ff28-7532-8c2b-639e1653bf6e").status_code == 401
        client.headers.pop("Authorization")
        assert complete(client).status_code == 401
        assert httpx.get(f"{handle.replicas[0].url}/v1/models", trust_env=False).status_code == 401
    key_file = Path(handle.run_dir, "gateway.key")
    gateway_key = key_file.read_bytes()
    require_own_gateway(pair.url, Secret(gateway_key.decode()))
    with pytest.raises(NotReadyError, match="another gateway answers"):
        require_own_gateway(pair.url, Secret("0" * 64))
    assert key_file.stat().st_mode & 0o777 == 0o600
    run_dirs = [Path(handle.run_dir), *(Path(server.run_dir) for server in handle.replicas)]
    for process in (process for run_dir in run_dirs for process in processes_in(run_dir)):
        proc = Path(f"/proc/{process.pid}")
        exposed = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        assert KEY.encode() not in exposed
        assert gateway_key not in exposed
    written = [path for path in pair.deploy.home.runs.rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    assert [path for path in written if gateway_key in path.read_bytes()] == [key_file]

    response = pair.deploy.run("ask", NAME, "hello", "--tokens", "4")
    assert (response.returncode, response.stdout.strip() != "") == (0, True), response.stderr
    log = pair.deploy.run("logs", NAME).stdout
    assert all(f"==> {name} <==" in log for name in ("server.log", "replica-1/server.log", "replica-2/server.log"))
    smoke = json.loads(pair.deploy.run("smoke", NAME, "--json").stdout)
    assert smoke["ok"] is True
    assert {"replica 1: served model", "replica 2: served model", "gateway: replicas registered"} <= {
        check["name"] for check in smoke["checks"]
    }
    assert pair.deploy.run("down", NAME).returncode == 0
    pair.nothing_left()


def test_killed_replica_is_restarted_without_lost_responses(pair: Pair) -> None:
    pair.up()
    second, statuses = pair.server.replicas[1], []
    with load(pair.url, KEY, statuses):
        wait_for(lambda: len(statuses) > 50)
        os.kill(pair.pid(second), signal.SIGKILL)
        wait_for(lambda: count_workers(pair.url) == 1)
        after = len(statuses)
        wait_for(lambda: len(statuses) > after + 50)
    assert set(statuses) == {200}

    result = pair.deploy.run("status", NAME)
    assert result.returncode == 8
    assert "replica 2 of 2 is not running: killed by SIGKILL" in result.stderr
    assert "replica 2 of 2 is not running" in pair.deploy.run("status").stderr
    again = pair.deploy.run(*pair.words())
    assert (again.returncode, "replica 2 of 2" in again.stderr) == (6, True), again.stderr

    with load(pair.url, KEY, statuses), pair.deploy.running("watch", NAME, "--json") as watch:
        events = [json.loads(watch.line()) for _ in range(3)]
        assert [(event["event"], event["alert"]) for event in events] == [
            ("unhealthy", False),
            ("died", True),
            ("restarted", True),
        ]
        assert "replica 2 of 2 is not running: killed by SIGKILL" in events[1]["detail"]
        first, restarted = pair.server.replicas
        assert (restarted != second, Path(restarted.run_dir).parent.name) == (True, events[2]["run"])
        assert pair.deploy.run("status", NAME).returncode == 0
        assert watch.end(signal.SIGINT)[0] == 130
    assert set(statuses) == {200}

    again = pair.deploy.run("restart", NAME)
    assert again.returncode == 0, again.stderr
    assert all("draining" in again.stderr.split(f"replica {number} of 2: ")[1] for number in (1, 2))
    assert set(pair.server.replicas).isdisjoint({first, restarted})


def test_scaling_under_load_loses_no_response(pair: Pair) -> None:
    pair.up()
    before, statuses = pair.server, []
    gateway, replicas = pair.pid(before), [pair.pid(replica) for replica in before.replicas]
    with load(pair.url, KEY, statuses):
        wait_for(lambda: len(statuses) > 20)
        pair.up("replicas=3", replace=True)
        wait_for(lambda: count_workers(pair.url) == 3)
        added = len(statuses)
        wait_for(lambda: len(statuses) > added + 50)
        grown = pair.server
        assert [pair.pid(replica) for replica in grown.replicas][:2] == replicas
        assert pair.deploy.run("status", NAME).returncode == 0
        third = pair.pid(grown.replicas[2])

        pair.up(replace=True)
        wait_for(lambda: not Path(f"/proc/{third}").exists())
        removed = len(statuses)
        wait_for(lambda: len(statuses) > removed + 20)
    assert set(statuses) == {200}
    shrunk = pair.server
    assert (pair.pid(shrunk), [pair.pid(replica) for replica in shrunk.replicas]) == (gateway, replicas)
    assert count_workers(pair.url) == 2
    result = pair.deploy.run("status", NAME)
    assert result.returncode == 0, result.stderr
    assert "already up" in pair.deploy.run(*pair.words()).stderr
    assert pair.deploy.run("down", NAME).returncode == 0
    pair.nothing_left()


def test_servers_of_both_roles_join_and_leave_under_load(pair: Pair) -> None:
    def up(*settings: str) -> "subprocess.CompletedProcess[str]":
        command, _, *rest = pair.words("replicas=1", *settings)
        return pair.deploy.run(command, "cpu-tiny-1p1d", *rest, "--replace")

    def served(server: Server) -> float:
        exported = httpx.get(f"{server.url}/metrics", trust_env=False).text
        return float(exported.partition("sglang:num_requests_total")[2].split()[1])

    def spread() -> bool:
        assert complete(client, prompt=f"{next(prompts)} times upon a time").status_code == 200
        return all(served(server) > before for server, before in new.items())

    started = up()
    assert started.returncode == 0, started.stderr
    old, prompts, statuses = pair.server, count(), list[int]()
    with load(pair.url, KEY, statuses, clients=2), pair.client() as client:
        wait_for(lambda: len(statuses) > 20)
        grown = up("layout.prefill.replicas=2", "layout.decode.replicas=2")
        assert grown.returncode == 0, grown.stderr
        servers = {Path(server.run_dir).name: server for server in pair.server.replicas}
        assert [*servers] == ["prefill-1", "prefill-2", "decode-1", "decode-2"]
        new = {server: served(server) for name, server in servers.items() if name.endswith("-2")}
        wait_for(spread)

        shrunk = up()
        assert shrunk.returncode == 0, shrunk.stderr
        left = pair.server
        assert [unit.runtime_id for unit in left.units] == [unit.runtime_id for unit in old.units]
        assert count_workers(pair.url) == 2
        removed = len(statuses)
        wait_for(lambda: len(statuses) > removed + 20)
    assert set(statuses) == {200}
    rejected = up("env.SCRIPTED_STEP=0.001")
    assert (rejected.returncode, f"hint: `deploy down {NAME}`, then" in rejected.stderr) == (6, True), rejected.stderr
    assert "only their number may change" in rejected.stderr
    assert pair.deploy.run("down", NAME).returncode == 0
    pair.nothing_left()


def test_second_model_joins_gateway_and_stops_independently(pair: Pair) -> None:
    own = ("replicas=1", f"server.port={free_port()}", "server.gateway=pair")
    early = pair.deploy.run(*pair.words(*own, "model.served_name=second", name="second"))
    assert (early.returncode, "no server `pair` found" in early.stderr) == (6, True), early.stderr
    pair.up()
    same = pair.deploy.run(*pair.words(*own, name="second"))
    assert (same.returncode, "the gateway already routes another model `tiny`" in same.stderr) == (6, True), same.stderr
    assert "started `second`" not in early.stderr + same.stderr, "rejected before anything is started"
    second = pair.words(*own, "model.served_name=second", name="second")
    joined = pair.deploy.run(*second)
    assert joined.returncode == 0, joined.stderr
    assert f"the gateway of `pair` routes the model `second` at {pair.url}" in joined.stderr

    def status_of(model: str) -> int:
        return client.post("/v1/completions", json={"model": model, "prompt": "a", "max_tokens": 2}).status_code

    with pair.client() as client:
        assert [status_of(model) for model in ("tiny", "second", "third")] == [200, 200, 404]
        report = json.loads(pair.deploy.run("status", "--health", "--json").stdout)
        assert [(entry["name"], entry["health"], entry["url"]) for entry in report] == [
            ("pair", "healthy", pair.url),
            ("second", "healthy", pair.url),
        ]
        assert pair.deploy.run("smoke", NAME).returncode == 0, "its gateway counts the worker of the other model"
        assert pair.deploy.run("down", "second").returncode == 0
        assert (status_of("tiny"), status_of("second") in {404, 503}) == (200, True), "503 until smg removes the worker"

    assert pair.deploy.run(*second).returncode == 0
    assert pair.deploy.run("down", NAME).returncode == 0
    alone = pair.deploy.run("status", "second")
    assert (alone.returncode, "the gateway of `pair` is not running" in alone.stderr) == (8, True), alone.stderr
    assert "`deploy restart pair` restarts it" in alone.stderr
    assert pair.url not in alone.stdout, "nothing listens at this URL"
    assert "no server `pair` found" in pair.deploy.run(*second).stderr
    again = pair.deploy.run("restart", "second")
    assert (again.returncode, "no gateway routes to `second`" in again.stderr) == (0, True), again.stderr
    pair.up()
    assert pair.deploy.run("status", "second").returncode == 0, "the server joins the restarted gateway"
    with pair.client() as client:
        assert [status_of(model) for model in ("tiny", "second")] == [200, 200]
    assert pair.deploy.run("down", "second").returncode == 0


def test_up_waits_for_unhealthy_replica_of_running_server(pair: Pair, tmp_path: Path) -> None:
    unhealthy = tmp_path / "unhealthy"
    settings = (f"env.SCRIPTED_UNHEALTHY={unhealthy}", "timeouts.health_deadline=240")
    pair.up(*settings)
    unhealthy.write_text(f"{pair.port + 16}")
    wait_for(lambda: count_workers(pair.url) == 1)
    with pair.deploy.running(*pair.words(*settings)) as again:
        again.wait_for("waiting for `pair`: 1 of 2 replicas healthy")
        unhealthy.unlink()
        again.wait_for("`pair` is already up")
        assert again.wait()[0] == 0


def test_up_fails_if_running_server_stays_unhealthy(pair: Pair, tmp_path: Path) -> None:
    unhealthy = tmp_path / "unhealthy"
    settings = (f"env.SCRIPTED_UNHEALTHY={unhealthy}", "timeouts.health_deadline=1")
    pair.up(*settings)
    unhealthy.write_text(f"{pair.port + 16}")
    wait_for(lambda: count_workers(pair.url) == 1)
    again = pair.deploy.run(*pair.words(*settings))
    assert again.returncode == 6, again.stderr
    assert "`pair` is running this plan but unhealthy: 1 of 2 replicas healthy after 1 s" in again.stderr


@pytest.mark.slow
def test_watch_restarts_server_when_gateway_hangs(pair: Pair) -> None:
    pair.up("restart_policy.unhealthy_after=2")
    with pair.deploy.running("watch", NAME, "--json") as watch:
        assert json.loads(watch.line())["event"] == "watching"
        os.kill(pair.pid(pair.server), signal.SIGSTOP)
        details: dict[str, str] = {}
        while "restarted" not in details:
            event = json.loads(watch.line())
            details[event["event"]] = event["detail"]
        assert details.keys() - {"unhealthy"} == {"died", "restarted"}
        assert "gateway: no answer" in details["died"]
        assert count_workers(pair.url) == 2
        assert watch.end(signal.SIGINT)[0] == 130


def test_replicas_of_killed_gateway_are_cleaned_up(pair: Pair) -> None:
    pair.up()
    os.kill(pair.pid(pair.server), signal.SIGKILL)
    wait_for(lambda: pair.server.current_state().status is Status.EXITED)
    result = pair.deploy.run("status", NAME)
    assert (result.returncode, "killed by SIGKILL" in result.stderr) == (6, True), result.stderr
    pair.up()  # the same plan: `up` replaces the leftover replicas
    assert count_workers(pair.url) == 2
    os.kill(pair.pid(pair.server), signal.SIGKILL)
    assert pair.deploy.run("down", NAME).returncode == 0
    pair.nothing_left()


@pytest.mark.parametrize("stage", ["started replica 1", "started replica 2", "replica 1 of 2 is ready", "the gateway"])
def test_ctrl_c_during_start_leaves_no_processes(pair: Pair, stage: str) -> None:
    slow = ("env.SCRIPTED_PAUSE=0.2",) if stage != "the gateway" else ()
    with pair.deploy.running(*pair.words(*slow)) as command:
        command.wait_for(stage)
        command.send(signal.SIGINT)
        assert command.wait()[0] == 130
    pair.nothing_left()


def test_concurrent_starts_of_one_name_leave_one_server(pair: Pair) -> None:
    with pair.deploy.running(*pair.words("env.SCRIPTED_PAUSE=0.2")) as first:
        first.wait_for("started replica 1")
        second = pair.deploy.run(*pair.words("env.SCRIPTED_PAUSE=0.2"))
        assert second.returncode != 0
        assert "another `deploy` command is working on `pair`" in second.stderr
        assert first.wait()[0] == 0
    assert count_workers(pair.url) == 2
    servers = pair.servers
    assert [len(handle.replicas) for handle in servers] == [2]


def test_failed_replica_start_stops_all_replicas(pair: Pair) -> None:
    ended = pair.deploy.run(*pair.words("env.SCRIPTED_BROKEN=1"))
    assert ended.returncode == 7
    pair.nothing_left()


def test_rolling_update_and_rollback_lose_no_response(pair: Pair) -> None:
    pair.up()
    statuses: list[int] = []
    with load(pair.url, KEY, statuses):
        pair.up("env.SCRIPTED_STEP=0.001", replace=True)
        assert {Path(server.run_dir).parent for server in pair.server.replicas} == {Path(pair.server.run_dir)}
        changed = pair.server
        assert changed.gateway_dir != changed.run_dir, "the gateway of the first start keeps running"

        broken = pair.deploy.run(*pair.words("env.SCRIPTED_BROKEN=1"), "--replace")
        assert broken.returncode == 7
        assert "0 of 2 replicas have this plan, 1 has another plan, 1 is down" in broken.stderr
        assert "`deploy rollback pair` returns to the last plan" in broken.stderr
        assert count_workers(pair.url) == 1
        result = pair.deploy.run("status", NAME)
        assert (result.returncode, "replica 1 of 2 is not running: it was stopped" in result.stderr) == (8, True)

        back = pair.deploy.run("rollback", NAME)
        assert back.returncode == 0, back.stderr
        assert "replica 1 of 2: unhealthy, stopping" in back.stderr
        assert "replica 2 of 2: draining" not in back.stderr, "replica 2 did not change"
        assert pair.server.plan_digest == changed.plan_digest
        assert count_workers(pair.url) == 2
    assert set(statuses) == {200}
    assert len(statuses) > 100
    rejected = pair.deploy.run(*pair.words("replicas=1"), "--replace")
    assert (rejected.returncode, "`replicas` changes from 2 to 1" in rejected.stderr) == (6, True), rejected.stderr
    assert pair.deploy.run("down", NAME).returncode == 0
    pair.nothing_left()


@pytest.mark.slow
def test_interrupted_or_partial_rolling_update_keeps_other_replicas(pair: Pair) -> None:
    pair.up()
    for stage, remaining in (("draining", 2), ("started replica 1", 1), ("ready after", 1)):
        with pair.deploy.running(*pair.words("env.SCRIPTED_PAUSE=0.1"), "--replace") as command:
            command.wait_for(stage)
            code, output = command.end(signal.SIGINT)
        assert (code, f"{2 - remaining} is down" in output) == (130, remaining < 2), output
        assert count_workers(pair.url) == remaining, stage
        with pair.client() as client:
            assert complete(client).status_code == 200
    first = pair.server
    one = pair.deploy.run(*pair.words("env.SCRIPTED_STEP=0.001"), "--replace", "--max-replicas", "1")
    assert (one.returncode, "1 of 2 replicas have this plan, 1 has another plan" in one.stderr) == (0, True), one.stderr
    status = pair.deploy.run("status", NAME)
    assert status.returncode == 0, status.stderr
    both = [line.split() for line in status.stdout.splitlines() if line.startswith(f"{NAME}/replica-")]
    assert [line[0] for line in both] == ["pair/replica-1", "pair/replica-2"]
    assert both[1][-1] == first.plan_digest[:8] != both[0][-1] == pair.server.plan_digest[:8]
    again = pair.deploy.run(*pair.words("env.SCRIPTED_STEP=0.001"))
    assert (again.returncode, "replica 2 of 2 has another" in again.stderr) == (6, True), again.stderr
    pair.up("env.SCRIPTED_STEP=0.001", replace=True)
    assert pair.deploy.run("down", NAME).returncode == 0
    pair.nothing_left()
