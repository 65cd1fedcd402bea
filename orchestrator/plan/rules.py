"""Every compatibility rule of a plan. A rule looks at a profile and yields what is wrong; all rules always run."""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from orchestrator.core.errors import Problem
from orchestrator.core.secrets import is_secret_name, looks_secret
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.yaml_document import KeyPath
from orchestrator.engine.flag_checks import ServerArgs, argument_problems, name_problem, port_problem
from orchestrator.engine.flags import FlagTable, flag_problems, flag_words
from orchestrator.engine.gateway import gateway_problems
from orchestrator.engine.serving import ServingFacts
from orchestrator.patches.schema import Patch
from orchestrator.plan.capacity import Capacity, Load, capacity_of
from orchestrator.plan.known_issues import KnownIssue
from orchestrator.plan.replicas import LOOPBACK, gpus_per_replica, replica_ports
from orchestrator.plan.serving import profile_serving
from orchestrator.profiles.layers import MergedProfile
from orchestrator.profiles.schema import Profile


@dataclass(frozen=True, kw_only=True)
class RuleContext:
    """What a rule may look at."""

    profile: Profile
    composed: MergedProfile
    table: FlagTable
    ledger: Sequence[Patch]
    runtimes: "Mapping[str, Sequence[Rule]]"  # by name, with the rules of each
    blocked_issues: Sequence[KnownIssue]
    load: Load | None  # that the profile is meant for

    def place(self, *path: str | int) -> str:
        """`file:line` of a key path."""
        key: KeyPath = path
        return self.composed.place(key)

    @cached_property
    def serving(self) -> ServingFacts:
        """What the flags mean."""
        return profile_serving(self.profile)

    @property
    def arguments(self) -> ServerArgs:
        """The flags that are set, and what they are judged by."""
        return arguments(self.profile, self.table)

    @cached_property
    def capacity(self) -> Capacity:
        """What fits on a replica."""
        return capacity_of(self.profile, self.serving, self.load)


def arguments(profile: Profile, table: FlagTable) -> ServerArgs:
    """The flags that a profile sets, and what they are judged by."""
    return ServerArgs(
        table=table,
        flags={name: setting.value for name, setting in profile.flags.items() if setting.value is not False},
        tp=profile.layout.tp.value,
        context_length=profile.model.context_length,
        sparse_attention=profile.model.sparse_attention,
        platform=profile.engine.platform,
        decided={
            "tp_size": profile.layout.tp.value,
            "dp_size": profile.layout.dp.value,
            "ep_size": profile.layout.ep.value,
            "enable_dp_attention": profile.layout.dp_attention.value,
            "port": profile.server.port,
            "served_model_name": profile.model.served_name,
        },
        quantization=profile.model.quantization,
        mtp_layer=profile.model.mtp_layer is not None,
        port=profile.server.port,
        ranks=profile.layout.tp.value
        * (1 if profile.layout.dp_attention.value else profile.layout.dp.value)
        * profile.replicas,
    )


Rule = Callable[[RuleContext], Iterator[Problem]]

_LAST_PORT: Final = 65535
VENDOR_OF: Final = {"rocm": "amd", "cuda": "nvidia", "cpu": "cpu"}
# The suffix of a dated ROCm image names the GPU family it was compiled for (sglang docker/rocm.Dockerfile, GPU_ARCH).
_ARCH_OF_IMAGE: Final = {"mi30x": "gfx942", "mi35x": "gfx950"}


def image_arch(image: str) -> str | None:
    """The GPUs that an image is compiled for, as far as its name says."""
    family = re.search(r"mi3[05]x", image)
    return _ARCH_OF_IMAGE[family[0]] if family else None


def release_in_name(image: str) -> str | None:
    """The release of sglang that an image's tag names, None where it names none."""
    found = re.search(r"sglang[^/:]*:v?([0-9]+\.[0-9]+\.[0-9]+(?:\.post[0-9]+)?)(?![0-9.])", image)
    return found and found[1]


def layout_fits(case: RuleContext) -> Iterator[Problem]:
    """The last GPU that the ranks take is one of the node's; ep divides tp (sglang: `tp_size % ep_size`).

    The flags that move or multiply the ranks count (0.5.14, data_parallel_controller.py:271-298, engine.py:
    `base_gpu_id + … * gpu_id_step`).
    """
    layout, hardware = case.profile.layout, case.profile.hardware
    tp, dp, ep = layout.tp.value, layout.dp.value, layout.ep.value
    stages, step, first = case.serving.stages, case.serving.gpu_step, case.serving.first_gpu
    ranks = stages * (tp if layout.dp_attention.value else tp * dp)
    used = first + (ranks - 1) * step + 1
    if hardware.vendor != "cpu" and used > hardware.gpus:
        product = f"tp {tp}" if layout.dp_attention.value or dp == 1 else f"tp {tp} x dp {dp}"
        product += f" x pp {stages}" if stages > 1 else ""
        moved = f", from GPU {first} in steps of {step}," if first or step > 1 else ""
        yield Problem(
            f"{product}{moved} needs {used} GPUs, the node has {hardware.gpus}",
            case.place("layout", "tp"),
            "every replica has `tp` GPUs of its own unless `layout.dp_attention` is true",
        )
    if tp % ep:
        yield Problem(f"ep {ep} does not divide tp {tp}", case.place("layout", "ep"))
    if layout.dp_attention.value and tp % dp:
        yield Problem(f"with dp-attention dp {dp} must divide tp {tp}", case.place("layout", "dp"))


