"""From a valid profile to a plan: the rules are asked, then everything that is still open is decided."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.errors import Problem, ProfileError, first_of
from orchestrator.engine import FlagTable, flag_words, speculation
from orchestrator.patches import Patch
from orchestrator.plan.known_bad import Reports, hazards, known_bad
from orchestrator.plan.patches import PatchFacts, environment, select
from orchestrator.plan.plan import (
    ContainerNeeds,
    Engine,
    EnvVar,
    Flag,
    Hardware,
    Layout,
    Model,
    ModelSource,
    Moe,
    PatchUse,
    Plan,
    Server,
    Ulimit,
    Waiting,
)
from orchestrator.plan.rules import LOOPBACK, RULES, Case, Rule
from orchestrator.profile import Composed, ContainerSection, Profile


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What a plan is decided from, apart from the profile."""

    table: FlagTable
    ledger: Sequence[Patch]
    reports: Reports
    runtimes: Mapping[str, Sequence[Rule]]  # by name, with the rules of each
    inputs: Mapping[str, str]  # files a user gave to patches, name -> sha256 in hex


def decide(name: str, *, profile: Profile, composed: Composed, knowledge: Knowledge) -> Plan:
    """The plan of profile `name`. Raises ProfileError with everything that its rules refuse."""
    case = Case(
        profile=profile,
        composed=composed,
        table=knowledge.table,
        ledger=knowledge.ledger,
        runtimes=knowledge.runtimes,
        known_bad=knowledge.reports.known_bad,
    )
    _refuse(name, (problem for rule in RULES for problem in rule(case)))
    plan = _plan(name, profile=profile, composed=composed, knowledge=knowledge)
    accepted = profile.accept_known_bad
    _refuse(name, known_bad(knowledge.reports.known_bad, plan, accepted=accepted, place=composed.place))
    return replace(plan, hazards=hazards(knowledge.reports.hazards, plan))


def _refuse(name: str, problems: Iterable[Problem]) -> None:
    if found := first_of(problems):
        raise ProfileError(f"profile `{name}` cannot be planned", problems=found)


def _plan(name: str, *, profile: Profile, composed: Composed, knowledge: Knowledge) -> Plan:
    uses = _patches(profile, knowledge)
    return Plan(
        profile=name,
        description=profile.description,
        runtime=profile.runtime,
        hardware=_hardware(profile, composed),
        model=_model(profile, composed),
        engine=_engine(profile, composed),
        layout=Layout(
            tp=profile.layout.tp.value,
            dp=profile.layout.dp.value,
            ep=profile.layout.ep.value,
            dp_attention=profile.layout.dp_attention.value,
        ),
        server=_server(profile),
        flags=_flags(profile),
        env=_env(profile, environment(knowledge.ledger, uses)),
        patches=uses,
        hazards=(),  # they are looked for in the plan itself
        waiting=Waiting(**profile.waiting.model_dump()),
        ready_image=None,  # the user names one, not the profile
    )


def _patches(profile: Profile, knowledge: Knowledge) -> tuple[PatchUse, ...]:
    drafts = speculation({name: setting.value for name, setting in profile.flags.items()})
    facts = PatchFacts(
        engine_version=profile.engine.version,
        platform=profile.engine.platform,
        quantisation=profile.model.quantisation,
        mtp_layer=profile.model.mtp_layer,
        speculative_steps=drafts[0] if drafts else None,
        inputs=knowledge.inputs,
    )
    return tuple(use for use in select(knowledge.ledger, facts) if use.id not in profile.without_patches)


def _flags(profile: Profile) -> tuple[Flag, ...]:
    settings = {name: setting for name, setting in profile.flags.items() if setting.value is not False}
    return tuple(
        Flag(name=name, values=flag_words(setting.value), origin=setting.origin, source=setting.source)
        for name, setting in sorted(settings.items())
    )


def _server(profile: Profile) -> Server:
    """The HTTP side; `localhost` is an address of this machine alone, which docker publishes as it is written."""
    server = profile.server.model_dump()
    return Server(**{**server, "host": LOOPBACK if server["host"] == "localhost" else server["host"]})


def _env(profile: Profile, of_patches: Iterable[EnvVar]) -> tuple[EnvVar, ...]:
    """The profile's variables; those of patches where the profile does not set them itself."""
    variables = {variable.name: variable for variable in of_patches}
    for name, setting in profile.env.items():
        value = str(setting.value).lower() if isinstance(setting.value, bool) else str(setting.value)
        variables[name] = EnvVar(name=name, value=value, origin=setting.origin, source=setting.source)
    return tuple(variables[name] for name in sorted(variables))


def _hardware(profile: Profile, composed: Composed) -> Hardware:
    hardware = profile.hardware
    return Hardware(
        name=composed.names["hardware"],
        vendor=hardware.vendor,
        arch=hardware.arch,
        gpus=hardware.gpus,
        compute_units=hardware.compute_units,
        vram_bytes=hardware.vram,
        container=_container(hardware.container),
    )


def _container(container: ContainerSection) -> ContainerNeeds:
    limits = sorted(container.ulimits.items())
    return ContainerNeeds(
        devices=tuple(container.devices),
        all_gpus=container.all_gpus,
        groups=tuple(container.groups),
        ipc=container.ipc,
        shm_bytes=container.shm,
        ulimits=tuple(Ulimit(name=name, soft=limit.soft, hard=limit.hard) for name, limit in limits),
        security_opt=tuple(container.security_opt),
        cap_add=tuple(container.cap_add),
    )


def _model(profile: Profile, composed: Composed) -> Model:
    model = profile.model
    return Model(
        name=composed.names["model"],
        served_name=model.served_name,
        source=ModelSource(kind=model.origin.kind, location=model.origin.location, revision=model.origin.revision),
        weight_bytes=model.weights,
        quantisation=model.quantisation,
        context_length=model.context_length,
        layers=model.layers,
        mtp_layer=model.mtp_layer,
        gated=model.gated,
        moe=Moe(**model.moe.model_dump()) if model.moe else None,
    )


def _engine(profile: Profile, composed: Composed) -> Engine:
    return Engine(name=composed.names["engine"], **profile.engine.model_dump(exclude={"source"}))
