"""The compatibility rules of a plan. A rule yields the problems of a profile; all rules always run."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from packaging.version import Version

from orchestrator.core.errors import Problem
from orchestrator.core.secrets import is_secret_name, looks_secret
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.text import gb
from orchestrator.core.yaml_document import KeyPath
from orchestrator.engine.disaggregation import PREFILL, has_decode_cache
from orchestrator.engine.flag_checks import ServerFlags, argument_problems, port_problem
from orchestrator.engine.flags import FlagTable, flag_problems, flag_words
from orchestrator.engine.gateway import gateway_problems
from orchestrator.engine.options import Meaning
from orchestrator.engine.serving import ServingFacts, all_readable
from orchestrator.patches.schema import Patch
from orchestrator.plan.capacity import Capacity, Load, capacity_of, context_shortage
from orchestrator.plan.known_issues import KnownIssues
from orchestrator.plan.networks import Network
from orchestrator.plan.placement import nodes_share_the_ranks, replicas_have_ports
from orchestrator.plan.replicas import LOOPBACK, gpus_per_replica
from orchestrator.plan.roles import role_profiles, roles_agree
from orchestrator.plan.serving import profile_serving
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.profiles.layers import MergedProfile
from orchestrator.profiles.schema import Profile
from orchestrator.profiles.slurm import SlurmSection

_SMALL_TIERS: Final = Version("0.5.15")  # first version whose host tier may be smaller than the device's cache


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """The settings of the profile's runtime."""

    kubernetes: KubernetesSection | None = None
    slurm: SlurmSection | None = None
    one_node: bool = True  # the replicas share the GPUs and the loopback of one node
    same_port: bool = False  # each replica has its own network, as a pod does


@dataclass(frozen=True, kw_only=True)
class PlanningContext:
    """The inputs of a plan besides the profile and the facts."""

    table: FlagTable
    ledger: Sequence[Patch]
    known_issues: KnownIssues
    networks: Mapping[str, Network]  # the profile's networks by name
    runtimes: Sequence[str]  # names of all networks
    rules: "Sequence[Rule]"  # settings of the profile's runtime
    settings: Callable[[Profile], RuntimeSettings]  # of that runtime
    load: Load | None  # of the profile's workload


@dataclass(frozen=True, kw_only=True)
class RuleContext(PlanningContext):
    """The inputs of a rule."""

    profile: Profile
    merged: MergedProfile
    image: str | None = None  # the prebuilt image, if any
    role: str = ""  # section of `layout` for these servers

    def location(self, *path: str | int) -> str:
        """Return `file:line` of a key path; the role's section takes precedence."""
        key: KeyPath = path
        of_role = ("layout", self.role, *(path[1:] if path[0] == "layout" else path))
        if self.role and of_role in self.merged.locations:
            key = of_role
        return self.merged.location(key)

    @cached_property
    def serving(self) -> ServingFacts:
        """The meaning of the flags."""
        return profile_serving(self.profile)

    @cached_property
    def capacity(self) -> Capacity:
        """The capacity of a DP rank."""
        return capacity_of(self.profile, self.serving, self.load)

    @cached_property
    def is_sized(self) -> bool:
        """Whether sglang accepts the flags that determine the capacity; otherwise their defaults would apply."""
        return all_readable({name: setting.value for name, setting in self.profile.flags.items()}, self.table)


Rule = Callable[[RuleContext], Iterator[Problem]]

KEY_HINT: Final = (
    "name the variable with a key (`--set server.api_key_env=SGLANG_KEY`), "
    "or allow access without one: `--set server.allow_unauthenticated=true`"
)
VENDOR_OF: Final = {"rocm": "amd", "cuda": "nvidia", "cpu": "cpu"}
# The suffix of a dated ROCm image is the GPU family of its build (sglang docker/rocm.Dockerfile, GPU_ARCH).
_ARCH_OF_IMAGE: Final = {"mi30x": "gfx942", "mi35x": "gfx950"}


def image_arch(image: str) -> str | None:
    """Return the GPU architecture for which an image is compiled; None if its name does not contain it."""
    family = re.search(r"mi3[05]x", image)
    return _ARCH_OF_IMAGE[family[0]] if family else None


def sglang_version_in_tag(image: str) -> str | None:
    """Return the sglang release in an image's tag; None if there is none."""
    match = re.search(r"sglang[^/:]*:v?([0-9]+\.[0-9]+\.[0-9]+(?:\.post[0-9]+)?)(?![0-9.])", image)
    return match and match[1]


