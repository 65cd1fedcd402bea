"""One server on several Docker hosts: the container of each rank, its hosts, and the commands that name them."""

from dataclasses import replace
from pathlib import Path

import pytest
from plan_samples import plan_of
from run_samples import request_of

from orchestrator.cli.main import app
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import REQUEST_FILE, RunDir
from orchestrator.runtimes.base import HostRef
from orchestrator.runtimes.docker.container import container_argv, docker_run_files, ranked, render, spec_of
from orchestrator.runtimes.docker.options import host_options
from orchestrator.servers.run_history import read_request
from orchestrator.servers.start.host import require_host_per_node
from orchestrator.servers.start.request import UpRequest

SETTINGS = ("layout.tp=16", "layout.nodes=2")
HOSTS = ("ssh://a", "ssh://b")
TWO = ["--host", HOSTS[0], "--host", HOSTS[1]]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("mi355x-tp8", *SETTINGS, "server.port=31000")


def test_ranks_share_the_network_and_the_nics_of_their_host_and_end_together(plan: Plan) -> None:
    artifacts = render(plan, None, "image")
    spec = spec_of(artifacts)
    assert (spec.publish, spec.restarts, spec.needs.devices[-1]) == (None, 0, "/dev/infiniband")
    options = host_options(artifacts, spec, home="/home", gid=lambda _: "1")
    assert options["restart_policy"]["Name"] == "no"  # `on-failure` with a limit of 0 has no limit
    assert options["network_mode"] == "host"
    argv = artifacts.command.argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"  # the URL of rank 0 is reached through the tunnel
    over_tcp = render(plan_of("mi355x-tp8", *SETTINGS, "env.NCCL_IB_DISABLE=1"), None, "image")
    assert "/dev/infiniband" not in spec_of(over_tcp).needs.devices


def test_a_rank_has_its_number_and_the_address_of_the_first_host(plan: Plan) -> None:
    artifacts = render(plan, None, "image")
    placed = replace(artifacts, spec=replace(spec_of(artifacts), rank_hosts=HOSTS[1:], head_address="10.0.0.1"))
    words = container_argv(ranked(placed, 1), config=False)
    assert words[words.index("--node-rank") :] == ("--node-rank", "1", "--dist-init-addr", "10.0.0.1:32000")
    [script] = [each.content.decode() for each in docker_run_files(artifacts, "owl")]
    assert '--node-rank "${NODE_RANK:?' in script
    assert "--restart no" in script


@pytest.mark.parametrize("hosts", [(), HOSTS[:1], (*HOSTS, "ssh://c")])
def test_another_number_of_hosts_is_refused(plan: Plan, hosts: tuple[str, ...]) -> None:
    host_ref = HostRef(home=Home(Path()), remote=next(iter(hosts), None), rank_hosts=hosts[1:])
    with pytest.raises(UsageError, match=f"`layout.nodes` is 2, and `--host` names {len(hosts)} host") as refused:
        require_host_per_node(plan, host_ref)
    assert refused.value.hint == "give `--host ssh://NODE` 2 times, the host of rank 0 first"


def test_the_plan_of_several_nodes_takes_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plan of one node, `test_several_hosts.py` has the command for each host."""
    asked = list[UpRequest]()

    def refuse(request: UpRequest, _: Home) -> None:
        asked.append(request)
        raise UsageError("asked")

    monkeypatch.setattr("orchestrator.cli.up.up", refuse)
    set_ = [word for each in SETTINGS for word in ("--set", each)]
    with pytest.raises(UsageError, match="asked"):
        app(["up", "mi355x-tp8", *TWO, *set_], prog_name="deploy", standalone_mode=False)
    assert asked[0].hosts == HOSTS


def test_a_run_knows_the_hosts_of_its_ranks(tmp_path: Path) -> None:
    request = request_of(host=HOSTS[0], rank_hosts=HOSTS[1:])
    assert request.command("owl").endswith("--host ssh://a --host ssh://b")
    run = RunDir(tmp_path)
    run.save_state(REQUEST_FILE, request.to_record("owl"))
    read = read_request(run)
    assert read is not None
    assert read.hosts == HOSTS
