"""The roles, ports and numbers of a plan's units."""

from collections.abc import Sequence
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
