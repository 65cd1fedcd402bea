"""Separate prefill and decode servers: the plan and command of each role, and rejected settings."""

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import Problem, ProfileError
from orchestrator.engine.disaggregation import transfer_problem
from orchestrator.hosts.ports import plan_ports
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans, rolling_update_blocker
from orchestrator.plan.units import Role
from orchestrator.planner.planning import load, render_artifacts

PAIR = ("layout.prefill.tp=4", "layout.decode.tp=4", "layout.transfer.backend=mori", "layout.transfer.network=ainic")
CACHED = "layout.decode.flags.disaggregation-decode-enable-radix-cache=true"
GPUS = "mi355x-tp8"
FULL = "1 prefill of 4 and 1 decode of 8 GPUs need 12 GPUs; the node has 8"
CPU = "cpu-tiny-1p1d"
SMALL = ("layout.prefill.tp=2", "layout.decode.tp=2", *PAIR[2:], CACHED, "flags.context-length=131072")
NONE = "`layout.decode.replicas`: should be greater than or equal to 1, found 0"
ONE_GPU = (
    "hardware.gpus=1",
    "layout.prefill.tp=1",
    "layout.decode.flags.base-gpu-id=0",
    "layout.decode.flags.disaggregation-decode-enable-radix-cache=false",
    "layout.transfer.backend=nixl",
    "layout.transfer.network=tcp",
)


def problems_of(profile: str, *overrides: str) -> dict[str, Problem]:
    with pytest.raises(ProfileError) as caught:
        load(profile, overrides=overrides)
    return {problem.message: problem for problem in caught.value.problems}


def flags_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {flag.name: flag.values for flag in plan.flags}


def test_each_role_has_its_own_gpus_flags_and_ports() -> None:
    plan = plan_of(GPUS, *PAIR, CACHED, "layout.prefill.flags.max-running-requests=7", "server.port=21000")
    prefill, decode = replica_plans(plan)
    assert [(name, server.role, server.gpus, server.server.port) for name, server in plan.servers.items()] == [
        ("prefill-1", Role.PREFILL, range(4), 21008),
        ("decode-1", Role.DECODE, range(4, 8), 21016),
    ]
    assert (plan.gpus, plan.server.port) == (range(8), 21000)
    first, second = flags_of(prefill), flags_of(decode)
    assert first["disaggregation-bootstrap-port"] == ("21024",)
    assert (first["disaggregation-mode"], second["disaggregation-mode"]) == (("prefill",), ("decode",))
    assert first["max-running-requests"] == ("7",) != second["max-running-requests"]
    assert second["base-gpu-id"] == ("4",)
    assert "disaggregation-decode-enable-radix-cache" in second.keys() - first.keys()
    assert first["speculative-algorithm"] == second["speculative-algorithm"]  # shared flags apply to both roles


def test_two_roles_share_the_gpu_that_their_flags_name() -> None:
    plan = plan_of("h200-tiny", *ONE_GPU)
    assert [plan.gpus, *(server.gpus for server in plan.servers.values())] == [range(1)] * 3
    problems = problems_of("h200-tiny", *(item for item in ONE_GPU if "base-gpu-id" not in item))
    assert "1 prefill of 1 and 1 decode of 1 GPUs need 2 GPUs; the node has 1" in problems
    separate = plan_of("h200-tiny", *ONE_GPU, "hardware.gpus=8", "layout.decode.flags.base-gpu-id=5")
    assert [server.gpus for server in separate.servers.values()] == [range(1), range(5, 6)]
    assert separate.gpus == range(6)


def test_role_omits_a_shared_flag() -> None:
    prefill, decode = replica_plans(
        plan_of(CPU, "flags.chunked-prefill-size=64", "layout.decode.flags.chunked-prefill-size=null")
    )
    assert flags_of(prefill)["chunked-prefill-size"] == ("64",)
    assert "chunked-prefill-size" not in flags_of(decode)


def test_second_prefill_server_has_the_flags_of_the_first() -> None:
    first, second, _ = map(flags_of, replica_plans(plan_of(GPUS, *SMALL, "layout.prefill.replicas=2")))
    assert second.keys() ^ first.keys() == {"base-gpu-id"}


def test_gateway_command_lists_roles_and_bootstrap_ports() -> None:
    more = ("layout.prefill.replicas=2", "server.port=21000")
    artifacts = render_artifacts(plan_of(CPU, *more))
    words = " ".join(artifacts.command.argv)
    assert "--pd-disaggregation --prefill http://127.0.0.1:21008 21024" in words
    assert "--prefill http://127.0.0.1:21032 21048 --decode http://127.0.0.1:21016" in words
    assert "--worker-urls" not in words
    assert artifacts.plan.server_names == ("prefill-1", "prefill-2", "decode-1")


def test_transfer_backend_sets_environment_with_source() -> None:
    [variable] = [item for item in plan_of(CPU).env if item.name == "MC_FORCE_TCP"]
    assert (variable.value, "sglang" in variable.source) == ("1", True)
    env = {item.name: item.value for item in replica_plans(plan_of(GPUS, *PAIR, CACHED))[1].env}
    assert env["MORI_IO_QP_MAX_SEND_WR"] == "16384"


