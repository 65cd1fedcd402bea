"""The roles and ports of a plan's units."""

from enum import StrEnum
from typing import Final

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
