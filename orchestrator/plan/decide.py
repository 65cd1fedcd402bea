"""From a valid profile to a plan: the rules are asked, then everything that is still open is decided."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from orchestrator.core.errors import Problem, ProfileError, truncate_problems
from orchestrator.engine.flags import FlagTable, flag_words
from orchestrator.patches.schema import Patch
from orchestrator.plan.capacity import Load, capacity_warnings
from orchestrator.plan.facts import Facts
from orchestrator.plan.fusion import with_fusion_flag
from orchestrator.plan.known_issues import KnownIssues, blocking_issues, matching_issues
from orchestrator.plan.patches import PatchFacts, patch_env, select_patches
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
    PlannedPatch,
    SmokeQuestion,
    Ulimit,
)
from orchestrator.plan.replicas import LOOPBACK, planned_gateway
from orchestrator.plan.rules import RULES, Rule, RuleContext
from orchestrator.plan.serving import profile_serving
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.profiles.layers import MergedProfile
from orchestrator.profiles.schema import ContainerSection, Profile
from orchestrator.profiles.slurm import SlurmSection

_LARGEST_CHUNK: Final = (
    16384  # tokens; of sglang's defaults, which go by the GPU's memory (0.5.14, server_args.py:3201)
)
_TOKENS_OF_A_WORD: Final = 3  # at most; English is below 1.5, the vocabulary of the generated model at 2.2


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """What the profile's section for its runtime says, decided."""

    kubernetes: KubernetesSection | None = None
    slurm: SlurmSection | None = None
    one_node: bool = True  # the replicas share its GPUs and its loopback
    same_port: bool = False  # each replica has a network of its own, as a pod has


@dataclass(frozen=True, kw_only=True)
class PlanningContext:
    """What a plan is decided from, apart from the profile and the facts: the catalog as it was read."""

    table: FlagTable
    ledger: Sequence[Patch]
    known_issues: KnownIssues
    runtimes: Mapping[str, Sequence[Rule]]  # by name, with the rules of each
    load: Load | None  # that the profile is meant for
    settings: Mapping[str, Callable[[Profile], RuntimeSettings]]  # of runtimes that have a section in a profile


def decide(name: str, *, profile: Profile, composed: MergedProfile, knowledge: PlanningContext, facts: Facts) -> Plan:
    """Decide the plan of profile `name`, final as far as the facts go. Pure.

    Raises ProfileError with everything that its rules refuse.
    """
    case = RuleContext(
        profile=profile,
        composed=composed,
        table=knowledge.table,
        ledger=knowledge.ledger,
        runtimes=knowledge.runtimes,
        blocked_issues=knowledge.known_issues.blocked,
        load=knowledge.load,
    )
    _refuse(name, (problem for rule in RULES for problem in rule(case)))
    plan = _plan(name, profile=profile, composed=composed, knowledge=knowledge, facts=facts)
    plan = with_fusion_flag(plan, facts.experts)
    accepted = profile.allow_known_issues
    _refuse(name, blocking_issues(knowledge.known_issues.blocked, plan, accepted=accepted, place=composed.place))
    reports = knowledge.known_issues
    return replace(
        plan,
        warnings=(*matching_issues(reports.warnings, plan), *capacity_warnings(case.capacity)),
        wrong_answers=matching_issues(reports.wrong_answers, plan),
        nondeterministic=matching_issues(reports.nondeterministic, plan),
    )


def _refuse(name: str, problems: Iterable[Problem]) -> None:
    if found := truncate_problems(problems):
        raise ProfileError(f"profile `{name}` cannot be planned", problems=found)


