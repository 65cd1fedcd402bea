"""`replicas: N`: the planned gateway, the plan of each replica, and rejected settings."""

import pytest
from plan_flags import flag_of
from plan_samples import plan_of

from orchestrator.core.errors import ProfileError
from orchestrator.hosts.ports import plan_ports
from orchestrator.plan.replicas import replica_plans, rolling_update_blocker
from orchestrator.planner.planning import load


def problems_of(profile: str, *overrides: str) -> dict[str, str]:
    """Return the messages of all problems with their locations."""
    with pytest.raises(ProfileError) as error:
        load(profile, overrides=overrides)
    return {problem.message: problem.location for problem in error.value.problems_or_self()}


def test_single_server_has_no_gateway() -> None:
    plan = plan_of("cpu-tiny", "gateway.policy=random")
    assert (plan.replicas, plan.gateway) == (1, None)
    assert replica_plans(plan) == (plan,)


def test_gateway_has_server_port_and_replicas_their_own() -> None:
    plan = plan_of("cpu-tiny", "replicas=3", "server.port=21000")
    assert plan.gateway is not None
    assert plan.server.port == 21000
    assert plan.gateway.ports == (21008, 21016, 21024)
    ports = [port for _, port in plan_ports(plan)]
    assert sorted(ports) == [21000, 21001, 21008, 21016, 21024]


def test_prefill_and_decode_have_separate_ports() -> None:
    ports = dict(plan_ports(plan_of("cpu-tiny-1p1d", "server.port=21000")))
    assert {name: ports[name] for name in ("server", "prefill 1", "decode 1", "bootstrap of prefill")} == {
        "server": 21000,
        "prefill 1": 21008,
        "decode 1": 21016,
        "bootstrap of prefill": 21024,
    }


def test_profile_overrides_gateway_defaults() -> None:
    plan = plan_of("cpu-tiny", "replicas=2", "gateway.policy=round_robin", "gateway.disable-retries=true")
    assert plan.gateway is not None
    options = {option.name: option for option in plan.gateway.options}
    assert options["policy"].values == ("round_robin",)
    assert options["policy"].origin == "user"
    assert options["disable-retries"].argv == ("--disable-retries",)
    assert options["health-check-interval-secs"].source  # a default has its reason as source


def test_each_replica_listens_on_loopback_with_own_gpus() -> None:
    plan = plan_of("mi355x-tp4x2", "server.host=0.0.0.0", "server.api_key_env=SERVING_KEY")
    first, second = replica_plans(plan)
    assert plan.gpus == range(8)
    assert (first.gpus, second.gpus) == (range(4), range(4, 8))
    for replica in (first, second):
        assert (replica.server.host, replica.server.api_key_env) == ("127.0.0.1", "SERVING_KEY")
        assert (replica.replicas, replica.gateway, replica.layout) == (1, None, plan.layout)
    assert first.server.port != second.server.port


def test_gpu_offset_and_step_apply_across_replicas() -> None:
    small = ("layout.tp=2", "flags.context-length=131072")
    plan = plan_of("mi355x-tp4x2", *small, "flags.base-gpu-id=1", "flags.gpu-id-step=2", "engine.python=python3")
    first, second = replica_plans(plan)
    assert (list(first.gpus), list(second.gpus)) == ([1, 3], [5, 7])


def test_too_many_replicas_are_rejected_at_their_setting() -> None:
    problems = problems_of("mi355x-tp4x2", "replicas=3")
    assert problems["3 replicas of 4 GPUs need 12 GPUs; the node has 8"] == "--set replicas"


def test_too_few_gpus_error_names_profile_line() -> None:
    problems = problems_of("mi355x-tp4x2", "layout.tp=8")
    location = problems["2 replicas of 8 GPUs need 16 GPUs; the node has 8"]
    assert location.startswith("profiles/mi355x-tp4x2.yaml:")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gateway.polcy=random", "the gateway has no option `polcy`"),
        ("gateway.policy=fastest", "`--policy` of the gateway does not take `fastest`"),
        ("gateway.cache-threshold=much", "`--cache-threshold` of the gateway takes a number, found `much`"),
        ("gateway.api-key=k", "`gateway.api-key` cannot be set"),
        ("gateway.worker-urls=http://h", "`gateway.worker-urls` cannot be set"),
    ],
)
def test_invalid_gateway_option_is_rejected_without_replicas(setting: str, message: str) -> None:
    assert problems_of("cpu-tiny", setting)[message] == f"--set {setting.partition('=')[0]}"


