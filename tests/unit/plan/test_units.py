"""The units of a plan: what is started, in which order, on which GPUs and ports."""

from plan_samples import plan_of

from orchestrator.plan.units import Role


def test_one_server_is_one_unit() -> None:
    plan = plan_of("mi355x-tp8")
    [unit] = plan.units
    assert (unit.role, unit.number, unit.nodes, unit.gpus) == (Role.SERVER, 1, 1, plan.gpus)
    assert (unit.port, unit.flags, unit.env) == (plan.server.port, plan.flags, plan.env)


def test_a_gateway_comes_after_its_servers_and_takes_no_gpu() -> None:
    plan = plan_of("mi355x-tp4x2")
    assert plan.gateway is not None
    first, second, gateway = plan.units
    assert [(each.role, each.number) for each in plan.units] == [
        (Role.SERVER, 1),
        (Role.SERVER, 2),
        (Role.GATEWAY, 1),
    ]
    assert (first.gpus, second.gpus, gateway.gpus) == (range(4), range(4, 8), range(0))
    assert (first.port, second.port, gateway.port) == (*plan.gateway.ports, plan.server.port)
    assert {flag.name for flag in second.flags} - {flag.name for flag in first.flags} == {"base-gpu-id"}
    assert gateway.flags == plan.gateway.options