def replicas_share_the_node(case: RuleContext) -> Iterator[Problem]:
    """The GPUs of all replicas are the node's, for a runtime that starts all of them on one."""
    profile, facts = case.profile, case.serving
    count, gpus = profile.replicas, gpus_per_replica(profile)
    used = facts.first_gpu + (count * gpus - 1) * facts.gpu_step + 1
    if count > 1 and profile.hardware.vendor != "cpu" and used > profile.hardware.gpus:
        yield Problem(
            f"{count} replicas of {gpus} GPUs need {used} GPUs, the node has {profile.hardware.gpus}",
            case.place("replicas"),
            "lower `replicas`, or `layout.tp`",
        )


def gateway_is_known(case: RuleContext) -> Iterator[Problem]:
    """The gateway takes its options, also where one replica has none yet."""
    for name, setting in case.profile.gateway.items():
        yield from gateway_problems(name, setting.value, case.place("gateway", name))


def replicas_have_ports(case: RuleContext) -> Iterator[Problem]:
    """Each replica has ports of its own; an option that fixes one would give it to all of them."""
    profile = case.profile
    if profile.replicas == 1:
        return
    for name in (port.option for port in case.serving.ports):
        hint = "leave it out: sglang takes a free one"
        yield Problem(f"`--{name}` gives one port to {profile.replicas} replicas", case.place("flags", name), hint)
    last = replica_ports(profile)[-1]
    if last > _LAST_PORT or port_problem(last, profile.engine.version):
        yield Problem(
            f"server.port {profile.server.port} leaves no ports for {profile.replicas} replicas: the last takes {last}",
            case.place("server", "port"),
            "set a lower one",
        )


def heads_divide(case: RuleContext) -> Iterator[Problem]:
    """Each rank of a replica has as many attention heads as the others; with dp-attention a replica has tp / dp ranks.

    sglang asserts both (0.5.14: srt/models/llama.py `total_num_heads % tp_size`, srt/models/deepseek_v2.py
    `num_heads % attn_tp_size`). Key and value heads that are fewer than the ranks are copied, and then divide them.
    """
    layout, model = case.profile.layout, case.profile.model
    shared = layout.dp_attention.value and layout.tp.value % layout.dp.value == 0
    ranks = layout.tp.value // layout.dp.value if shared else layout.tp.value
    for heads, what in ((model.attention_heads, "attention heads"), (model.kv_heads, "key and value heads")):
        if heads is None or heads % ranks == 0 or (what != "attention heads" and ranks % heads == 0):
            continue
        fitting = ", ".join(str(count) for count in range(1, min(heads, 1024) + 1) if heads % count == 0)
        per = f"tp {ranks}" if ranks == layout.tp.value else f"tp {layout.tp.value} over dp {layout.dp.value}"
        yield Problem(
            f"{heads} {what} do not divide by {per}",
            case.place("layout", "tp"),
            f"they divide by {fitting}",
        )


def weights_fit(case: RuleContext) -> Iterator[Problem]:
    """One rank's share of the weights leaves room for a cache, within what sglang plans with.

    sglang raises `Loaded weights leave no GPU memory for the KV cache` after loading them (0.5.16,
    mem_cache/kv_cache_configurator.py:1563).
    """
    memory, fraction = case.capacity.memory, case.serving.memory_fraction
    if memory is None or (fraction is not None and not 0 < fraction < 1):
        return  # `flag_values_are_valid` says so
    if memory.cache_bytes <= 0:
        room = memory.free_bytes * memory.fraction
        yield Problem(
            f"the weights need {memory.weights_bytes / 1e9:.1f} GB a GPU at tp {case.profile.layout.tp.value} and "
            f"leave no room for a cache: {memory.fraction:g} of the {memory.free_bytes / 1e9:.0f} GB that are free of "
            f"{memory.vram_bytes / 1e9:.0f} is {room / 1e9:.1f} GB",
            case.place("model", "weights_size"),
            "raise `layout.tp`, or choose a smaller quantization",
        )


def engine_fits_hardware(case: RuleContext) -> Iterator[Problem]:
    """The image was built for this vendor and this GPU family."""
    engine, hardware = case.profile.engine, case.profile.hardware
    if VENDOR_OF[engine.platform] != hardware.vendor:
        yield Problem(
            f"an engine for {engine.platform} does not run on {hardware.vendor} hardware",
            case.place("engine", "platform"),
            f"choose an engine whose platform is for {hardware.vendor}: `deploy profiles` lists them",
        )
        return
    arch = image_arch(engine.image or "")
    if arch and arch != hardware.arch:
        yield Problem(
            f"the image is compiled for {arch}, the GPUs are {hardware.arch}",
            case.place("engine", "image"),
        )


