"""Separate prefill and decode servers: the profile and plan of each role, and the rules that connect them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import Problem
from orchestrator.core.origin import Origin
from orchestrator.engine.disaggregation import (
    BACKEND,
    DECODE,
    MODE,
    PREFILL,
    PREFIX_AFFINE,
    RDMA_ONLY,
    missing_decode_cache,
    sets_first_gpu,
)
from orchestrator.engine.gateway import DEFAULTS
from orchestrator.engine.options import Meaning
from orchestrator.plan.plan import EnvVar, Flag, Plan, RolePlan
from orchestrator.plan.replicas import role_ports
from orchestrator.plan.serving import profile_serving
from orchestrator.plan.units import Role

if TYPE_CHECKING:
    from orchestrator.plan.rules import RuleContext
    from orchestrator.profiles.schema import Profile

_SPREAD: Final = ("tp", "dp", "ep", "dp_attention", "nodes")


def role_profiles(profile: "Profile") -> "dict[str, Profile]":
    """Return the profile of each role, with its own layout and flags; empty without roles."""
    profile_layout = profile.layout
    profiles: dict[str, Profile] = {}
    for name, section in ((PREFILL, profile_layout.prefill), (DECODE, profile_layout.decode)):
        if section is not None:
            spread = {key: value for key in _SPREAD if (value := getattr(section, key)) is not None}
            layout = profile_layout.model_copy(update={**spread, "prefill": None, "decode": None, "transfer": None})
            settings = {**profile.flags, **section.flags}
            flags = {name: setting for name, setting in settings.items() if setting is not None}
            profiles[name] = profile.model_copy(update={"layout": layout, "replicas": 1, "flags": flags})
    return profiles


def role_count(profile: "Profile", name: str) -> int:
    """Return the number of servers of a role."""
    section = {PREFILL: profile.layout.prefill, DECODE: profile.layout.decode}[name]
    return section.replicas if section else 0


def role_first_gpu(profile: "Profile", name: str) -> int | None:
    """Return the first GPU set by a role's flags; None if they set none. Two roles may share a GPU."""
    section = {PREFILL: profile.layout.prefill, DECODE: profile.layout.decode}[name]
    own = {flag for flag, setting in section.flags.items() if setting is not None} if section else set()
    return profile_serving(role_profiles(profile)[name]).first_gpu if sets_first_gpu(own) else None


def role_plans(profile: "Profile", plans: Mapping[str, Plan]) -> Iterator[RolePlan]:
    """Yield the plan of each role; `plans` has one server's plan for each role."""
    for name, plan in plans.items():
        ports = role_ports(profile) if name == PREFILL else ()
        count = role_count(profile, name)
        yield RolePlan(
            role=Role(name),
            count=count,
            layout=plan.layout,
            flags=plan.flags,
            bootstrap_ports=ports,
            host_cache_bytes=plan.host_cache_bytes,
            first_gpu=role_first_gpu(profile, name),
        )


def as_role(plan: Plan, name: str, profile: "Profile", *, env: tuple[EnvVar, ...]) -> Plan:
    """Return the plan of one server with its role's options and the environment of both roles."""
    transfer = profile.layout.transfer
    if transfer is None:  # rejected by `roles_agree`
        return plan
    source = f"`layout.{name}`"
    flags = {flag.name: flag for flag in plan.flags}
    for option, value in ((MODE, name), (BACKEND, transfer.backend)):
        flags[option] = Flag(name=option, values=(value,), origin=Origin.INFERRED, source=source)
    return replace(plan, flags=tuple(flags[key] for key in sorted(flags)), env=env)


def transfer_label(profile: "Profile") -> str:
    """Describe the transfer of the KV cache: `mooncake over tcp`; "" without roles."""
    transfer = profile.layout.transfer
    return f"{transfer.backend} over {transfer.network}" if transfer and role_profiles(profile) else ""


