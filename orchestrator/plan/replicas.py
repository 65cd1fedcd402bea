"""The plans of replicas and of the gateway in front of them.

The plan of a replica has the same class as the plan of a server, so the same code starts and verifies both.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.core.origin import Origin
from orchestrator.engine.flags import flag_words
from orchestrator.engine.gateway import DEFAULTS, REQUIREMENTS, VERSION
from orchestrator.engine.options import Meaning, flag_for
from orchestrator.plan.plan import Flag, Gateway, Plan
from orchestrator.plan.serving import profile_serving

if TYPE_CHECKING:  # slow to import, and commands for running servers do not need it
    from orchestrator.profiles.schema import Profile

LOOPBACK: Final = "127.0.0.1"
_PORT_STEP: Final = (
    8  # with dp-attention sglang derives seven more ports from its own (0.5.14, server_args.py:7302-7334)
)


def planned_gateway(profile: "Profile", *, one_node: bool = True, same_port: bool = False) -> Gateway | None:
    """Plan the gateway of a profile with several replicas; defaults become explicit options with their reason."""
    if profile.replicas == 1:
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
        ports=(profile.server.port,) * profile.replicas if same_port else replica_ports(profile),
        metrics_port=profile.server.port + 1,
        one_node=one_node,
    )


def replica_ports(profile: "Profile") -> tuple[int, ...]:
    """Return the ports of the replicas, which follow the gateway's."""
    return tuple(profile.server.port + _PORT_STEP * number for number in range(1, profile.replicas + 1))


def gpus_per_replica(profile: "Profile") -> int:
    """Return the GPUs of one replica on each of its nodes, including its pipeline stages."""
    layout = profile.layout
    ranks = layout.tp.value * (1 if layout.dp_attention.value else layout.dp.value)
    return ranks * profile_serving(profile).stages // layout.nodes.value


def replica_plans(plan: Plan) -> tuple[Plan, ...]:
    """Return the plan of each replica; it listens on loopback, with the same API key as the gateway."""
    if plan.gateway is None:
        return (plan,)
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

    The gateway and the GPUs of each replica must stay the same.
    """
    if old.replicas != new.replicas:
        return f"`replicas` changes from {old.replicas} to {new.replicas}"
    common = {
        "`runtime`": (old.runtime, new.runtime),
        "`server`": (old.server, new.server),
        "`gateway`": (old.gateway, new.gateway),
        "`served_name`": (old.model.served_name, new.model.served_name),
        "the location in the cluster": (_cluster_location(old), _cluster_location(new)),
    }
    for name, (before, after) in common.items():
        if before != after:
            return f"{name} changes, which the replicas share"
    if old.gpus != new.gpus:
        return f"the GPUs of a replica change from {old.layout.gpus} to {new.layout.gpus}"
    return ""


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
    source = f"`replicas`: the GPUs of replica {index + 1} of {plan.replicas}"
    name, value = flag_for(Meaning.FIRST_GPU, first)
    base = Flag(name=name, values=flag_words(value), origin=Origin.INFERRED, source=source)
    flags = {flag.name: flag for flag in plan.flags} | {name: base}
    yield from (flags[name] for name in sorted(flags))
