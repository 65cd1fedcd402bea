"""What a plan has started: units, each one server, or the gateway before several."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever only tells roles apart needs no plan
    from orchestrator.plan.plan import EnvVar, Flag, Plan


class Role(StrEnum):
    """What a unit does for the clients of its server."""

    SERVER = "server"  # answers whole requests
    PREFILL = "prefill"  # reads prompts for decode units
    DECODE = "decode"  # generates what prefill units have read
    GATEWAY = "gateway"  # routes requests to the other units


@dataclass(frozen=True, kw_only=True)
class UnitPlan:
    """One thing to start. Its runtime adds the paths, and the address that it binds."""

    role: Role
    number: int  # among the units of this role, from 1 on
    nodes: int
    gpus: range  # of each node, by index; none for a gateway or on a CPU
    port: int
    flags: "tuple[Flag, ...]"  # of the engine, or of the gateway
    env: "tuple[EnvVar, ...]"


def unit_plans(plan: "Plan") -> tuple[UnitPlan, ...]:
    """The units of a plan in the order in which they start: a gateway comes last."""
    from orchestrator.plan.replicas import replica_plans  # noqa: PLC0415 - see above

    servers = tuple(
        UnitPlan(
            role=Role.SERVER,
            number=number,
            nodes=1,
            gpus=each.gpus,
            port=each.server.port,
            flags=each.flags,
            env=each.env,
        )
        for number, each in enumerate(replica_plans(plan), start=1)
    )
    if plan.gateway is None:
        return servers
    gateway = UnitPlan(
        role=Role.GATEWAY,
        number=1,
        nodes=1,
        gpus=range(0),
        port=plan.server.port,
        flags=plan.gateway.options,
        env=(),
    )
    return (*servers, gateway)


def server_numbers(plan: "Plan") -> list[int]:
    """The numbers of the servers of a plan, from 1 on."""
    return [unit.number for unit in plan.units if unit.role is Role.SERVER]
