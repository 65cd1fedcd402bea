"""The plans of replicas and of the gateway in front of them.

Plans of replicas and servers have the same class, so the same code starts and verifies both.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.core.origin import Origin
from orchestrator.engine.disaggregation import BOOTSTRAP_PORT
from orchestrator.engine.flags import FlagValue, flag_words
from orchestrator.engine.gateway import DEFAULTS, REQUIREMENTS, VERSION
from orchestrator.engine.options import Meaning
from orchestrator.plan.plan import Flag, Gateway, Plan, RolePlan
from orchestrator.plan.serving import profile_serving

if TYPE_CHECKING:  # slow to import, and commands for running servers do not need it
    from orchestrator.profiles.schema import Profile

LOOPBACK: Final = "127.0.0.1"
_PORT_STEP: Final = (
    8  # with dp-attention sglang derives seven more ports from its own (0.5.14, server_args.py:7302-7334)
)


def planned_gateway(profile: "Profile", *, one_node: bool, same_port: bool) -> Gateway | None:
    """Plan the gateway of a profile with several replicas; defaults become explicit options with reasons."""
    count = server_count(profile)
    if count == 1:
        return None
    defaults = {
        name: Flag(name=name, values=(value,), origin=Origin.INFERRED, source=reason)
        for name, (value, reason) in DEFAULTS.items()
    }
    from_profile = {
        name: Flag(name=name, values=flag_words(setting.value), origin=setting.origin, source=setting.source)
        for name, setting in profile.gateway.items()
    }
    off = {name for name, setting in profile.gateway.items() if setting.value is False}
    return Gateway(
        version=VERSION,
        requirements=REQUIREMENTS,
        options=tuple(flag for name, flag in sorted({**defaults, **from_profile}.items()) if name not in off),
        ports=(profile.server.port,) * count if same_port else replica_ports(profile),
        metrics_port=profile.server.port + 1,
        one_node=one_node,
    )


def server_count(profile: "Profile") -> int:
    """Return the number of servers behind the gateway."""
    roles = [role for role in (profile.layout.prefill, profile.layout.decode) if role is not None]
    return sum(role.replicas for role in roles) if roles else profile.replicas


def replica_ports(profile: "Profile") -> tuple[int, ...]:
    """Return the ports of the replicas, or of the servers of each role; adding a server keeps the other ports.

    They follow the gateway's port: one per replica, or in turn one per prefill server, decode server and bootstrap.
    """
    roles = (profile.layout.prefill, profile.layout.decode)
    if roles == (None, None):
        return _ports(profile, profile.replicas)
    return tuple(
        port
        for turn, role in enumerate(roles)
        if role is not None
        for port in _ports(profile, role.replicas, turn=turn, turns=3)
    )


def role_ports(profile: "Profile") -> tuple[int, ...]:
    """Return the bootstrap port of each prefill server. See `replica_ports`."""
    prefill = profile.layout.prefill
    return _ports(profile, prefill.replicas, turn=2, turns=3) if prefill else ()


def _ports(profile: "Profile", count: int, *, turn: int = 0, turns: int = 1) -> tuple[int, ...]:
    first = profile.server.port + _PORT_STEP
    return tuple(first + _PORT_STEP * (turns * index + turn) for index in range(count))


def gpus_per_replica(profile: "Profile") -> int:
    """Return the number of GPUs of one replica on each node, including its pipeline stages."""
    layout = profile.layout
    ranks = layout.tp.value * (1 if layout.dp_attention.value else layout.dp.value)
    return ranks * profile_serving(profile).stages // layout.nodes.value


def replica_plans(plan: Plan) -> tuple[Plan, ...]:
    """Return the plan of each replica, which listens on loopback with the gateway's API key."""
    if plan.gateway is None:
        return (plan,)
    if plan.roles:
        return tuple(_role_plans(plan, plan.gateway))
    return tuple(
        replace(
            plan,
            replicas=1,
            gateway=None,
            server=replace(plan.server, host=LOOPBACK, port=port),
            flags=tuple(_flags_of_replica(plan, index)),
        )
        for index, port in enumerate(plan.gateway.ports)
    )


