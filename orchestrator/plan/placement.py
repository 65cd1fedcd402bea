"""Placement rules: the nodes, GPUs and ports of servers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import Problem
from orchestrator.engine.flag_checks import port_problem
from orchestrator.plan.replicas import gpus_per_replica, replica_ports, role_ports, server_count
from orchestrator.plan.roles import role_count, role_first_gpu, role_profiles
from orchestrator.plan.units import rank_port

if TYPE_CHECKING:  # an import at run time would be circular
    from orchestrator.plan.rules import RuleContext

_LAST_PORT: Final = 65535
_RANK_PORTS: Final = 6  # ports that sglang derives from the ranks' port with dp-attention (0.5.14, server_args.py:7339)


def nodes_share_the_ranks(context: "RuleContext") -> Iterator[Problem]:
    """Check that all nodes get the same number of ranks, and that the ranks can find each other.

    sglang assigns each node whole pipeline stages, or a part of one (0.5.16, entrypoints/engine.py:1402; 0.5.23: 2062).
    """
    layout, stages, nodes = context.profile.layout, context.serving.stages, context.profile.layout.nodes.value
    if nodes == 1:
        return
    location, tp, dp = context.location("layout", "nodes"), layout.tp.value, layout.dp.value
    if stages % nodes and (nodes % stages or tp % (nodes // stages)):
        product = f"tp {tp}" + (f" x pp {stages}" if stages > 1 else "")
        hint = "each node gets whole pipeline stages, or an equal part of one"
        yield Problem(f"{product} is not divisible by {nodes} nodes", location, hint)
    if dp > 1 and not layout.dp_attention.value:
        yield Problem(
            f"dp {dp} on {nodes} nodes: multi-node data parallel is not supported without dp attention (sglang 0.5.16, "
            "server_args.py:7602)",
            location,
            "`layout.dp_attention: true`; or `replicas`, each with its own nodes",
        )
    if name := context.serving.head_option:
        hint = "remove it: the address is that of the first node"
        yield Problem(f"`{name}` cannot be set for several nodes", context.location("flags", name), hint)
    profile = context.profile
    port = profile.server.port if profile.replicas == 1 else replica_ports(profile)[-1]
    if (last := rank_port(port) + _RANK_PORTS) > _LAST_PORT:
        yield Problem(
            f"`server.port` {profile.server.port} is too high: the ranks need ports up to {last}",
            context.location("server", "port"),
            "set a lower port",
        )


def runs_on_one_node(context: "RuleContext") -> Iterator[Problem]:
    """Check that the server and its replicas fit on one node, for a single-node runtime."""
    if (nodes := max_nodes(context)) > 1:
        yield Problem(
            f"the {context.profile.runtime} runtime starts a server on one node, not on {nodes}",
            context.location("layout", "nodes"),
            "`--set runtime=docker` with `--host` for each node, `runtime=slurm` or `runtime=kubernetes`",
        )
    else:
        yield from fits_node(context)


def replicas_run_on_one_node(context: "RuleContext") -> Iterator[Problem]:
    """Check that several servers fit on one node, for a runtime that supports only one multi-node server."""
    if max_nodes(context) == 1:
        yield from fits_node(context)
    elif (count := server_count(context.profile)) > 1:
        yield Problem(
            f"the {context.profile.runtime} runtime starts one server on several nodes, not {count}",
            context.location("layout", "nodes"),
            "`layout.nodes: 1`; or one server per pair of hosts, each with another `--name`",
        )


def max_nodes(context: "RuleContext") -> int:
    """Return the number of nodes of a server; with roles, of the largest."""
    return max(
        role_profile.layout.nodes.value for role_profile in (context.profile, *role_profiles(context.profile).values())
    )


def fits_node(context: "RuleContext") -> Iterator[Problem]:
    """Check that the replicas, or the roles' servers, fit on one node."""
    profile, facts = context.profile, context.serving
    roles = [(role_count(profile, name), name, role_profile) for name, role_profile in role_profiles(profile).items()]
    count, gpus = profile.replicas, gpus_per_replica(profile)
    free = facts.first_gpu
    for number, name, role in roles or [(count, "", profile)]:
        first = role_first_gpu(profile, name) if name else None
        free = max(free, (free if first is None else first) + number * gpus_per_replica(role) * facts.gpu_step)
    needed = free - facts.gpu_step + 1
    if (count > 1 or roles) and profile.hardware.vendor != "cpu" and needed > profile.hardware.gpus:
        shares = " and ".join(f"{number} {name} of {gpus_per_replica(role)}" for number, name, role in roles)
        yield Problem(
            f"{shares or f'{count} replicas of {gpus}'} GPUs need {needed} GPUs; the node has {profile.hardware.gpus}",
            context.location("layout" if roles else "replicas"),
            "lower `layout.tp`, or use several nodes: `--runtime slurm` or `kubernetes`"
            if roles
            else "lower `replicas`, or `layout.tp`",
        )


def replicas_join_no_gateway(context: "RuleContext") -> Iterator[Problem]:
    """Check that replicas do not join another gateway, because they have their own."""
    if server_count(context.profile) > 1:
        yield from joins_no_gateway(context)


def joins_no_gateway(context: "RuleContext") -> Iterator[Problem]:
    """Reject `server.gateway`, for a runtime whose servers another server's gateway cannot reach."""
    if context.profile.server.gateway is not None:
        yield Problem(
            "only a single `docker` or `process` server can join another server's gateway",
            context.location("server", "gateway"),
            "`--set server.gateway=null`",
        )


def replicas_have_ports(context: "RuleContext") -> Iterator[Problem]:
    """Check that each replica has its own ports; an option that sets a port would apply to all replicas."""
    profile, count = context.profile, server_count(context.profile)
    if count == 1:
        return
    for name in (port.option for port in context.serving.ports):
        hint = "remove it: sglang then uses a free port"
        yield Problem(f"`--{name}` sets one port for all replicas", context.location("flags", name), hint)
    last = max(replica_ports(profile) + role_ports(profile))
    if last > _LAST_PORT or port_problem(last, profile.engine.version):
        yield Problem(
            f"`server.port` {profile.server.port} is too high: the last of {count} replicas needs {last}",
            context.location("server", "port"),
            "set a lower port",
        )
