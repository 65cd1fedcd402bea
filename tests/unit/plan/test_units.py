"""The servers of a plan: their order, GPUs and ports."""

from plan_samples import plan_of

from orchestrator.plan.units import Role


def test_single_server_has_the_whole_plan() -> None:
    plan = plan_of("mi355x-tp8")
    assert (plan.servers, plan.role) == ({"replica-1": plan}, Role.SERVER)


def test_replicas_have_their_own_gpus_and_ports() -> None:
    plan = plan_of("mi355x-tp4x2")
    assert plan.gateway is not None
    assert [*plan.servers] == ["replica-1", "replica-2"]
    first, second = plan.servers.values()
    assert (first.role, second.role, first.gpus, second.gpus) == (Role.SERVER, Role.SERVER, range(4), range(4, 8))
    assert (first.server.port, second.server.port) == plan.gateway.ports
    assert {flag.name for flag in second.flags} - {flag.name for flag in first.flags} == {"base-gpu-id"}
