"""`layout.nodes: N`: one server with ranks on several nodes, the command of each rank, and rejected settings."""

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import ProfileError
from orchestrator.engine.launch import rank_argv
from orchestrator.engine.server_args import server_arguments
from orchestrator.images.argument_checker import argument_question
from orchestrator.plan.host_needs import host_needs
from orchestrator.planner.planning import load
from orchestrator.render.scripts import server_script
from orchestrator.runtimes import runtime_class

SLURM = ("runtime=slurm", "server.allow_unauthenticated=true", "engine.python=python3")
TWO = (*SLURM, "layout.nodes=2")
PIPELINE = ("flags.pp-size=2", "flags.disable-overlap-schedule=true", "flags.speculative-algorithm=null")
NO_DRAFTS = tuple(f"flags.speculative-{name}=null" for name in ("num-steps", "eagle-topk", "num-draft-tokens"))


def problems_of(profile: str, *overrides: str) -> dict[str, str]:
    """Return the messages of all problems with their hints."""
    with pytest.raises(ProfileError) as error:
        load(profile, overrides=overrides)
    return {problem.message: problem.hint for problem in error.value.problems_or_self()}


def test_two_nodes_form_one_server() -> None:
    plan = plan_of("mi355x-tp8", *TWO, "layout.tp=16")
    [server] = plan.servers.values()
    assert (server.layout.nodes, server.gpus, plan.gpu_count) == (2, range(8), 16)
    assert plan.layout.label == "TP16 on 2 nodes"
    assert host_needs(plan) == host_needs(plan_of("mi355x-tp8", *SLURM))  # the needs of one node


@pytest.mark.parametrize("parallel", [("layout.tp=8", *PIPELINE, *NO_DRAFTS), ("layout.tp=16", "layout.ep=16")])
def test_pipeline_stages_and_experts_span_nodes(parallel: tuple[str, ...]) -> None:
    plan = plan_of("mi355x-tp8", *TWO, *parallel)
    assert (plan.gpus, plan.gpu_count) == (range(8), 16)


def test_rank_command_has_number_port_and_head_address() -> None:
    plan = plan_of("mi355x-tp8", *TWO, "layout.tp=16", "server.port=31000")
    argv = runtime_class("slurm").render(plan, {}).command.argv
    first, second = (rank_argv(argv, rank=rank, head="10.0.0.1") for rank in (0, 1))
    assert first[-6:] == ("--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "10.0.0.1:32000")
    assert second[-6:] == ("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.0.0.1:32000")
    assert [line[line.index("--port") + 1] for line in (first, second)] == ["31000", "31001"]
    assert sum(one != other for one, other in zip(first, second, strict=True)) == 2


def test_single_node_command_has_no_node_options() -> None:
    argv = runtime_class("slurm").render(plan_of("mi355x-tp8", *SLURM), {}).command.argv
    assert not {"--nnodes", "--node-rank", "--dist-init-addr"} & {*argv}
    assert rank_argv(argv, rank=1, head="10.0.0.1") == argv


def test_script_requires_rank_and_head_address_variables() -> None:
    text = server_script(runtime_class("slurm").render(plan_of("mi355x-tp8", *TWO, "layout.tp=16"), {}))
    assert '--node-rank "${NODE_RANK:?' in text
    assert '--dist-init-addr "${HEAD_ADDRESS:?the address of the first node}:31000"' in text


def test_argument_check_uses_first_rank() -> None:
    artifacts = runtime_class("slurm").render(plan_of("mi355x-tp8", *TWO, "layout.tp=16"), {})
    [argv] = argument_question(artifacts, None).argv
    assert argv == server_arguments(rank_argv(artifacts.command.argv, rank=0, head="127.0.0.1"))
    assert argv[argv.index("--node-rank") + 1] == "0"


def test_each_replica_has_its_own_nodes() -> None:
    plan = plan_of("mi355x-tp4x2", *TWO, "layout.tp=16")
    assert [server.layout.nodes for server in plan.servers.values()] == [2, 2]


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (("layout.nodes=3",), "tp 8 is not divisible by 3 nodes", "equal part"),
        (("layout.nodes=3", *PIPELINE, *NO_DRAFTS), "tp 8 x pp 2 is not divisible by 3 nodes", "whole pipeline stages"),
        (("layout.tp=32",), "tp 32 needs 16 GPUs on each of 2 nodes; the node has 8", "`layout.nodes`"),
        (("layout.dp=2",), "multi-node data parallel is not supported without dp attention", "`replicas`"),
        (("flags.dist-init-addr=10.0.0.1:5000",), "`dist-init-addr` cannot be set for several nodes", "first node"),
        (("server.port=64600",), "the ranks need ports up to 65606", "lower port"),
        (("runtime=docker", "replicas=2"), "the docker runtime starts one server on several nodes, not 2", "`--name`"),
        (("runtime=process",), "the process runtime starts a server on one node, not on 2", "runtime=docker"),
    ],
)
def test_unsupported_multi_node_settings_are_rejected(settings: tuple[str, ...], message: str, hint: str) -> None:
    problems = problems_of("mi355x-tp8", *TWO, *settings)
    assert any(message in text and hint in text_hint for text, text_hint in problems.items()), problems
