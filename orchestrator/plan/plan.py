"""The plan: every value of one server.

Sections without choices come unchanged from the profile. Classes are frozen and have no default values, so that no
value is forgotten. Sizes are in bytes, durations in seconds. Tuples without a meaningful order are sorted: equal
plans have equal bytes.
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
from orchestrator.core.validation import type_adapter
from orchestrator.engine.flags import DP_SIZE
from orchestrator.engine.serving import ServingFacts, serving_facts
from orchestrator.plan.units import Role, rank_port
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.profiles.slurm import SlurmSection
from orchestrator.profiles.timeouts import RestartPolicySection, TimeoutsSection

# Valid names of profiles and servers, which appear in image names, container names and paths.
NAME: Final = re.compile(r"(?=.{1,63}\Z)[a-z0-9]+(?:[._-][a-z0-9]+)*\Z")
# The id of a warning in profiles/known_issues/warnings.yaml: speculative decoding ignores sampling parameters.
GREEDY_SPECULATION: Final = "speculation-is-greedy"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One option of the server: `name` is the long form without dashes, `values` is empty for a bare switch."""

    name: str
    values: tuple[str, ...]
    origin: Origin
    source: str

    @property
    def argv(self) -> tuple[str, ...]:
        """The option in an argument vector."""
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
    """The container options that this hardware needs."""

    devices: tuple[str, ...]
    all_gpus: bool  # NVIDIA device request, `docker run --gpus all`
    groups: tuple[str, ...]
    ipc: str | None
    shm_bytes: int | None
    ulimits: tuple[Ulimit, ...]
    security_opt: tuple[str, ...]
    cap_add: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One node. `arch` is the compiler's name of the GPU (`gfx950`, `sm100`), or the CPU's machine name."""

    name: str
    vendor: str  # amd | nvidia | cpu
    arch: str
    gpu_product: str | None  # the GPU's name at cloud providers
    gpus: int
    compute_units: int  # of one GPU
    vram_bytes: int  # of one GPU
    container: ContainerRequirements


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """The source of the checkpoint."""

    source: str  # `hub`, `generated` or `local`
    path: str  # a repository id, a script under images/, or an absolute directory
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
    """A question of the smoke test with its correct answer; `filler_words` words replace `{filler}` in the prompt."""

    prompt: str
    expected: str
    filler_words: int
    max_tokens: int  # of the answer
    origin: Origin
    source: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """The checkpoint and the facts of its architecture that the rules need."""

    name: str
    served_name: str
    checkpoint: ModelSource
    weight_bytes: int
    quantization: str
    context_length: int
    layers: int
    attention_heads: int | None  # None: unknown
    kv_heads: int | None
    sparse_attention: bool
    mtp_layer: int | None  # index of the next-token-prediction layer in the checkpoint
    gated: bool  # needs a token to download
    moe: Moe | None
    questions: tuple[SmokeQuestion, ...]
    accept_length: float | None = None  # published tokens per verification step, for the plan's number of drafts
    architecture: str = ""  # `architectures` of its config.json


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One pinned build of sglang."""

    name: str
    version: str
    platform: str  # rocm | cuda | cpu
    image: str | None  # base image reference, without digest
    image_digest: str | None  # sha256:…; None: unknown
    dockerfile: str  # Dockerfile template under images/, without `.Dockerfile.j2`
    requirements: str | None  # pinned requirement file under images/, for the process runtime
    python: str | None  # an interpreter that has the engine, for the process runtime in a rented pod
    source_dir: str  # of the package `sglang` in the image
    aiter_dir: str | None
    aiter_commit: str | None
    compiled_kernels: str | None = None  # an archive, by a path or an oci:// name, and its digest


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The parallelism of a replica. Without dp-attention each of the `dp` ranks has its own `tp` GPUs."""

    tp: int
    dp: int
    ep: int
    dp_attention: bool
    nodes: int = 1
    dp_option: str = DP_SIZE  # of sglang, that takes `dp`

    @property
    def gpus(self) -> int:
        """GPUs this layout occupies on all nodes (sglang 0.5.14, data_parallel_controller.py:271-298)."""
        return self.tp if self.dp_attention else self.tp * self.dp

    @property
    def label(self) -> str:
        """The layout in short: `TP8`, `TP4×DP2`, `TP16 on 2 nodes`."""
        nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"TP{self.tp}×DP{self.dp}{nodes}" if self.dp > 1 else f"TP{self.tp}{nodes}"


@dataclass(frozen=True, kw_only=True)
class RolePlan:
    """The equal servers of one role, prefill or decode."""

    role: Role
    count: int
    layout: Layout
    flags: tuple[Flag, ...]  # of each; a prefill server has its bootstrap port besides
    bootstrap_ports: tuple[int, ...]  # of each prefill server; none for decode
    host_cache_bytes: int = 0  # of a rank of each
    first_gpu: int | None = None  # as its own flags set it; None: the one after the GPUs of the servers before it


@dataclass(frozen=True, kw_only=True)
class HttpEndpoint:
    """The HTTP endpoint. A plan has the name of the variable with the API key, never the key."""

    host: str
    port: int
    allow_unauthenticated: bool
    api_key_env: str | None
    gateway: str | None = None  # the server whose gateway also routes to this one

    @property
    def url(self) -> str:
        """The base URL on its own host: loopback for a server that listens on every address."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def is_unauthenticated_public(self) -> bool:
        """Whether other hosts can reach it without an API key."""
        return self.api_key_env is None and not ipaddress.ip_address(self.host).is_loopback


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """SGLang's gateway in front of the replicas; it listens on the address of the plan's `server`."""

    version: str  # of smg
    requirements: str  # pinned requirement file under images/
    options: tuple[Flag, ...]  # of `smg launch`
    ports: tuple[int, ...]  # of the replicas, by number
    metrics_port: int  # of the gateway
    one_node: bool  # the replicas share the GPUs and the loopback of one node; else each has its own pod or job