def test_shared_replica_port_is_rejected() -> None:
    problems = problems_of("cpu-tiny", "replicas=2", "flags.nccl-port=29500")
    assert problems["`--nccl-port` sets one port for all replicas"] == "--set flags.nccl-port"


def test_replica_ports_above_65535_are_rejected() -> None:
    message = "`server.port` 65530 is too high: the last of 2 replicas needs 65546"
    assert problems_of("mi355x-tp4x2", "server.port=65530")[message] == "--set server.port"


def test_slurm_requeue_with_replicas_is_rejected() -> None:
    job = ("runtime=slurm", "engine.python=/python", "server.api_key_env=THE_KEY", "slurm.requeue=true")
    message = "`slurm.requeue` needs a single server, not 2: the gateway cannot follow it to another node"
    assert problems_of("cpu-tiny", "replicas=2", *job) == {message: "--set slurm.requeue"}


def test_slurm_replicas_have_distinct_ports_but_no_gpu_offset() -> None:
    job = ("runtime=slurm", "engine.python=/python", "server.api_key_env=THE_KEY")
    plan = plan_of("mi355x-tp4x2", *job)
    assert [replica.server.port for replica in replica_plans(plan)] == [plan.server.port + 8, plan.server.port + 16]
    assert [flag_of(replica, "base-gpu-id") for replica in replica_plans(plan)] == [None, None]
    moved = plan_of("mi355x-tp4x2", *job, "slurm.gateway_partition=cpu")
    assert "the location in the cluster" in rolling_update_blocker(plan, moved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("replicas=1", "`replicas` changes from 2 to 1, and a single replica has no gateway"),
        ("server.port=21000", "`server` changes"),
        ("gateway.policy=random", "`gateway` changes"),
        ("model.served_name=other", "`served_name` changes"),
    ],
)
def test_shared_settings_block_rolling_update(change: str, message: str) -> None:
    before, after = plan_of("cpu-tiny", "replicas=2"), plan_of("cpu-tiny", "replicas=2", change)
    assert message in rolling_update_blocker(before, after)


def test_scaling_keeps_plans_of_existing_replicas() -> None:
    settings = ("layout.tp=2", "flags.context-length=131072")
    two, three = plan_of("mi355x-tp4x2", *settings), plan_of("mi355x-tp4x2", *settings, "replicas=3")
    assert [plan.digest for plan in replica_plans(three)[:2]] == [plan.digest for plan in replica_plans(two)]
    assert rolling_update_blocker(two, three) == rolling_update_blocker(three, two) == ""


def test_changed_namespace_blocks_rolling_update() -> None:
    settings = ("replicas=2", "runtime=kubernetes", "engine.image=a/b:1", "kubernetes.weights.pvc=models")
    before = plan_of("cpu-tiny", *settings)
    assert rolling_update_blocker(before, plan_of("cpu-tiny", *settings, "kubernetes.cpu=2")) == ""
    moved = plan_of("cpu-tiny", *settings, "kubernetes.namespace=other")
    assert rolling_update_blocker(before, moved) == "the location in the cluster changes, which the replicas share"


def test_changed_gpu_count_blocks_rolling_update() -> None:
    before = plan_of("mi355x-tp4x2")
    assert rolling_update_blocker(before, plan_of("mi355x-tp4x2", "flags.mem-fraction-static=0.8")) == ""
    assert "the GPUs of a replica change from 4 to 2" in rolling_update_blocker(
        before, plan_of("mi355x-tp4x2", "layout.tp=2", "flags.context-length=131072")
    )


@pytest.mark.parametrize(
    ("profile", "overrides"),
    [
        ("cpu-tiny", ("replicas=2",)),
        ("cpu-tiny-1p1d", ()),
        ("cpu-tiny", ("runtime=slurm",)),
        ("cpu-tiny", ("runtime=kubernetes",)),
    ],
)
def test_only_single_local_server_can_join_another_gateway(profile: str, overrides: tuple[str, ...]) -> None:
    assert plan_of("cpu-tiny", "server.gateway=pair").server.gateway == "pair"
    problems = problems_of(profile, *overrides, "server.gateway=pair")
    message = "only a single `docker` or `process` server can join another server's gateway"
    assert problems[message] == "--set server.gateway"