def layout_fits(context: RuleContext) -> Iterator[Problem]:
    """Check that the ranks fit on the node's GPUs, and that ep divides tp (sglang: `tp_size % ep_size`).

    Pipeline stages, the first GPU and the GPU step count too (0.5.14, data_parallel_controller.py:271-298, engine.py:
    `base_gpu_id + … * gpu_id_step`).
    """
    layout, hardware = context.profile.layout, context.profile.hardware
    tp, dp, ep = layout.tp.value, layout.dp.value, layout.ep.value
    stages, step, first = context.serving.stages, context.serving.gpu_step, context.serving.first_gpu
    ranks = gpus_per_replica(context.profile)
    gpus_needed = first + (ranks - 1) * step + 1
    if hardware.vendor != "cpu" and gpus_needed > hardware.gpus:
        product = f"tp {tp}" if layout.dp_attention.value or dp == 1 else f"tp {tp} x dp {dp}"
        product += f" x pp {stages}" if stages > 1 else ""
        per_node = f" on each of {layout.nodes.value} nodes" if layout.nodes.value > 1 else ""
        offset = f", from GPU {first} in steps of {step}," if first or step > 1 else ""
        yield Problem(
            f"{product}{offset} needs {gpus_needed} GPUs{per_node}; the node has {hardware.gpus}",
            context.location("layout", "tp"),
            "lower `layout.tp`; each of the `dp` workers needs `tp` GPUs unless `layout.dp_attention` is true; "
            "`layout.nodes` spreads them over several nodes",
        )
    if tp % ep:
        yield Problem(f"ep {ep} does not divide tp {tp}", context.location("layout", "ep"))
    if layout.dp_attention.value and tp % dp:
        yield Problem(f"with dp-attention, dp {dp} must divide tp {tp}", context.location("layout", "dp"))


def gateway_options_are_known(context: RuleContext) -> Iterator[Problem]:
    """Check the options of the gateway, also for one replica, which has no gateway."""
    for name, setting in context.profile.gateway.items():
        yield from gateway_problems(name, setting.value, context.location("gateway", name))


def heads_divide(context: RuleContext) -> Iterator[Problem]:
    """Check that the attention heads divide evenly over the ranks; with dp-attention there are tp / dp ranks.

    sglang asserts this (0.5.14: srt/models/llama.py `total_num_heads % tp_size`, srt/models/deepseek_v2.py
    `num_heads % attn_tp_size`). If there are fewer key and value heads than ranks, sglang copies them: they must then
    divide the ranks.
    """
    layout, model = context.profile.layout, context.profile.model
    shared = layout.dp_attention.value and layout.tp.value % layout.dp.value == 0
    ranks = layout.tp.value // layout.dp.value if shared else layout.tp.value
    for heads, kind in ((model.attention_heads, "attention heads"), (model.kv_heads, "key and value heads")):
        if heads is None or heads % ranks == 0 or (kind != "attention heads" and ranks % heads == 0):
            continue
        per = f"tp {ranks}" if ranks == layout.tp.value else f"tp {layout.tp.value} over dp {layout.dp.value}"
        yield Problem(f"{heads} {kind} are not divisible by {per}", context.location("layout", "tp"))


def weights_fit(context: RuleContext) -> Iterator[Problem]:
    """Check that a rank's weights leave memory for a cache.

    Otherwise sglang raises `Loaded weights leave no GPU memory for the KV cache` after loading them (0.5.16,
    mem_cache/kv_cache_configurator.py:1563).
    """
    memory, fraction = context.capacity.memory, context.serving.memory_fraction
    if memory is None or (fraction is not None and not 0 < fraction < 1):
        return  # `flag_values_are_valid` reports it
    if memory.cache_bytes <= 0:
        available = memory.free_bytes * memory.fraction
        yield Problem(
            f"the weights leave no room for a cache: they need {gb(memory.weights_bytes)} per GPU at tp "
            f"{context.profile.layout.tp.value}; sglang may use {gb(available)}, {memory.fraction:g} of the "
            f"{memory.free_bytes / 1e9:.0f} GB free of {memory.vram_bytes / 1e9:.0f}",
            context.location("model", "weights_size"),
            f"raise `layout.tp` or `{Meaning.MEMORY_FRACTION}`, or choose a smaller quantization, or larger GPUs",
        )


