"""The units of a plan: their order, GPUs and ports."""

from plan_samples import plan_of

from orchestrator.plan.units import Role


def test_single_server_is_one_unit() -> None:
    plan = plan_of("mi355x-tp8")
    [unit] = plan.units
    assert (unit.name, unit.role, unit.number, unit.plan) == ("replica-1", Role.SERVER, 1, plan)


def test_gateway_unit_follows_its_servers() -> None:
    plan = plan_of("mi355x-tp4x2")
    assert plan.gateway is not None
    first, second, gateway = plan.units
    assert [(unit.role, unit.number) for unit in plan.units] == [
        (Role.SERVER, 1),
        (Role.SERVER, 2),
        (Role.GATEWAY, 1),
    ]
    assert plan.servers == (first, second)
    assert (first.plan.gpus, second.plan.gpus, gateway.plan) == (range(4), range(4, 8), plan)
    assert (first.plan.server.port, second.plan.server.port) == plan.gateway.ports
    assert {flag.name for flag in second.plan.flags} - {flag.name for flag in first.plan.flags} == {"base-gpu-id"}
