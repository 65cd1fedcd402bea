"""Servers behind the gateway of another server: one URL, several models.

`server.gateway` in a profile names the other server. smg registers a worker with its served name and routes each
request by its `model`, without its option `--enable-igw` (tried with 1.13.0). No gateway finds such a worker by itself:
a server that starts joins, and a gateway that starts is joined again.
"""

from contextlib import suppress
from pathlib import Path

from orchestrator.core.console import note, say, warn
from orchestrator.core.errors import DeployError, StartError
from orchestrator.plan.plan import Plan
from orchestrator.runtimes.base import Status
from orchestrator.servers.group import JOINED_FILE, RunningServer
from orchestrator.servers.rollout.gateway_workers import GatewayWorkers, saved_workers
from orchestrator.servers.servers import Servers


def require_gateway(servers: Servers, plan: Plan) -> RunningServer | None:
    """Return the server whose gateway the server of a plan joins; None if it joins none.

    Raises StartError if there is none, or if it cannot route to this server.
    """
    if (name := plan.server.gateway) is None:
        return None
    what = f"cannot join the gateway of `{name}`"
    if plan.gateway is not None or plan.slurm is not None or plan.kubernetes is not None:
        reason = "only a single server of the runtimes `docker` and `process` can"
        raise StartError(f"{what}: {reason}", hint="remove `server.gateway`")
    other = servers.open(name)
    theirs = other.require_plan()
    if theirs.gateway is None or not theirs.gateway.one_node or theirs.roles:
        hint = f"`deploy up {theirs.profile} --name {name} --set replicas=2 --replace` starts one"
        raise StartError(f"{what}: it has no gateway of replicas on this host", hint=hint)
    if (key := theirs.server.api_key_env) != plan.server.api_key_env:
        hint = f"`--set server.api_key_env={key or 'null'}`"
        raise StartError(f"{what}: it forwards its clients' API key, and this server has another", hint=hint)
    if theirs.model.served_name == plan.model.served_name:
        hint = "`--set model.served_name=NAME` sets another"
        raise StartError(f"{what}: both serve the model `{plan.model.served_name}`", hint=hint)
    return other.found


def join(server: RunningServer, gateway: RunningServer, *, servers: Servers) -> None:
    """Register a verified server at the gateway of another one. Raises HostError, NotReadyError and StartError."""
    plan = server.require_plan()
    workers = saved_workers(gateway.url, Path(gateway.log_dir), key=servers.server(gateway).key)
    workers.uncordon(plan.server.url, server)
    server.run.save_state(JOINED_FILE, {"url": gateway.url, "log_dir": gateway.log_dir, "name": gateway.name})
    say(f"the gateway of `{gateway.name}` routes the model `{plan.model.served_name}` at {gateway.url}")


def join_again(gateway: RunningServer, servers: Servers) -> None:
    """Register the running servers that had joined the gateway of this name before it started."""
    for server in servers.find():
        plan = server.plan
        if plan is None or plan.server.gateway != gateway.name or server.state.status is not Status.RUNNING:
            continue
        try:
            join(server, gateway, servers=servers)
        except DeployError as error:
            hint = f"`deploy restart {server.name}` tries again"
            warn(f"the gateway of `{gateway.name}` does not route to `{server.name}`: {error.message}", hint=hint)


def leave(server: RunningServer) -> None:
    """Remove a server from the gateway that it joined, when its requests have ended."""
    if (found := _joined(server)) is None:
        return
    workers, name = found
    try:
        workers.drain(server.require_plan().server.url, server)
    except DeployError as error:
        note(f"cannot remove `{server.name}` from the gateway of `{name}`: {error.message}")


def unrouted(server: RunningServer) -> str:
    """Return that the gateway which the server joined does not route to it; "" if it does, or there is none."""
    if not server.joined_url:
        return ""
    with suppress(DeployError):
        found = _joined(server)
        if found is not None and found[0].is_routed(server.require_plan().server.url, server):
            return ""
    return f"the gateway of `{server.run.read(JOINED_FILE).get('name')}` does not route to it"


def _joined(server: RunningServer) -> tuple[GatewayWorkers, str] | None:
    """Return the workers of the gateway that the server joined, and the gateway's name; None if there is none."""
    if not (url := server.joined_url):
        return None
    record = server.run.read(JOINED_FILE)
    with suppress(DeployError):
        return saved_workers(url, Path(str(record.get("log_dir"))), key=None), str(record.get("name"))
    return None
