"""Servers behind the gateway of another server: one URL, several models.

`server.gateway` in a profile names the other server. smg registers a worker with its served name and routes each
request by its `model`, without its option `--enable-igw` (tried with 1.13.0). Gateways do not discover such workers: a
server joins after its own start, and again after each start of the gateway.
"""

from contextlib import suppress
from urllib.parse import urlsplit

from orchestrator.core.console import info, note, warn
from orchestrator.core.errors import DeployError, StartError
from orchestrator.plan.plan import Plan
from orchestrator.runtimes.base import Status
from orchestrator.servers.group import Server, exit_problem
from orchestrator.servers.rollout.gateway_workers import saved_workers
from orchestrator.servers.servers import Servers


def require_gateway(servers: Servers, plan: Plan, name: str) -> None:
    """Raise StartError if the plan of the server `name` names a gateway that is not running or cannot route to it."""
    if plan.server.gateway is not None:
        _open_gateway(servers, plan, plan.server.gateway, name)


def _open_gateway(servers: Servers, plan: Plan, gateway: str, name: str) -> Server:
    """Return the running server whose gateway the server `name` can join. Raises StartError, HostError."""
    prefix = f"cannot join the gateway of `{gateway}`"
    if gateway == name:
        raise StartError(f"{prefix}: it is this server", hint="`--set server.gateway=null`")
    other = servers.open(gateway)
    gateway_plan = other.require_plan()
    if gateway_plan.gateway is None or not gateway_plan.gateway.one_node or gateway_plan.roles:
        hint = f"`deploy up {gateway_plan.profile} --name {gateway} --set replicas=2 --replace` starts one"
        raise StartError(f"{prefix}: it has no gateway of replicas on this host", hint=hint)
    if (plan.runtime in servers.explicit_hosts) != (other.runtime in servers.explicit_hosts):
        hint = f"`--set runtime={gateway_plan.runtime}`"
        raise StartError(f"{prefix}: the runtime `{plan.runtime}` is on another host", hint=hint)
    if (key := gateway_plan.server.api_key_env) != plan.server.api_key_env:
        hint = f"`--set server.api_key_env={key or 'null'}`"
        raise StartError(f"{prefix}: the gateway and this server use different API keys", hint=hint)
    if (ended := exit_problem(gateway, other.state)) is not None:
        raise StartError(f"{prefix}: {ended.message}", hint=ended.hint)
    own_ports = {plan.server.port, *(old.plan.server.port for old in servers.find(name) if old.plan)}
    workers = saved_workers(other).workers()
    models = {item.model for item in workers if item.ready and urlsplit(item.url).port not in own_ports}
    if plan.model.served_name in {gateway_plan.model.served_name, *models}:
        hint = "`--set model.served_name=NAME` sets another"
        raise StartError(f"{prefix}: the gateway already routes another model `{plan.model.served_name}`", hint=hint)
    return other


def join(server: Server, servers: Servers) -> None:
    """Register a verified server at the gateway that its plan names, unless it is already registered.

    Raises HostError, NotReadyError and StartError.
    """
    if (plan := server.plan) is None or (name := plan.server.gateway) is None:
        return
    gateway = _open_gateway(servers, plan, name, server.name)
    saved_workers(gateway, key=gateway.key).uncordon(plan.server.url, server)
    url = gateway.service_url or gateway.url  # a tunnel closes with this command
    info(f"the gateway of `{name}` routes the model `{plan.model.served_name}` at {url}")


def join_or_warn(server: Server, servers: Servers) -> None:
    """Register a server as `join` does; only warn of a failure, because the server works without the gateway."""
    try:
        join(server, servers)
    except DeployError as error:
        hint = error.hint or f"`deploy restart {server.name}` tries again"
        warn(f"no gateway routes to `{server.name}`: {error.message}", hint=hint)


def join_again(gateway: Server, servers: Servers) -> None:
    """Register the running servers whose plans name the gateway, which has just started."""
    for server in servers.find():
        plan = server.plan
        if plan is not None and plan.server.gateway == gateway.name and server.state.status is Status.RUNNING:
            join_or_warn(server, servers)


def leave(server: Server, servers: Servers, *, seconds: float) -> None:
    """Remove a server from the gateway that it joined, as soon as its requests have ended, or after `seconds`."""
    if (gateway := servers.gateway_of(server)) is None:
        return
    try:
        saved_workers(gateway, seconds=seconds).drain(server.require_plan().server.url, server)
    except DeployError as error:
        note(f"cannot remove `{server.name}` from the gateway of `{gateway.name}`: {error.message}")


def unrouted(server: Server, gateway: Server | None) -> str:
    """Return a message if the gateway that a server's plan names does not route to the server; otherwise "".

    `gateway` comes from `Servers.gateway_of`.
    """
    if (plan := server.plan) is None or plan.server.gateway is None:
        return ""
    if gateway is None:
        return f"the gateway of `{plan.server.gateway}` is not running"
    with suppress(DeployError):
        if saved_workers(gateway).is_routed(plan.server.url, server):
            return ""
    return f"the gateway of `{gateway.name}` does not route to it"
