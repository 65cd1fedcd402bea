"""The plan: everything that has been decided about one server, and nothing that has not.

Where nothing is decided it holds the profile's own section.

Frozen, without default values: a planner that forgets a decision does not construct. Sizes are bytes, durations
are seconds; sequences are tuples sorted where their order carries no meaning, so equal plans are equal bytes.
"""

import dataclasses
import hashlib
import ipaddress
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pydantic import BaseModel

from orchestrator.core.origin import Origin
from orchestrator.engine.serving import ServingFacts, serving_facts
from orchestrator.plan.units import UnitPlan, unit_plans
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.profiles.slurm import SlurmSection
from orchestrator.profiles.timeouts import RestartPolicySection, TimeoutsSection

# What a profile and a server may be called: the name stands in image names, container names and paths.
NAME: Final = re.compile(r"(?=.{1,63}\Z)[a-z0-9]+(?:[._-][a-z0-9]+)*\Z")
GREEDY: Final = (
    "speculation-is-greedy"  # the warning of that id (profiles/known_issues/warnings.yaml): nothing is sampled
)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One option of the server: `name` is the long form without dashes, `values` are empty for a bare switch."""

    name: str
    values: tuple[str, ...]
    origin: Origin
    source: str

    @property
    def argv(self) -> tuple[str, ...]:
        """The option as it stands in an argv."""
        return (f"--{self.name}", *self.values)


@dataclass(frozen=True, kw_only=True)
class EnvVar:
    """One variable of the server's environment."""

    name: str
    value: str
    origin: Origin
    source: str


@dataclass(frozen=True, kw_only=True)
class Ulimit:
    """One resource limit of a container, -1 for unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, kw_only=True)
class ContainerRequirements:
    """What a container on this hardware has to be given to see its GPUs."""

    devices: tuple[str, ...]
    all_gpus: bool  # the NVIDIA device request, `docker run --gpus all`
    groups: tuple[str, ...]
    ipc: str | None
    shm_bytes: int | None
    ulimits: tuple[Ulimit, ...]
    security_opt: tuple[str, ...]
    cap_add: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One node. `arch` is what the compiler calls the GPU (`gfx950`, `sm100`), or the CPU's machine name."""

    name: str
    vendor: str  # amd | nvidia | cpu
    arch: str
    gpu_product: str | None  # what who rents it out calls the GPU
    gpus: int
    compute_units: int  # of one GPU
    vram_bytes: int  # of one GPU
    container: ContainerRequirements


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where the checkpoint comes from.

    `source` is `hub` (path: repository id), `generated` (path: the generator script under images/) or `local` (path: an
    absolute directory).
    """

    source: str
    path: str
    revision: str | None


@dataclass(frozen=True, kw_only=True)
class Moe:
    """The shape of the routed experts, for the whole model (not per rank)."""

    hidden_size: int
    intermediate_size: int
    routed_experts: int
    shared_experts: int
    experts_per_token: int


@dataclass(frozen=True, kw_only=True)
class SmokeQuestion:
    """What the smoke test asks, and the one right answer; `filler_words` stand where the question says `{filler}`."""

    prompt: str
    expected: str
    filler_words: int
    max_tokens: int  # that the answer may have
    origin: Origin
    source: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """The checkpoint and what the rules need to know of its architecture."""

    name: str
    served_name: str
    checkpoint: ModelSource
    weight_bytes: int
    quantization: str
    context_length: int
    layers: int
    attention_heads: int | None  # None where the profile does not say
    kv_heads: int | None
    sparse_attention: bool
    mtp_layer: int | None  # index of the next-token-prediction layer in the checkpoint
    gated: bool  # needs a token to download
    moe: Moe | None
    questions: tuple[SmokeQuestion, ...]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One pinned build of sglang."""

    name: str
    version: str
    platform: str  # rocm | cuda | cpu
    image: str | None  # base image reference, without digest
    image_digest: str | None  # sha256:..., where one is known
    image_fallbacks: tuple[str, ...]  # to take where that one is gone and no digest is pinned
    dockerfile: str  # Dockerfile template under images/, without `.Dockerfile.j2`
    requirements: str | None  # pinned requirement file under images/, for the process runtime
    python: str | None  # an interpreter that already has the engine, for the process runtime inside a rented pod
    source_dir: str  # where the image keeps the package `sglang`
    aiter_dir: str | None
    aiter_commit: str | None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the model is spread. Without dp-attention each of the `dp` replicas has `tp` GPUs of its own."""

    tp: int
    dp: int
    ep: int
    dp_attention: bool

    @property
    def gpus(self) -> int:
        """GPUs this layout occupies (sglang 0.5.14, data_parallel_controller.py:271-298)."""
        return self.tp if self.dp_attention else self.tp * self.dp

    @property
    def shown(self) -> str:
        """As the field writes it, `TP8` or `TP4×DP2`."""
        return f"TP{self.tp}×DP{self.dp}" if self.dp > 1 else f"TP{self.tp}"


@dataclass(frozen=True, kw_only=True)
class HttpEndpoint:
    """The HTTP side. The API key itself is never part of a plan, only the name of the variable that holds it."""

    host: str
    port: int
    allow_unauthenticated: bool
    api_key_env: str | None

    @property
    def url(self) -> str:
        """The base URL on the machine it runs on: a server that listens everywhere is reached on loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def answers_everyone(self) -> bool:
        """Whether other machines reach it, and it asks nobody for a key."""
        return self.api_key_env is None and not ipaddress.ip_address(self.host).is_loopback


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """SGLang's gateway before several equal servers: it has the address of the plan's `server`."""

    version: str  # of smg
    requirements: str  # pinned requirement file under images/
    options: tuple[Flag, ...]  # of `smg launch`
    ports: tuple[int, ...]  # of the replicas, in their order
    metrics_port: int  # of the gateway's own counters
    one_node: bool  # the replicas share its GPUs and its loopback; else each has a place of its own: a pod, a job