def rolling_update_blocker(old: Plan, new: Plan) -> str:
    """Return why a rolling update from one plan to another is impossible; "" if it is possible.

    The gateway and the GPUs of each replica must stay the same; replicas may be added and removed. With prefill and
    decode servers, only the numbers of servers may change.
    """
    if old.roles or new.roles:
        return _role_change(old, new)
    if new.gateway is None:
        return f"`replicas` changes from {old.replicas} to 1, and a single replica has no gateway"
    common = {
        "`runtime`": (old.runtime, new.runtime),
        "`server`": (old.server, new.server),
        "`gateway`": (old.gateway and replace(old.gateway, ports=()), replace(new.gateway, ports=())),
        "`served_name`": (old.model.served_name, new.model.served_name),
        "the location in the cluster": (_cluster_location(old), _cluster_location(new)),
    }
    for name, (before, after) in common.items():
        if before != after:
            return f"{name} changes, which the replicas share"
    if old.servers["replica-1"].gpus != new.servers["replica-1"].gpus:
        return f"the GPUs of a replica change from {old.layout.gpus} to {new.layout.gpus}"
    return ""


def _role_change(old: Plan, new: Plan) -> str:
    """Return the change besides the numbers of prefill and decode servers; "" if there is none."""
    if _without_counts(old).digest != _without_counts(new).digest:
        return "prefill and decode servers with different plans cannot work together; only their number may change"
    after = new.servers
    for name, server in old.servers.items():
        if name in after and server.digest != after[name].digest:
            return f"{name.replace('-', ' ')} would move to other GPUs"
    return ""


def _without_counts(plan: Plan) -> Plan:
    roles = tuple(replace(role, count=0, bootstrap_ports=()) for role in plan.roles)
    return replace(plan, replicas=0, roles=roles, gateway=plan.gateway and replace(plan.gateway, ports=()))


def _cluster_location(plan: Plan) -> tuple[object, ...]:
    """Return the values that a gateway and its replicas share in a cluster."""
    if plan.slurm is not None:
        return (plan.slurm.gateway_partition,)
    section = plan.kubernetes
    return (section.context, section.namespace, section.api_key_secret) if section else ()


def _flags_of_replica(plan: Plan, index: int) -> Iterator[Flag]:
    """Yield the flags of a replica, including the index of its first GPU."""
    gpus = plan.gpus
    if not gpus or index == 0 or plan.gateway is None or not plan.gateway.one_node:
        yield from plan.flags
        return
    first = gpus[index * len(gpus) // plan.replicas]
    source = f"`replicas`: the GPUs of replica {index + 1}"
    yield from _with_flag(plan.flags, (Meaning.FIRST_GPU.value, first), source)


def _with_flag(flags: Iterable[Flag], flag: tuple[str, FlagValue], source: str) -> Iterator[Flag]:
    """Yield the flags with `flag` added or replaced, sorted."""
    name, value = flag
    added = Flag(name=name, values=flag_words(value), origin=Origin.INFERRED, source=source)
    by_name = {flag.name: flag for flag in flags} | {name: added}
    yield from (by_name[name] for name in sorted(by_name))


def _role_plans(plan: Plan, gateway: Gateway) -> Iterator[Plan]:
    """Yield the plan of each prefill server, then of each decode server.

    On one node each has its own GPUs, unless its role's flags set the first GPU. The roles alternate, so that a second
    prefill or decode server does not move the first server of the other role.
    """
    servers = [(role, number) for role in plan.roles for number in range(role.count)]
    ports = dict(zip(servers, gateway.ports, strict=True))
    own = {role.role: role.first_gpu for role in plan.roles if role.first_gpu is not None}  # of the next server
    made, free = dict[tuple[RolePlan, int], Plan](), plan.serving.first_gpu
    for role, number in servers if own else sorted(servers, key=lambda server: server[1]):
        flags: Iterable[Flag] = role.flags
        if role.bootstrap_ports:
            source = "`layout.prefill`: decode servers find this one here"
            flags = _with_flag(flags, (BOOTSTRAP_PORT, role.bootstrap_ports[number]), source)
        item = replace(
            plan,
            replicas=1,
            gateway=None,
            server=replace(plan.server, host=LOOPBACK, port=ports[role, number]),
            role=role.role,
            roles=(),
            layout=role.layout,
            flags=tuple(flags),
            host_cache_bytes=role.host_cache_bytes,
        )
        first = own.get(role.role, free)
        if item.gpus and gateway.one_node and first != item.serving.first_gpu:
            source = f"`layout`: the GPUs of {role.role} {number + 1}"
            item = replace(item, flags=tuple(_with_flag(item.flags, (Meaning.FIRST_GPU.value, first), source)))
        made[role, number] = item
        own |= {role.role: item.gpus.stop} if role.role in own else {}
        free = max(free, item.gpus.stop)
    yield from (made[server] for server in servers)