def _plan(name: str, *, profile: Profile, composed: MergedProfile, knowledge: PlanningContext, facts: Facts) -> Plan:
    uses = _patches(profile, knowledge, facts)
    decided = knowledge.settings.get(profile.runtime)
    settings = decided(profile) if decided else RuntimeSettings()
    return Plan(
        profile=name,
        description=profile.description,
        runtime=profile.runtime,
        hardware=_hardware(profile, composed),
        model=model_of(profile, composed),
        engine=_engine(profile, composed),
        layout=Layout(
            tp=profile.layout.tp.value,
            dp=profile.layout.dp.value,
            ep=profile.layout.ep.value,
            dp_attention=profile.layout.dp_attention.value,
        ),
        replicas=profile.replicas,
        gateway=planned_gateway(profile, one_node=settings.one_node, same_port=settings.same_port),
        server=_server(profile),
        flags=_flags(profile),
        env=_env(profile, patch_env(knowledge.ledger, uses)),
        patches=uses,
        warnings=(),  # these three are looked for in the plan itself
        wrong_answers=(),
        nondeterministic=(),
        timeouts=profile.timeouts,
        restart_policy=profile.restart_policy,
        kubernetes=settings.kubernetes,
        slurm=settings.slurm,
        prebuilt_image=facts.image,
    )


def _patches(profile: Profile, knowledge: PlanningContext, facts: Facts) -> tuple[PlannedPatch, ...]:
    drafts = profile_serving(profile).drafts
    known = PatchFacts(
        engine_version=profile.engine.version,
        platform=profile.engine.platform,
        quantization=profile.model.quantization,
        mtp_layer=profile.model.mtp_layer,
        speculative_steps=drafts.steps if drafts else None,
        inputs=facts.inputs,
    )
    return tuple(use for use in select_patches(knowledge.ledger, known) if use.id not in profile.skip_patches)


def _flags(profile: Profile) -> tuple[Flag, ...]:
    settings = {name: setting for name, setting in profile.flags.items() if setting.value is not False}
    return tuple(
        Flag(name=name, values=flag_words(setting.value), origin=setting.origin, source=setting.source)
        for name, setting in sorted(settings.items())
    )


def _server(profile: Profile) -> HttpEndpoint:
    """The HTTP side; `localhost` is an address of this machine alone, which docker publishes as it is written."""
    server = profile.server.model_dump()
    return HttpEndpoint(**{**server, "host": LOOPBACK if server["host"] == "localhost" else server["host"]})


def _env(profile: Profile, of_patches: Iterable[EnvVar]) -> tuple[EnvVar, ...]:
    """The profile's variables; those of patches where the profile does not set them itself."""
    variables = {variable.name: variable for variable in of_patches}
    for name, setting in profile.env.items():
        value = str(setting.value).lower() if isinstance(setting.value, bool) else str(setting.value)
        variables[name] = EnvVar(name=name, value=value, origin=setting.origin, source=setting.source)
    return tuple(variables[name] for name in sorted(variables))


def _hardware(profile: Profile, composed: MergedProfile) -> Hardware:
    hardware = profile.hardware
    return Hardware(
        name=composed.names["hardware"],
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


def model_of(profile: Profile, composed: MergedProfile) -> Model:
    """Decide what a plan says of the model: the profile alone says it."""
    model = profile.model
    return Model(
        name=composed.names["model"],
        served_name=model.served_name,
        checkpoint=ModelSource(
            source=model.checkpoint.source, path=model.checkpoint.path, revision=model.checkpoint.revision
        ),
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
    )


def _questions(profile: Profile) -> Iterator[SmokeQuestion]:
    """The questions that fit into the context and the cache, their filler counted in words.

    A word is at least one token: as many words as a chunk of prefill has tokens are more than one chunk.
    """
    facts = profile_serving(profile)
    room = min(facts.context, facts.cache_tokens or inf)
    most = int(room) // _TOKENS_OF_A_WORD
    for section in profile.model.questions:
        by_chunk = section.filler_words == "chunk"
        words = facts.prefill_chunk or _LARGEST_CHUNK if isinstance(section.filler_words, str) else section.filler_words
        if by_chunk or words <= most:
            yield SmokeQuestion(
                prompt=section.prompt,
                expected=section.expected,
                filler_words=min(words, most),
                max_tokens=section.max_tokens,
                origin=section.origin,
                source=section.source,
            )


def _engine(profile: Profile, composed: MergedProfile) -> Engine:
    return Engine(name=composed.names["engine"], **profile.engine.model_dump(exclude={"source"}))