def image_is_of_version(case: RuleContext) -> Iterator[Problem]:
    """What the engine is made from is of its version, as far as its name says: options and patches follow from it.

    Releases are tagged `vX.Y.Z`, alone or before a platform and a date (sglang, .github/workflows/release-docker*.yml).
    """
    engine = case.profile.engine
    listed = re.match(r"sglang-[a-z]+-([0-9]+\.[0-9]+\.[0-9]+(?:\.post[0-9]+)?)\.txt\Z", engine.requirements or "")
    for key, found in (("image", release_in_name(engine.image or "")), ("requirements", listed and listed[1])):
        if found and found != engine.version:
            yield Problem(
                f"engine.version is {engine.version}, and `engine.{key}` is of sglang {found}",
                case.place("engine", "version"),
                f"`--set engine.version={found}`; or name an engine that has both: `deploy profiles` lists them",
            )


def runtime_can_start(case: RuleContext) -> Iterator[Problem]:
    """There is such a runtime, and what it needs of a profile is there."""
    rules = case.runtimes.get(case.profile.runtime)
    if rules is None:
        hint = did_you_mean(case.profile.runtime, case.runtimes)
        yield Problem(f"there is no runtime `{case.profile.runtime}`", case.place("runtime"), hint)
    for rule in rules or ():
        yield from rule(case)


def flags_are_known(case: RuleContext) -> Iterator[Problem]:
    """sglang's own parser of that version accepts every flag."""
    for name, setting in case.profile.flags.items():
        yield from flag_problems(name, setting.value, case.table, case.place("flags", name))


def flag_values_are_valid(case: RuleContext) -> Iterator[Problem]:
    """sglang takes the values after parsing them, too, and runs what they say."""
    for found in argument_problems(case.arguments):
        yield Problem(found.message, case.place("flags", found.name), found.hint)
    if message := name_problem(case.profile.model.served_name):
        yield Problem(message, case.place("model", "served_name"))
    if message := port_problem(case.profile.server.port, case.profile.engine.version):
        yield Problem(message, case.place("server", "port"))


def secrets_stay_out(case: RuleContext) -> Iterator[Problem]:
    """No secret stands in a profile: it would be rendered, labeled and hashed."""
    for name in case.profile.env:
        if is_secret_name(name):
            yield Problem(
                f"`{name}` looks like a secret and is not written into a profile",
                case.place("env", name),
                "export it in your shell: HF_TOKEN is taken from there, an API key is named by `server.api_key_env`",
            )
    for section, settings in (("env", case.profile.env), ("flags", case.profile.flags)):
        for name, setting in settings.items():
            if any(looks_secret(word) for word in flag_words(setting.value)):
                what = f"the value of `{name}` holds what looks like a secret"
                yield Problem(what, case.place(section, name), "leave it out: plan, scripts and argv would show it")


def public_address_is_allowed(case: RuleContext) -> Iterator[Problem]:
    """Listening beyond this machine takes an API key, or an explicit word."""
    server = case.profile.server
    try:
        address = ipaddress.ip_address(LOOPBACK if server.host == "localhost" else server.host)
    except ValueError:
        yield Problem(
            f"`{server.host}` is not an address", case.place("server", "host"), "such as 127.0.0.1 or 0.0.0.0"
        )
        return
    if not address.is_loopback and server.api_key_env is None and not server.allow_unauthenticated:
        yield Problem(
            f"`{server.host}` can be reached from other machines and the server has no API key",
            case.place("server", "host"),
            "name the variable that holds one (`--set server.api_key_env=SGLANG_KEY`), "
            "or say that you mean it: `--set server.allow_unauthenticated=true`",
        )


def patches_exist(case: RuleContext) -> Iterator[Problem]:
    """A patch that is left out is one the ledger has."""
    known = [patch.id for patch in case.ledger]
    for index, name in enumerate(case.profile.skip_patches):
        if name not in known:
            place = case.place("skip_patches", index)
            yield Problem(f"the ledger has no patch `{name}`", place, did_you_mean(name, known))


def reports_exist(case: RuleContext) -> Iterator[Problem]:
    """A report that is accepted is one that was made."""
    known = [report.id for report in case.blocked_issues]
    for index, name in enumerate(case.profile.allow_known_issues):
        if name not in known:
            place = case.place("allow_known_issues", index)
            yield Problem(f"there is no report `{name}` of a layout known as bad", place, did_you_mean(name, known))


RULES: Final[Sequence[Rule]] = (
    engine_fits_hardware,
    image_is_of_version,
    layout_fits,
    gateway_is_known,
    replicas_have_ports,
    heads_divide,
    weights_fit,
    runtime_can_start,
    flags_are_known,
    flag_values_are_valid,
    secrets_stay_out,
    public_address_is_allowed,
    patches_exist,
    reports_exist,
)
