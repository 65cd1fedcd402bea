"""Building a plan from a valid profile: check all rules, then choose all open values."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from orchestrator.core.errors import Problem, ProfileError, truncate_problems
from orchestrator.engine.flags import flag_words
from orchestrator.plan.capacity import capacity_of, capacity_warnings
from orchestrator.plan.facts import Facts
from orchestrator.plan.fusion import with_fusion_flag
from orchestrator.plan.known_issues import KnownIssue, blocking_issues, matching_issues
from orchestrator.plan.networks import network_env, network_warnings
from orchestrator.plan.patches import patch_env, profile_patches
from orchestrator.plan.plan import (
    ContainerRequirements,
    Engine,
    EnvVar,
    Flag,
    Hardware,
    HttpEndpoint,
    Layout,
    Model,
    ModelSource,
    Moe,
    Plan,
    PlanWarning,
    SmokeQuestion,
    Ulimit,
)
from orchestrator.plan.replicas import LOOPBACK, planned_gateway, server_count
from orchestrator.plan.roles import as_role, role_plans, transfer_label
from orchestrator.plan.rules import PlanningContext, RuleContext, plan_problems, role_contexts
from orchestrator.plan.serving import profile_serving
from orchestrator.profiles.layers import MergedProfile
from orchestrator.profiles.schema import ContainerSection, Profile

# Tokens: sglang's largest default chunk; its default depends on the GPU's memory (0.5.14, server_args.py:3201).
_MAX_DEFAULT_CHUNK: Final = 16384
_MAX_TOKENS_PER_WORD: Final = 3  # English is below 1.5, the vocabulary of the generated model at 2.2


def build_plan(name: str, *, profile: Profile, merged: MergedProfile, context: PlanningContext, facts: Facts) -> Plan:
    """Build the plan of profile `name`. Pure.

    Raises ProfileError with every violated rule.
    """
    rule_context = RuleContext(**vars(context), profile=profile, merged=merged, image=facts.image)
    _require_no_problems(name, plan_problems(rule_context))
    plan = _assemble(name, profile=profile, merged=merged, context=context, facts=facts)
    servers, by_role = role_contexts(rule_context), {}
    for role, of_role in ((server.role, server.profile) for server in servers if server.role):
        assembled = _assemble(name, profile=of_role, merged=merged, context=context, facts=facts)
        by_role[role] = as_role(assembled, role, profile, env=plan.env)
    plan = replace(plan, roles=tuple(role_plans(profile, by_role)), transfer=transfer_label(profile))
    plans, accepted = tuple(by_role.values()) or (plan,), profile.allow_known_issues
    blocked = [
        problem
        for plan in plans
        for problem in blocking_issues(context.known_issues.blocked, plan, allowed=accepted, location=merged.location)
    ]
    _require_no_problems(name, blocked)
    reports = context.known_issues

    def issues(entries: Sequence[KnownIssue]) -> tuple[PlanWarning, ...]:
        return tuple(dict.fromkeys(issue for plan in plans for issue in matching_issues(entries, plan)))

    return replace(
        plan,
        warnings=(
            *issues(reports.warnings),
            *(warning for server in servers for warning in capacity_warnings(server.capacity, server.role)),
            *network_warnings(profile, context.networks),
        ),
        wrong_answers=issues(reports.wrong_answers),
        nondeterministic=issues(reports.nondeterministic),
    )


def _require_no_problems(name: str, problems: Iterable[Problem]) -> None:
    if shown := truncate_problems(problems):
        raise ProfileError(f"cannot plan profile `{name}`", problems=shown)


def _assemble(name: str, *, profile: Profile, merged: MergedProfile, context: PlanningContext, facts: Facts) -> Plan:
    uses = profile_patches(profile, context.ledger, facts.inputs)
    settings = context.settings(profile)
    plan = Plan(
        profile=name,
        description=profile.description,
        runtime=profile.runtime,
        hardware=_hardware(profile, merged),
        model=planned_model(profile, merged),
        engine=Engine(name=merged.names["engine"], **profile.engine.model_dump(exclude={"source"})),
        layout=Layout(
            tp=profile.layout.tp.value,
            dp=profile.layout.dp.value,
            ep=profile.layout.ep.value,
            dp_attention=profile.layout.dp_attention.value,
            nodes=profile.layout.nodes.value,
            dp_option=context.table.dp_option(attention=profile.layout.dp_attention.value),
        ),
        replicas=server_count(profile),
        gateway=planned_gateway(profile, one_node=settings.one_node, same_port=settings.same_port),
        server=_server(profile),
        flags=_flags(profile),
        env=_env(profile, (*patch_env(context.ledger, uses), *network_env(profile, context.networks))),
        patches=uses,
        warnings=(),  # matched against the finished plan below
        wrong_answers=(),
        nondeterministic=(),
        timeouts=profile.timeouts,
        restart_policy=profile.restart_policy,
        soak=profile.soak,
        kubernetes=settings.kubernetes,
        slurm=settings.slurm,
        prebuilt_image=facts.image,
        host_cache_bytes=host.bytes if (host := capacity_of(profile, profile_serving(profile), None).host) else 0,
    )
    return with_fusion_flag(plan, facts.experts)


def _flags(profile: Profile) -> tuple[Flag, ...]:
    settings = {name: setting for name, setting in profile.flags.items() if setting.value is not False}
    return tuple(
        Flag(name=name, values=flag_words(setting.value), origin=setting.origin, source=setting.source)
        for name, setting in sorted(settings.items())
    )


def _server(profile: Profile) -> HttpEndpoint:
    """Plan the HTTP endpoint; `localhost` becomes 127.0.0.1, because docker publishes only addresses."""
    server = profile.server.model_dump()
    return HttpEndpoint(**{**server, "host": LOOPBACK if server["host"] == "localhost" else server["host"]})


def _env(profile: Profile, needed: Iterable[EnvVar]) -> tuple[EnvVar, ...]:
    """Merge the variables of patches and networks with those of the profile, which take precedence."""
    variables = {variable.name: variable for variable in needed}
    for name, setting in profile.env.items():
        value = str(setting.value).lower() if isinstance(setting.value, bool) else str(setting.value)
        variables[name] = EnvVar(name=name, value=value, origin=setting.origin, source=setting.source)
    return tuple(variables[name] for name in sorted(variables))


def _hardware(profile: Profile, merged: MergedProfile) -> Hardware:
    hardware = profile.hardware
    return Hardware(
        name=merged.names["hardware"],
        vendor=hardware.vendor,
        arch=hardware.arch,
        gpu_product=hardware.gpu_product,
        gpus=hardware.gpus,
        compute_units=hardware.compute_units,
        vram_bytes=hardware.vram,
        container=_container(hardware.container),
    )


def _container(container: ContainerSection) -> ContainerRequirements:
    limits = sorted(container.ulimits.items())
    return ContainerRequirements(
        devices=tuple(container.devices),
        all_gpus=container.all_gpus,
        groups=tuple(container.groups),
        ipc=container.ipc,
        shm_bytes=container.shm_size,
        ulimits=tuple(Ulimit(name=name, soft=limit.soft, hard=limit.hard) for name, limit in limits),
        security_opt=tuple(container.security_opt),
        cap_add=tuple(container.cap_add),
    )


def planned_model(profile: Profile, merged: MergedProfile) -> Model:
    """Plan the model from the profile alone."""
    model, drafts = profile.model, profile_serving(profile).drafts
    return Model(
        name=merged.names["model"],
        served_name=model.served_name,
        checkpoint=ModelSource(**model.checkpoint.model_dump()),
        weight_bytes=model.weights_size,
        quantization=model.quantization,
        context_length=model.context_length,
        layers=model.layers,
        attention_heads=model.attention_heads,
        kv_heads=model.kv_heads,
        sparse_attention=model.sparse_attention,
        mtp_layer=model.mtp_layer,
        gated=model.gated,
        moe=Moe(**model.moe.model_dump()) if model.moe else None,
        questions=tuple(_questions(profile)),
        accept_length=model.accept_lengths.get(drafts.steps) if drafts else None,
        architecture=model.architecture,
    )


def _questions(profile: Profile) -> Iterator[SmokeQuestion]:
    """Yield the questions that fit into the context and the cache, with the length of their filler in words.

    A word is at least one token, so a filler of as many words as a prefill chunk has tokens exceeds one chunk.
    """
    facts = profile_serving(profile)
    max_tokens = min(facts.context, facts.cache_tokens or inf)
    max_words = int(max_tokens) // _MAX_TOKENS_PER_WORD
    for section in profile.model.questions:
        words = section.filler_words
        by_chunk = isinstance(words, str)
        if isinstance(words, str):
            words = facts.prefill_chunk or _MAX_DEFAULT_CHUNK
        if by_chunk or words <= max_words:
            yield SmokeQuestion(**{**section.model_dump(), "filler_words": min(words, max_words)})