def roles_agree(context: "RuleContext") -> Iterator[Problem]:
    """Check that both roles exist and agree; otherwise requests hang or get wrong answers without an error.

    Sources: SemiAnalysisAI/InferenceX `amd_utils` (MTP, context), ROCm/ATOM recipes/DeepSeek-V4-Agentic-PD-Max.md
    (prefixes), sglang 0.5.14 server_args.py (no prefix cache in a decode server).
    """
    profile, layout = context.profile, context.profile.layout
    roles = role_profiles(profile)
    if not roles:
        if layout.transfer is not None:
            yield Problem("`layout.transfer` needs `layout.prefill` and `layout.decode`", context.location("layout"))
        return
    for missing, other in ((PREFILL, DECODE), (DECODE, PREFILL)):
        if missing not in roles:
            hint = f"add `layout.{missing}: {{}}`, or remove `layout.{other}`"
            yield Problem(
                f"`layout.{other}` cannot serve without `layout.{missing}`", context.location("layout", other), hint
            )
            return
    if layout.transfer is None:
        hint = "`layout.transfer: {backend: mooncake, network: tcp}`, or the NICs: ainic, thor2, connectx"
        yield Problem(
            "`layout.transfer` is missing: the network and backend that transfer the KV cache",
            context.location("layout"),
            hint,
        )
    elif layout.transfer.backend == RDMA_ONLY and layout.transfer.network == "tcp":
        hint = (
            "the NICs as `network`: ainic, thor2, connectx; or `backend: mooncake`, on AMD with `env.MC_DISABLE_HIP: 1`"
        )
        yield Problem(f"{RDMA_ONLY} cannot send over TCP, only by RDMA", context.location("layout", "transfer"), hint)
    if profile.replicas > 1:
        hint = "set `layout.prefill.replicas` and `layout.decode.replicas`"
        yield Problem(
            "`replicas` cannot be combined with prefill and decode servers", context.location("replicas"), hint
        )
    yield from _same_drafts_and_context(context, roles)
    yield from _prefixes_find_their_server(context)
    decode = roles[DECODE]
    if option := missing_decode_cache(decode.flags, context.table.flags):
        yield Problem(
            "a decode server has no prefix cache unless the profile sets one",
            context.location("layout", DECODE),
            f"set `layout.decode.flags.{option}` to true, or to false if it needs none",
        )


def _same_drafts_and_context(context: "RuleContext", roles: "Mapping[str, Profile]") -> Iterator[Problem]:
    for (first, first_profile), (second, second_profile) in pairwise(roles.items()):
        facts, peer = profile_serving(first_profile), profile_serving(second_profile)
        if facts.drafts != peer.drafts:
            only = first if facts.drafts else second
            state = "differs between prefill and decode" if facts.drafts and peer.drafts else f"is set for {only} only"
            hint = "set the same `speculative-…` flags for both, in `flags` of the profile"
            yield Problem(f"speculative decoding {state}", context.location("layout", only), hint)
        if facts.context != peer.context:
            yield Problem(
                f"the context is {facts.context} tokens for {first} and {peer.context} for {second}: requests hang",
                context.location("layout", second),
                f"set `{Meaning.CONTEXT}` once, in `flags` of the profile",
            )


def _prefixes_find_their_server(context: "RuleContext") -> Iterator[Problem]:
    prefill, options = context.profile.layout.prefill, context.profile.gateway
    if prefill is None or prefill.replicas == 1:
        return
    policy = options.get(f"{PREFILL}-policy") or options.get("policy")
    if (value := policy.value if policy else DEFAULTS["policy"][0]) not in PREFIX_AFFINE:
        key = f"{PREFILL}-policy" if f"{PREFILL}-policy" in options else "policy"
        yield Problem(
            f"policy `{value}` sends a prefix to any of {prefill.replicas} prefill servers, which compute it again",
            context.location("gateway", key),
            f"set `gateway.{key}` to {', '.join(f'`{item}`' for item in PREFIX_AFFINE)}",
        )