@dataclass(frozen=True, kw_only=True)
class PlannedPatch:
    """One patch this plan carries; `kind` is how it acts (diff, config, environment, file).

    One that is not `expected` travels into the build all the same: what stands in the sources decides, not the version
    they are called by.
    """

    id: str
    kind: str
    expected: bool
    reason: str
    input_sha256: str | None  # of the file a patch of kind `file` was given; None for others, and where none was given


@dataclass(frozen=True, kw_only=True)
class FoundPatches:
    """Patches that the sources need at a start although their version did not say so, as an image's receipt tells."""

    ids: frozenset[str] = frozenset()
    env: tuple[EnvVar, ...] = ()


AS_PLANNED: Final = FoundPatches()


@dataclass(frozen=True, kw_only=True)
class PlanWarning:
    """What was reported of plans like this one, or contradicts itself in it, and is no reason to refuse it."""

    id: str
    summary: str
    source: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything decided."""

    profile: str
    description: str
    runtime: str
    hardware: Hardware
    model: Model
    engine: Engine
    layout: Layout  # of each replica
    replicas: int  # equal servers
    gateway: Gateway | None  # before several replicas; None before one
    server: HttpEndpoint
    flags: tuple[Flag, ...]
    env: tuple[EnvVar, ...]
    patches: tuple[PlannedPatch, ...]
    warnings: tuple[PlanWarning, ...]
    wrong_answers: tuple[PlanWarning, ...]  # what makes answers of plans like this one wrong, told where they are
    nondeterministic: tuple[PlanWarning, ...]  # why two greedy answers may rightly differ
    timeouts: TimeoutsSection
    restart_policy: RestartPolicySection
    kubernetes: KubernetesSection | None  # None for other runtimes
    slurm: SlurmSection | None  # None for other runtimes
    prebuilt_image: str | None  # that is started as it is, `name@sha256:…`; None: one is built

    def flag(self, name: str) -> str | None:
        """The value of an option, `""` for a bare switch, None where the plan does not set it; several by spaces."""
        return next((" ".join(flag.values) for flag in self.flags if flag.name == name), None)

    @cached_property
    def serving(self) -> ServingFacts:
        """What the flags mean: it follows from them, so that it is no part of the plan's text."""
        return serving_facts(
            {flag.name: flag.values for flag in self.flags},
            context_length=self.model.context_length,
            platform=self.engine.platform,
            sparse_attention=self.model.sparse_attention,
        )

    @property
    def gpus(self) -> range:
        """The GPUs it takes, by index: from the first on, or as the flags say; none on a CPU."""
        first, step = self.serving.first_gpu, self.serving.gpu_step
        count = 0 if self.hardware.vendor == "cpu" else self.layout.gpus * self.serving.stages
        return range(first, first + count * self.replicas * step, step)

    @property
    def units(self) -> tuple[UnitPlan, ...]:
        """What is started for it, in this order."""
        return unit_plans(self)

    def to_dict(self) -> dict[str, object]:
        """The plan as plain JSON-able data."""
        return dataclasses.asdict(self, dict_factory=_plain)

    def to_json(self) -> str:
        """The plan as text: sorted keys, one value a line, newline at the end."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """Read `to_json` back. Raises ValueError for anything else."""
        from pydantic import TypeAdapter  # noqa: PLC0415 - 0.1 s, and only what reads plans back needs it

        return TypeAdapter(cls).validate_json(text)

    @property
    def digest(self) -> str:
        """sha256 of the plan's text, hex: what `up` compares to tell "already up" from "another plan"."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def digest_on_any_port(self) -> str:
        """As `digest`, the same whatever port the server has."""
        return dataclasses.replace(self, server=dataclasses.replace(self.server, port=1)).digest


def _plain(fields: list[tuple[str, object]]) -> dict[str, object]:
    """The fields of a dataclass, a section among them as a mapping."""
    return {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in fields}