def cache_holds_a_context(context: RuleContext) -> Iterator[Problem]:
    """Check that one request of the profile's context fits into a DP rank's cache."""
    if context.serving.context > context.profile.model.context_length:
        return  # `flag_values_are_valid` reports it
    yield from context_shortage(context.capacity, context.location)


def host_tier_is_larger(context: RuleContext) -> Iterator[Problem]:
    """Check that the host tier is at least as large as the device's cache.

    sglang 0.5.14 asserts this after loading the weights; since 0.5.15 it warns (mem_cache/pool_host/base.py).
    """
    host, cache = context.capacity.host, context.capacity.cache
    if host is None or host.tokens is None or cache is None or cache.tokens is None:
        return
    if host.tokens < cache.tokens and Version(context.profile.engine.version) < _SMALL_TIERS:
        yield Problem(
            f"the cache tier in the host's memory holds {host.tokens:,} tokens, fewer than the {cache.tokens:,} of the "
            f"device: sglang {context.profile.engine.version} does not start",
            context.location("flags", Meaning.HOST_TIER),
            f"raise `flags.{Meaning.HOST_TIER_SIZE}` or `flags.{Meaning.HOST_TIER_RATIO}`, or remove the tier",
        )


def engine_fits_hardware(context: RuleContext) -> Iterator[Problem]:
    """Check that the image is built for this vendor and GPU family."""
    engine, hardware = context.profile.engine, context.profile.hardware
    if VENDOR_OF[engine.platform] != hardware.vendor:
        yield Problem(
            f"an engine for {engine.platform} does not run on {hardware.vendor} hardware",
            context.location("engine", "platform"),
            f"choose an engine for {hardware.vendor}: `deploy profiles` lists them",
        )
        return
    arch = image_arch(engine.image or "")
    if arch and arch != hardware.arch:
        yield Problem(
            f"the image is compiled for {arch}; the GPUs are {hardware.arch}", context.location("engine", "image")
        )


def image_matches_version(context: RuleContext) -> Iterator[Problem]:
    """Check that image and requirements have the engine's version, which determines options and patches.

    Releases are tagged `vX.Y.Z`, alone or before a platform and a date (sglang, .github/workflows/release-docker*.yml).
    """
    engine = context.profile.engine
    match = re.match(r"sglang-[a-z]+-([0-9]+\.[0-9]+\.[0-9]+(?:\.post[0-9]+)?)\.txt\Z", engine.requirements or "")
    for key, version in (("image", sglang_version_in_tag(engine.image or "")), ("requirements", match and match[1])):
        if version and version != engine.version:
            yield Problem(
                f"`engine.version` is {engine.version}, but `engine.{key}` is for sglang {version}",
                context.location("engine", "version"),
                f"`--set engine.version={version}`, or choose another engine: `deploy profiles` lists them",
            )


def runtime_can_start(context: RuleContext) -> Iterator[Problem]:
    """Check that the runtime exists, and that the profile meets its rules."""
    if context.profile.runtime not in context.runtimes:
        hint = did_you_mean(context.profile.runtime, context.runtimes)
        yield Problem(f"no runtime `{context.profile.runtime}`", context.location("runtime"), hint)
    for rule in context.rules:
        yield from rule(context)


def flags_are_known(context: RuleContext) -> Iterator[Problem]:
    """Check that sglang's parser of that version accepts every flag."""
    for name, setting in context.profile.flags.items():
        yield from flag_problems(name, setting.value, context.table, context.location("flags", name))


def flag_values_are_valid(context: RuleContext) -> Iterator[Problem]:
    """Check values that sglang accepts but interprets differently; `up` lets sglang check all others."""
    for problem in argument_problems(_requested_flags(context)):
        yield Problem(problem.message, context.location("flags", problem.location), problem.hint)
    if ":" in (name := context.profile.model.served_name):  # server_args.py:6671
        message = f"`{name}` has a colon, which separates model and adapter in sglang"
        yield Problem(message, context.location("model", "served_name"))
    if message := port_problem(context.profile.server.port, context.profile.engine.version):
        yield Problem(message, context.location("server", "port"))


def _requested_flags(context: RuleContext) -> ServerFlags:
    """Return the profile's flags with the values to check."""
    profile = context.profile
    return ServerFlags(
        table=context.table,
        flags={name: setting.value for name, setting in profile.flags.items() if setting.value is not False},
        context_length=profile.model.context_length,
        sparse_attention=profile.model.sparse_attention,
        platform=profile.engine.platform,
        mtp_layer=profile.model.mtp_layer is not None,
    )


