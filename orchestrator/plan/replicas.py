"""Several equal servers behind SGLang's gateway: what is planned for the gateway, and the plan of each server.

A replica is planned as a server of its own, by the same class: whatever starts, awaits and proves one server does so
with each of several.
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

if TYPE_CHECKING:  # it takes long to import, and a command over servers that run has no use for it
    from orchestrator.profiles.schema import Profile

LOOPBACK: Final = "127.0.0.1"
_APART: Final = 8  # ports: with dp-attention sglang derives seven from its own (0.5.14, server_args.py:7302-7334)


def planned_gateway(profile: "Profile", *, one_node: bool = True, same_port: bool = False) -> Gateway | None:
    """The gateway of a profile with several replicas; what it does not set is said all the same, with its reason."""
    if profile.replicas == 1:
        return None
    defaults = {
        name: Flag(name=name, values=(value,), origin=Origin.INFERRED, source=reason)
        for name, (value, reason) in DEFAULTS.items()
    }
    own = {
        name: Flag(name=name, values=flag_words(setting.value), origin=setting.origin, source=setting.source)
        for name, setting in profile.gateway.items()
    }
    off = {name for name, setting in profile.gateway.items() if setting.value is False}
    return Gateway(
        version=VERSION,
        requirements=REQUIREMENTS,
        options=tuple(flag for name, flag in sorted({**defaults, **own}.items()) if name not in off),
        ports=(profile.server.port,) * profile.replicas if same_port else replica_ports(profile),
        metrics_port=profile.server.port + 1,
        one_node=one_node,
    )


def replica_ports(profile: "Profile") -> tuple[int, ...]:
    """The ports of the replicas, from that of the gateway on."""
    return tuple(profile.server.port + _APART * number for number in range(1, profile.replicas + 1))


def gpus_per_replica(profile: "Profile") -> int:
    """GPUs that one replica takes, with its stages of a pipeline."""
    layout = profile.layout
    ranks = layout.tp.value * (1 if layout.dp_attention.value else layout.dp.value)
    return ranks * profile_serving(profile).stages


def replica_plans(plan: Plan) -> tuple[Plan, ...]:
    """The plan of each replica, which on a shared node listens there alone, and asks for the clients' key."""
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
    """Why servers of one plan cannot give way to those of another one after the other; "" where they can.

    What they have in common has to stay: their gateway, and the GPUs of each.
    """
    if old.replicas != new.replicas:
        return f"{old.replicas} become {new.replicas}"
    common = {
        "runtime": (old.runtime, new.runtime),
        "server": (old.server, new.server),
        "gateway": (old.gateway, new.gateway),
        "the served name": (old.model.served_name, new.model.served_name),
        "their place in the cluster": (_in_cluster(old), _in_cluster(new)),
    }
    for what, (before, after) in common.items():
        if before != after:
            return f"they share {what if ' ' in what else f'`{what}`'}, which changes"
    if old.gpus != new.gpus:
        return f"their GPUs change, from {old.layout.gpus} each to {new.layout.gpus}"
    return ""


def _in_cluster(plan: Plan) -> tuple[object, ...]:
    """Where a gateway looks for its servers, and the Secret that they share; or where it runs itself."""
    found, job = plan.kubernetes, plan.slurm
    if job is not None:
        return (job.gateway_partition,)
    return (found.context, found.namespace, found.api_key_secret) if found else ()


def _flags_of_replica(plan: Plan, index: int) -> Iterator[Flag]:
    """The flags, with the first of the replica's own GPUs."""
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