@dataclass(frozen=True, kw_only=True)
class PlannedPatch:
    """One patch of a plan; `kind` is how it acts (diff, config, environment, file).

    The build also gets patches that are not `expected`: the content of the sources decides, not their version.
    """

    id: str
    kind: str
    expected: bool
    reason: str
    input_sha256: str | None  # of the input of a patch of kind `file`; None: no input


@dataclass(frozen=True, kw_only=True)
class DetectedPatches:
    """Unexpected patches that act at a start, according to an image's receipt."""

    ids: frozenset[str] = frozenset()
    env: tuple[EnvVar, ...] = ()


NO_DETECTED_PATCHES: Final = DetectedPatches()


@dataclass(frozen=True, kw_only=True)
class PlanWarning:
    """A warning about a plan that does not prevent a start."""

    id: str
    summary: str
    source: str
    hint: str
    confidence: str = ""  # of a known issue: high | medium | low
    checked: str = ""  # of a known issue: month of the check; date of the sources read

    @property
    def basis(self) -> str:
        """The confidence and check date of a known issue; empty for another warning."""
        return f"confidence {self.confidence}; checked {self.checked}" if self.confidence else ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one server."""

    profile: str
    description: str
    runtime: str
    hardware: Hardware
    model: Model
    engine: Engine
    layout: Layout  # of each replica
    replicas: int
    gateway: Gateway | None  # None for one replica
    server: HttpEndpoint
    flags: tuple[Flag, ...]
    env: tuple[EnvVar, ...]
    patches: tuple[PlannedPatch, ...]
    warnings: tuple[PlanWarning, ...]
    wrong_answers: tuple[PlanWarning, ...]  # known causes of wrong answers, shown if a smoke test finds one
    nondeterministic: tuple[PlanWarning, ...]  # known reasons why two greedy answers may differ
    timeouts: TimeoutsSection
    restart_policy: RestartPolicySection
    kubernetes: KubernetesSection | None  # None for other runtimes
    slurm: SlurmSection | None  # None for other runtimes
    prebuilt_image: str | None  # `name@sha256:…`; None: an image is built
    soak: float = 0.0  # minutes of mixed load in the smoke test
    role: Role = Role.SERVER  # of this server
    roles: tuple[RolePlan, ...] = ()  # prefill, then decode, if disaggregated; `replicas` counts the servers of both
    transfer: str = ""  # `BACKEND over NETWORK` between the roles
    host_cache_bytes: int = 0  # of a rank's tier of the KV cache in the host's memory, all pools

    @cached_property
    def serving(self) -> ServingFacts:
        """The meaning of the flags; derived, so not part of the plan's text."""
        return serving_facts(
            {flag.name: flag.values for flag in self.flags},
            context_length=self.model.context_length,
            platform=self.engine.platform,
            sparse_attention=self.model.sparse_attention,
            architecture=self.model.architecture,
        )

    @property
    def gpus(self) -> range:
        """The indexes of the GPUs in use on each node; empty on a CPU."""
        if self.roles and self.gateway and self.gateway.one_node:
            gpus = [server.gpus for server in self.servers.values()]
            return range(min(item.start for item in gpus), max(item.stop for item in gpus), gpus[0].step)
        first, step = self.serving.first_gpu, self.serving.gpu_step
        of_roles = sum(role.count * role.layout.gpus for role in self.roles)
        count = (of_roles or self.layout.gpus * self.replicas) * self.serving.stages // self.layout.nodes
        return range(first, first + (0 if self.hardware.vendor == "cpu" else count) * step, step)

    @property
    def gpu_count(self) -> int:
        """The number of GPUs in use on all nodes."""
        return len(self.gpus) * self.layout.nodes

    @property
    def rank_port(self) -> int:
        """The port at which the ranks of several nodes find each other, on the node of rank 0."""
        return rank_port(self.server.port)

    @property
    def servers(self) -> "dict[str, Plan]":
        """The plan of each server to start, by name and in order; the gateway, if any, starts after them."""
        from orchestrator.plan.replicas import replica_plans  # noqa: PLC0415 - it imports this module

        return dict(zip(self.server_names, replica_plans(self), strict=True))

    @property
    def server_names(self) -> tuple[str, ...]:
        """The name of each server behind the gateway, by its number, and of its folder: `replica-1`, `prefill-1`."""
        counts = {str(role.role): role.count for role in self.roles} or {"replica": self.replicas}
        return tuple(f"{kind}-{number}" for kind, count in counts.items() for number in range(1, count + 1))

    def label_of(self, number: int) -> str:
        """Return the name of a server behind the gateway in a sentence: `replica 1 of 2`, `prefill 1 of 1`."""
        kind, _, index = self.server_names[number - 1].rpartition("-")
        return f"{kind} {index} of {sum(name.startswith(kind) for name in self.server_names)}"

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self, dict_factory=_plain)

    def to_json(self) -> str:
        """Return JSON text with sorted keys, one value per line, and a newline at the end."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """Parse the text of `to_json`. Raises ValueError for any other text."""
        return type_adapter(Plan).validate_json(text)  # type: ignore[no-any-return]

    @property
    def digest(self) -> str:
        """sha256 of what shapes the server, in hex; `up` compares it to detect a server that already runs this plan.

        Descriptions, known issues and the settings of the smoke test may change while a server runs.
        """
        model = dataclasses.replace(self.model, questions=(), accept_length=None, architecture="")
        shaping = dataclasses.replace(
            self, description="", model=model, warnings=(), wrong_answers=(), nondeterministic=(), soak=0.0
        )
        return hashlib.sha256(shaping.to_json().encode()).hexdigest()

    @property
    def digest_without_port(self) -> str:
        """The `digest` without the server's port."""
        return dataclasses.replace(self, server=dataclasses.replace(self.server, port=1)).digest


def _plain(fields: list[tuple[str, object]]) -> dict[str, object]:
    """Convert the fields of a dataclass, pydantic sections to mappings."""
    return {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in fields}
