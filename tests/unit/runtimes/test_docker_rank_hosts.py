"""One server on several Docker hosts: the container and host of each rank, and commands with these hosts."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from docker.models.containers import Container
from plan_samples import plan_of
from run_samples import request_of

from orchestrator.cli.main import app
from orchestrator.core.command_hints import expand_commands
from orchestrator.core.errors import HostError, NameTakenError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.context import HostAccess
from orchestrator.hosts.head_address import Interface, RankNetwork
from orchestrator.hosts.ports import plan_ports
from orchestrator.hosts.report import PreflightReport
from orchestrator.hosts.survey import Runner
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import REQUEST_FILE, RunDir
from orchestrator.runtimes.base import HostRef, Runtime, ServerState, Status, Unit
from orchestrator.runtimes.docker import spec
from orchestrator.runtimes.docker.container import (
    container_argv,
    container_labels,
    docker_run_files,
    ranked,
    render,
    spec_of,
)
from orchestrator.runtimes.docker.creation import _clear_leftover
from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.runtimes.docker.options import host_options
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.labels import HEAD, RANK, RANK_HOSTS, RUN_DIR, STARTER, is_record
from orchestrator.servers.run_history import read_request
from orchestrator.servers.servers import Servers
from orchestrator.servers.start import host
from orchestrator.servers.start.host import preflight_host, require_host_per_node, wait_until_released
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.start.up import _already_up

SETTINGS = ("layout.tp=16", "layout.nodes=2")
HOSTS = ("ssh://a", "ssh://b")
TWO = ["--host", HOSTS[0], "--host", HOSTS[1]]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("mi355x-tp8", *SETTINGS, "server.port=31000")


def test_ranks_use_host_network_and_never_restart(plan: Plan) -> None:
    artifacts = render(plan, None, "image")
    rank_spec = spec_of(artifacts)
    assert (rank_spec.publish, rank_spec.restarts, rank_spec.needs.devices[-1]) == (None, 0, "/dev/infiniband")
    assert [(limit.name, limit.hard) for limit in rank_spec.needs.ulimits] == [("memlock", -1)]  # for the NIC's buffers
    options = host_options(artifacts, rank_spec, home="/home", gid=lambda _: "1")
    assert options["restart_policy"]["Name"] == "no"  # `on-failure` with a limit of 0 has no limit
    assert options["network_mode"] == "host"
    argv = artifacts.command.argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"  # the URL of rank 0 is reached through the tunnel
    over_tcp = render(plan_of("mi355x-tp8", *SETTINGS, "env.NCCL_IB_DISABLE=1"), None, "image")
    assert "/dev/infiniband" not in spec_of(over_tcp).needs.devices
    assert not spec_of(over_tcp).needs.ulimits


def test_rank_command_has_number_and_head_address(plan: Plan) -> None:
    artifacts = render(plan, None, "image")
    unknown = RankNetwork(address="10.0.0.1", interfaces=(Interface("10.0.0.1", ""), Interface("10.0.0.2", "")))
    placed = replace(artifacts, spec=replace(spec_of(artifacts), rank_hosts=HOSTS[1:], network=unknown))
    words = container_argv(ranked(placed, 1), config=False)
    assert words[words.index("--node-rank") :] == ("--node-rank", "1", "--dist-init-addr", "10.0.0.1:32000")
    assert "GLOO_SOCKET_IFNAME" not in dict(ranked(placed, 1).command.env)
    known = replace(unknown, interfaces=(Interface("10.0.0.1", "eth0"), Interface("10.0.0.2", "")))
    detected = replace(placed, spec=replace(spec_of(placed), network=known))
    overridden = replace(detected, command=replace(detected.command, env=(("GLOO_SOCKET_IFNAME", "bond0"),)))
    assert [dict(ranked(overridden, rank).command.env) for rank in (0, 1)] == [
        {"SGLANG_HOST_IP": "10.0.0.1", "GLOO_SOCKET_IFNAME": "bond0"},
        {"SGLANG_HOST_IP": "10.0.0.2", "GLOO_SOCKET_IFNAME": "bond0"},
    ]
    detected = replace(detected, command=replace(detected.command, env=()))
    assert [dict(ranked(detected, rank).command.env).get("GLOO_SOCKET_IFNAME") for rank in (0, 1)] == ["eth0", None]
    [script] = [file.content.decode() for file in docker_run_files(artifacts, "owl")]
    assert '--node-rank "${NODE_RANK:?' in script
    assert "--restart no" in script


@pytest.mark.parametrize("hosts", [(), HOSTS[:1], (*HOSTS, "ssh://c")])
def test_wrong_number_of_hosts_is_rejected(plan: Plan, hosts: tuple[str, ...]) -> None:
    host_ref = HostRef(home=Home(Path()), remote=next(iter(hosts), None), rank_hosts=hosts[1:])
    with pytest.raises(UsageError, match=f"`layout.nodes` is 2, and `--host` names {len(hosts)} host") as caught:
        require_host_per_node(plan, host_ref)
    assert caught.value.hint == "repeat `--host ssh://NODE` for each of the 2 nodes, rank 0 first"


def test_multi_node_plan_uses_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_host_fanout.py tests a plan of one node, which has one command for each host."""
    requests = list[UpRequest]()

    def record_request(request: UpRequest, _: Home) -> None:
        requests.append(request)
        raise UsageError("recorded")

    monkeypatch.setattr("orchestrator.cli.up.up", record_request)
    set_options = [word for setting in SETTINGS for word in ("--set", setting)]
    with pytest.raises(UsageError, match="recorded"):
        app(["up", "mi355x-tp8", *TWO, *set_options], prog_name="deploy", standalone_mode=False)
    assert (requests[0].host, *requests[0].rank_hosts) == HOSTS
    assert expand_commands("`deploy status owl`") == "`deploy status owl --host ssh://a`"