@pytest.mark.parametrize(
    ("profile", "settings", "message", "hint"),
    [
        (GPUS, (*PAIR[:1], *PAIR[2:]), "`layout.prefill` cannot serve without `layout.decode`", "`layout.decode"),
        (GPUS, (*PAIR[1:], CACHED), "`layout.decode` cannot serve without `layout.prefill`", "`layout.prefill: {}`"),
        (
            GPUS,
            (*PAIR[:2], CACHED),
            "`layout.transfer` is missing: the network and backend that transfer the KV cache",
            "network: tcp",
        ),
        (
            GPUS,
            (*PAIR[:3], "layout.transfer.network=tcp", CACHED),
            "mori cannot send over TCP, only by RDMA",
            "backend: mooncake`",
        ),
        (GPUS, PAIR, "a decode server has no prefix cache unless the profile sets one", "to true, or to false"),
        (
            GPUS,
            (*PAIR, CACHED, *(f"layout.prefill.flags.speculative-{name}=false" for name in (
                "algorithm", "num-steps", "eagle-topk", "num-draft-tokens"))),
            "speculative decoding is set for decode only",
            "for both",
        ),
        (
            CPU,
            ("layout.decode.flags.context-length=1024",),
            "the context is 32768 tokens for prefill and 1024 for decode: requests hang",
            "once",
        ),
        (
            CPU,
            ("layout.prefill.replicas=2", "gateway.policy=random"),
            "policy `random` sends a prefix to any of 2 prefill servers, which compute it again",
            "`cache_aware`",
        ),
        (
            CPU,
            ("replicas=2",),
            "`replicas` cannot be combined with prefill and decode servers",
            "layout.prefill.replicas",
        ),
        (GPUS, (*PAIR, CACHED, "layout.decode.tp=8"), FULL, "lower"),
        (CPU, ("layout.decode.replicas=0",), NONE, ""),
    ],
)  # fmt: skip
def test_silently_failing_role_settings_are_rejected_with_hint(
    profile: str, settings: tuple[str, ...], message: str, hint: str
) -> None:
    problems = problems_of(profile, *settings)
    assert hint in problems[message].hint
    assert problems[message].location


def test_mooncake_on_rocm_requires_disabled_hip() -> None:
    mooncake = ("layout.transfer.backend=mooncake", CACHED)
    assert plan_of(GPUS, *PAIR, *mooncake).roles
    problems = problems_of(GPUS, *PAIR, *mooncake, "env.MC_DISABLE_HIP=0")
    assert any("hipIpcOpenMemHandle" in message for message in problems)
    assert any("MC_DISABLE_HIP=1" in problem.hint for problem in problems.values())


def test_roles_of_different_plans_cannot_be_mixed() -> None:
    old, new = plan_of(CPU), plan_of(CPU, "flags.max-running-requests=3", "layout.decode.replicas=2")
    assert rolling_update_blocker(old, old) == ""
    assert "with different plans cannot work together; only their number may" in rolling_update_blocker(old, new)


JOBS = ("runtime=slurm", "engine.python=/python", "server.api_key_env=THE_KEY")
PODS = ("runtime=kubernetes", "engine.image=a/b:1", "kubernetes.weights.pvc=models", "server.api_key_env=THE_KEY")


def digests(plan: Plan) -> dict[str, str]:
    return {name: server.digest for name, server in plan.servers.items()}


@pytest.mark.parametrize(
    "more",
    [
        ("layout.decode.replicas=2",),
        ("layout.prefill.replicas=2",),
        ("layout.decode.replicas=3",),
        ("layout.prefill.replicas=2", "layout.decode.replicas=2"),
    ],
)
@pytest.mark.parametrize(("profile", "settings"), [(GPUS, SMALL), (CPU, ()), (CPU, JOBS), (CPU, PODS)])
def test_added_servers_leave_plans_of_the_others(
    profile: str, settings: tuple[str, ...], more: tuple[str, ...]
) -> None:
    pair, grown = plan_of(profile, *settings), plan_of(profile, *settings, *more)
    assert digests(pair).items() < digests(grown).items()
    assert rolling_update_blocker(pair, grown) == rolling_update_blocker(grown, pair) == ""
    ports = [port for _, port in plan_ports(grown)]
    assert len({*ports}) == len(ports)


def test_server_that_would_move_to_other_gpus_blocks_rolling_update() -> None:
    two, more = ("layout.decode.replicas=2",), ("layout.decode.replicas=2", "layout.prefill.replicas=2")
    old, new = plan_of(GPUS, *SMALL, *two), plan_of(GPUS, *SMALL, *more)
    assert rolling_update_blocker(old, new) == "decode 2 would move to other GPUs"
    assert [list(server.gpus) for server in new.servers.values()] == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert rolling_update_blocker(plan_of(CPU, *two), plan_of(CPU, *more)) == ""


@pytest.mark.parametrize(
    ("lines", "backend", "tcp", "message"),
    [
        (["TcpTransport: listen on port 16161"], "mooncake", True, ""),
        (["TcpTransport: listen on port 16161"], "mooncake", False, "transferred over TCP"),
        (["x", "installTransport, type=rdma"], "mooncake", False, ""),
        (["installTransport, type=rdma"], "mooncake", True, "the profile sets TCP"),
        (["x"], "mooncake", False, "no line of the log shows the use of RDMA"),
        (["x"], "mori", False, ""),
    ],
)
def test_transfer_network_is_detected_from_log(lines: list[str], backend: str, *, tcp: bool, message: str) -> None:
    problem = transfer_problem(lines, backend=backend, tcp=tcp)
    assert bool(problem) == bool(message)
    assert message in problem