def profile_has_no_secrets(context: RuleContext) -> Iterator[Problem]:
    """Check that the profile contains no secrets, because plan, scripts and labels would show them."""
    for name in context.profile.env:
        if is_secret_name(name):
            yield Problem(
                f"`{name}` looks like a secret, which a profile must not contain",
                context.location("env", name),
                "export it in your shell: deploy reads HF_TOKEN, and the variable that `server.api_key_env` names",
            )
    for section, settings in (("env", context.profile.env), ("flags", context.profile.flags)):
        for name, setting in settings.items():
            if any(looks_secret(word) for word in flag_words(setting.value)):
                message = f"the value of `{name}` looks like a secret"
                yield Problem(message, context.location(section, name), "remove it: the plan would show it")


def public_address_is_allowed(context: RuleContext) -> Iterator[Problem]:
    """Check that a server on a public address has an API key, or explicitly allows access without one."""
    server = context.profile.server
    try:
        address = ipaddress.ip_address(LOOPBACK if server.host == "localhost" else server.host)
    except ValueError:
        yield Problem(
            f"`{server.host}` is not an IP address", context.location("server", "host"), "such as 127.0.0.1 or 0.0.0.0"
        )
        return
    if not address.is_loopback and server.api_key_env is None and not server.allow_unauthenticated:
        yield Problem(
            f"other hosts can reach `{server.host}`, and the server has no API key",
            context.location("server", "host"),
            KEY_HINT,
        )


def named_exceptions_exist(context: RuleContext) -> Iterator[Problem]:
    """Check that each skipped patch and each allowed known issue exists."""
    profile = context.profile
    blocking = [issue.id for issue in context.known_issues.blocked]
    for key, kind, names, existing in (
        ("skip_patches", "patch", profile.skip_patches, [patch.id for patch in context.ledger]),
        ("allow_known_issues", "blocking known issue", profile.allow_known_issues, blocking),
    ):
        for index, name in enumerate(names):
            if name not in existing:
                yield Problem(f"no {kind} `{name}`", context.location(key, index), did_you_mean(name, existing))


RULES: Final[Sequence[Rule]] = (
    roles_agree,
    engine_fits_hardware,
    image_matches_version,
    layout_fits,
    nodes_share_the_ranks,
    gateway_options_are_known,
    replicas_have_ports,
    heads_divide,
    weights_fit,
    cache_holds_a_context,
    host_tier_is_larger,
    runtime_can_start,
    flags_are_known,
    flag_values_are_valid,
    profile_has_no_secrets,
    public_address_is_allowed,
    named_exceptions_exist,
)
_OF_SIZES: Final = (weights_fit, cache_holds_a_context, host_tier_is_larger)
# Rules for all servers under one name; the other rules apply to one server, and thus to each role.
_WHOLE: Final = (roles_agree, gateway_options_are_known, replicas_have_ports, runtime_can_start)


def role_contexts(context: RuleContext) -> tuple[RuleContext, ...]:
    """Return the context of each role; without roles, the only one."""
    return tuple(
        replace(context, profile=profile, role=name, load=_role_load(name, profile, context.load))
        for name, profile in role_profiles(context.profile).items()
    ) or (context,)


def _role_load(name: str, profile: Profile, load: Load | None) -> Load | None:
    """Return the load of a server's cache; None for prefill, because sglang ends a request there after one token.

    A decode server without a prefix cache keeps each prefix once per request. Source: sglang 0.5.16,
    disaggregation/prefill.py `max_new_tokens = 1`, arg_groups/pd_disaggregation_hook.py.
    """
    if load is None or name == PREFILL:
        return None
    given = {name for name, setting in profile.flags.items() if setting.value is not False}
    return load if has_decode_cache(given) else load.model_copy(update={"cache_hit_rate": 0.0})


def plan_problems(context: RuleContext) -> Iterator[Problem]:
    """Yield the problems of a profile, or of each of its roles."""
    roles = [server for server in role_contexts(context) if server.role]
    yield from _problems(context, _WHOLE if roles else RULES)
    for role in roles:
        yield from _problems(role, [rule for rule in RULES if rule not in _WHOLE])


def _problems(context: RuleContext, rules: Iterable[Rule]) -> Iterator[Problem]:
    return (problem for rule in rules if context.is_sized or rule not in _OF_SIZES for problem in rule(context))