def test_run_record_contains_rank_hosts(tmp_path: Path) -> None:
    request = request_of(host=HOSTS[0], rank_hosts=HOSTS[1:])
    assert request.command("owl").endswith("--host ssh://a --host ssh://b")
    run = RunDir(tmp_path)
    run.save_state(REQUEST_FILE, request.to_record("owl"))
    saved = read_request(run)
    assert saved is not None
    assert (saved.host, *saved.rank_hosts) == HOSTS


def test_ports_are_checked_on_host_of_each_rank(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_ports(plan) == (("server", 31000), ("ranks", 32000))
    assert plan_ports(plan, rank=1) == (("server", 31001),)
    host_ref = HostRef(home=Home(Path()), remote=HOSTS[0], rank_hosts=HOSTS[1:])
    checked = list[tuple[str, int]]()

    def note_rank(_plan: Plan, access: HostAccess, *_: object, **__: object) -> PreflightReport:
        checked.append((access.runner(()).stdout, access.rank))
        return PreflightReport(profile="", findings=())

    monkeypatch.setattr(host, "preflight", note_rank)
    monkeypatch.setattr(host, "_weights_space", lambda *_: ())
    monkeypatch.setattr(host, "compare_hosts", lambda *_: ())
    monkeypatch.setattr(host, "wait_for_vram", lambda *_: None)
    monkeypatch.setattr(
        host, "ssh_runner", lambda url: lambda _: CompletedProgram(argv=(), code=0, stdout=url, stderr="")
    )
    preflight_host(plan, host_ref)
    assert checked == [("ssh://a", 0), ("ssh://b", 1)]

    def used_on_b(port: int, runner: Runner) -> str | None:
        return "`python3`" if (runner(()).stdout, port) == ("ssh://b", 31001) else None

    monkeypatch.setattr(host, "port_holder", used_on_b)
    monkeypatch.setattr(host, "_PORT_LIMIT", 0.0)
    with pytest.raises(HostError, match="port 31001 on ssh://b is still in use by `python3`"):
        wait_until_released(plan, host_ref)


def test_multi_host_errors_name_the_host(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise HostError("cannot inspect the host")

    host_ref = HostRef(home=Home(Path()), remote=HOSTS[0], rank_hosts=HOSTS[1:])
    monkeypatch.setattr(host, "survey", fail)
    with pytest.raises(HostError) as caught:
        preflight_host(plan, host_ref)
    assert caught.value.message == "cannot inspect the host (on ssh://a)"
    monkeypatch.setattr(spec, "find_docker", fail)
    with pytest.raises(HostError, match=r"\(on ssh://a\)"):
        spec.prepare(render(plan, None, "image"), host_ref)
    with pytest.raises(HostError) as caught:
        spec.prepare(render(plan, None, "image"), HostRef(home=Home(Path())))
    assert caught.value.message == "cannot inspect the host"


def test_same_plan_on_other_hosts_conflicts(plan: Plan, tmp_path: Path) -> None:
    handle = Unit(
        runtime="docker",
        name="owl",
        profile="",
        plan_digest=plan.digest,
        url="",
        run_dir=str(tmp_path),
        runtime_id="1",
        rank_hosts=("ssh://c",),
        state=ServerState(status=Status.RUNNING),
    )
    docker = SimpleNamespace(find=lambda _: (handle,))
    servers = Servers(Home(tmp_path), {"docker": cast("Runtime", docker)})
    with pytest.raises(NameTakenError, match="`owl` has its other ranks on ssh://c") as caught:
        _already_up(servers, "owl", plan=plan, request=request_of(host=HOSTS[0], rank_hosts=HOSTS[1:]))
    assert "--host ssh://a --host ssh://b --replace` stops it first" in caught.value.hint


class Daemon:
    """A Docker API with one running container."""

    containers = property(lambda self: self)

    def __init__(self, labels: dict[str, str]) -> None:
        self.removed = list[str]()
        self._labels = labels

    def get(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(labels=self._labels, status="running", remove=lambda **_: self.removed.append(name))


@pytest.mark.parametrize(
    ("head", "run", "removed"),
    [
        ("ssh://a", "home/runs/owl/1", True),
        ("ssh://c", "home/runs/owl/1", False),  # rank 0 may run on that host
        ("ssh://a", "theirs/runs/owl/1", False),
        ("ssh://a", "home/runs/owl/deleted", False),
    ],
)
def test_only_orphaned_ranks_of_this_home_are_removed(tmp_path: Path, head: str, run: str, removed: bool) -> None:
    for folder in ("home/runs/owl/1", "home/runs/owl/2", "theirs/runs/owl/1"):
        (tmp_path / folder).mkdir(parents=True)
    daemon = Daemon({RANK: "owl/1", HEAD: head, RUN_DIR: str(tmp_path / run), STARTER: "of-another-boot/1"})
    ours = {RANK: "owl/1", HEAD: "ssh://a", RUN_DIR: str(tmp_path / "home/runs/owl/2")}
    cleared = _clear_leftover(cast("DockerHost", SimpleNamespace(client=daemon)), "deploy-owl--rank-1", ours)
    assert (cleared, daemon.removed) == (removed, ["deploy-owl--rank-1"] if removed else [])


@pytest.mark.parametrize(
    ("home", "name", "connections"), [("ours", None, 1), ("theirs", None, 0), ("theirs", "owl", 1)]
)
def test_listing_does_not_contact_hosts_of_other_homes(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, name: str | None, connections: int
) -> None:
    (run := tmp_path / home / "runs/owl/1").mkdir(parents=True)
    labels = container_labels(plan, "owl") | {RUN_DIR: str(run), RANK_HOSTS: "ssh://b"}
    state = {"Status": "running", "StartedAt": "2026-01-01T00:00:00Z"}
    docker_containers = SimpleNamespace(
        list=lambda **_: [Container({"Id": "1", "Labels": labels})],
        get=lambda number: Container({"Id": number, "State": state, "RestartCount": 0}),
    )
    docker_runtime, connected = DockerRuntime(Home(tmp_path / "ours"), "unix:///nowhere"), list[str]()
    docker_runtime._host.__dict__["client"] = SimpleNamespace(containers=docker_containers)

    def fail_connection(_: DockerRuntime, url: str) -> DockerHost:
        connected.append(url)
        raise HostError("no connection")

    monkeypatch.setattr(DockerRuntime, "_host_at", fail_connection)
    monkeypatch.setattr(DockerRuntime, "_processes", lambda *_: ())
    [unit] = docker_runtime.find(name)
    assert (unit.rank_hosts, unit.state.status, len(connected)) == (("ssh://b",), Status.RUNNING, connections)


def test_labels_with_rank_run_directory_are_no_record(plan: Plan) -> None:
    labels = container_labels(plan, "owl") | {RUN_DIR: "/home/runs/owl/1"}
    assert is_record(labels)
    assert not is_record(labels | {RUN_DIR: "/home/runs/owl/1/rank-1"})
