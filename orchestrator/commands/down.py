"""`deploy down`: stop a server with everything it started."""

from typing import Final

from orchestrator.commands.machine import place_of, wait_until_free
from orchestrator.commands.runs import claim, latest_run, read_plan
from orchestrator.commands.servers import Fleet
from orchestrator.runtimes import Handle

_GRACE: Final = 120.0  # seconds for running requests, for a server whose plan is not on this machine


def down(servers: Fleet, handle: Handle, *, host: str | None) -> None:
    """Stop one server within its plan's grace, and return when its port and its VRAM are free.

    Raises HostError where something else holds them, with who does.
    """
    with claim(servers.home, handle.name):
        servers.runtime(handle).stop(handle, grace=grace_of(servers, handle.name))
        if (plan := read_plan(latest_run(servers.home, handle.name))) is not None:
            wait_until_free(plan, place_of(plan, servers.home, host))


def grace_of(servers: Fleet, name: str) -> float:
    """Seconds the server of that name may take to finish its running requests."""
    plan = read_plan(latest_run(servers.home, name))
    return float(plan.waiting.grace) if plan else _GRACE
