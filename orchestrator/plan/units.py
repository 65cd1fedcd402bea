"""The units of a plan: its servers and its gateway."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # an import at run time would be circular
    from orchestrator.plan.plan import Plan


_RANK_PORT: Final = 1000  # offset from the server's port, beyond the ports of 64 replicas or of 32 servers of each role


def rank_port(port: int) -> int:
    """Return the port at which ranks on several nodes find each other, derived from their server's port."""
    return port + _RANK_PORT


class Role(StrEnum):
    """The role of a unit."""

    SERVER = "server"  # serves complete requests
    PREFILL = "prefill"  # processes prompts for decode units
    DECODE = "decode"  # generates the output for these prompts
    GATEWAY = "gateway"  # routes requests to the other units


@dataclass(frozen=True, kw_only=True)
class UnitPlan:
    """One unit to start. Its runtime adds the paths and the bind address."""

    name: str  # that of its folder too: `replica-1`, `prefill-1`
    role: Role
    number: int  # number among the units of this role, from 1
    plan: "Plan"  # plan of this unit; for the gateway, of the whole server


def unit_plans(plan: "Plan") -> tuple[UnitPlan, ...]:
    """Return the units of a plan in start order, the gateway last."""
    from orchestrator.plan.replicas import replica_plans  # noqa: PLC0415 - see above

    servers = tuple(
        UnitPlan(name=name, role=replica_plan.role, number=int(name.rpartition("-")[2]), plan=replica_plan)
        for name, replica_plan in zip(plan.server_names, replica_plans(plan), strict=True)
    )
    gateway = UnitPlan(name="gateway", role=Role.GATEWAY, number=1, plan=plan)
    return servers if plan.gateway is None else (*servers, gateway)


def covering_range(ranges: Sequence[range]) -> range:
    """Return the range from the first to the last index of ranges with the same step."""
    return range(min(item.start for item in ranges), max(item.stop for item in ranges), ranges[0].step)


def server_numbers(plan: "Plan") -> list[int]:
    """Return the numbers of a plan's servers, from 1; prefill servers come first."""
    return list(range(1, plan.replicas + 1))


def is_alone(plan: "Plan", number: int) -> bool:
    """Return whether this is the only server with its role behind the gateway."""
    roles = [name.rpartition("-")[0] for name in plan.server_names]
    return roles.count(roles[number - 1]) == 1
