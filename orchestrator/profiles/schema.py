"""The schema of a merged profile. Every field has a description; the reference is generated from them.

Sizes have units (`288GiB`) or are bytes (`438033728823`). Settings (`flags`, `env`, `layout`) have an origin:
`published`, a `recipe`, `measured`, or `inferred` by this project; the others need a source. A bare value has the
origin `user`. Texts are single lines: they end up in scripts, labels and comments.
"""

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, ValidationInfo, field_validator, model_validator

from orchestrator.core.catalog import is_valid_name
from orchestrator.core.origin import Origin
from orchestrator.core.safe_paths import RepositoryId
from orchestrator.core.validation import AbsolutePath, ImageName, StrictModel, Text, VariableName, Word
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.profiles.settings import CountField, CountSetting, EnvField, FlagField, SwitchField, SwitchSetting
from orchestrator.profiles.slurm import SlurmSection
from orchestrator.profiles.timeouts import RestartPolicySection, TimeoutsSection

_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_FLAGS: Final = "sglang's options by long name, without dashes"
_ENV: Final = "environment of the server"
_GATEWAY: Final = "options of SGLang's gateway by long name, without dashes"
FILLER: Final = "{filler}"  # in a question: replaced with its filler
MAX_FILLER: Final = 1 << 17  # words; the largest prefill chunk in a recipe for sglang has as many tokens


if TYPE_CHECKING:
    Size: TypeAlias = int
else:
    Size = Annotated[ByteSize, AfterValidator(int)]  # `288GiB`, `1.5TB`, or a number of bytes


class UlimitSection(StrictModel):
    """A resource limit; -1 is unlimited."""

    soft: int = Field(ge=-1, description="soft limit")
    hard: int = Field(ge=-1, description="hard limit")


class ContainerSection(StrictModel):
    """Container options that this hardware needs."""

    devices: list[Word] = Field(default=[], description="device nodes, such as /dev/kfd")
    all_gpus: bool = Field(default=False, description="NVIDIA's `--gpus all`")
    groups: list[Word] = Field(default=[], description="names of the device nodes' groups on the host")
    ipc: Word | None = Field(default=None, description="IPC namespace, such as `host`")
    shm_size: Size | None = Field(default=None, description="size of `/dev/shm`")
    ulimits: dict[Word, UlimitSection] = Field(default={}, description="resource limits by name")
    security_opt: list[Word] = Field(default=[], description="security options, such as seccomp=unconfined")
    cap_add: list[Word] = Field(default=[], description="capabilities, such as SYS_PTRACE")


class HardwareSection(StrictModel):
    """One node."""

    vendor: Literal["amd", "nvidia", "cpu"] = Field(description="amd, nvidia or cpu")
    arch: Word = Field(description="such as gfx950, sm100 or x86_64")
    gpu_product: Word | None = Field(default=None, description="cloud providers' name, such as MI355X")
    gpus: int = Field(ge=0, description="GPUs in the node")
    compute_units: int = Field(ge=0, description="CUs or SMs per GPU")
    vram: Size = Field(description="memory per GPU")
    network: Word | None = Field(default=None, description="RDMA NICs to other nodes: ainic, thor2, connectx")
    container: ContainerSection = Field(default=ContainerSection(), description="options of the container")
    source: Text = Field(default="", description="source of these facts")
    offers: dict[Word, list[Word]] = Field(default={}, description="dstack's instance types, by backend")


def _named_in_a_catalog(name: str) -> str:
    if not is_valid_name(name):
        raise ValueError("expected the name of a file under images/: letters, digits, `_`, `.`, `+`, `-`, and `/`")
    return name


CatalogName: TypeAlias = Annotated[Word, AfterValidator(_named_in_a_catalog)]


class CheckpointSection(StrictModel):
    """Where the checkpoint comes from."""

    source: Literal["hub", "generated", "local"] = Field(description="hub, generated or local")
    path: Text = Field(pattern="^[^-]", description="repository, script under images/, or absolute directory")
    revision: Word | None = Field(default=None, description="commit, its first digits, or branch")

    @field_validator("path")
    @classmethod
    def _is_of_its_source(cls, path: str, info: ValidationInfo) -> str:
        source = info.data.get("source")
        if source == "generated" and not is_valid_name(path):
            raise ValueError("expected the name of a script under images/")
        if source == "local" and not path.startswith("/"):
            raise ValueError("expected an absolute path: a server is started in another directory")
        if source == "hub":
            RepositoryId(path)
        return path


class MoeSection(StrictModel):
    """The routed experts of the whole model."""

    hidden_size: int = Field(ge=1, description="model dimension")
    intermediate_size: int = Field(ge=1, description="inner dimension of one expert")
    routed_experts: int = Field(ge=1, description="experts of a layer")
    shared_experts: int = Field(ge=0, description="experts that every token uses")
    experts_per_token: int = Field(ge=1, description="routed experts per token")


def _filler(value: object) -> object:
    if value != "chunk" and (type(value) is not int or not 0 <= value <= MAX_FILLER):
        raise ValueError(f"expected `chunk`, or a number of words up to {MAX_FILLER}")
    return value


class QuestionSection(StrictModel):
    """A question that the smoke test asks in a chat, at temperature 0 without thinking, with its only right answer."""

    prompt: Text = Field(min_length=1, description="prompt; filler text replaces `{filler}`")
    expected: Text = Field(min_length=1, description="answer, without regard to case, white space and final full stop")
    filler_words: Annotated[int | Literal["chunk"], BeforeValidator(_filler, int | Literal["chunk"])] = Field(
        default=0, description="number of words; `chunk`: more than a prefill chunk"
    )
    max_tokens: int = Field(default=32, ge=1, le=512, description="maximum tokens to generate")
    origin: Origin = Field(default=Origin.USER, description="published, recipe, measured, inferred or user")
    source: Text = Field(default="", description="source of the question")

    @model_validator(mode="after")
    def _has_filler_slot(self) -> "QuestionSection":
        if (self.filler_words != 0) != (FILLER in self.prompt):
            raise ValueError(f"`{FILLER}` and `filler_words` require each other")
        return self


class LinearSection(StrictModel):
    """Layers with linear attention (GDN, KDA) or Mamba: a state per request, and nothing per token."""

    layers: int = Field(ge=1, description="layers without a cache")
    key_heads: int = Field(ge=1, description="key heads")
    value_heads: int = Field(ge=1, description="value heads")
    head_dim: int = Field(ge=1, description="width of a value head")
    key_dim: int | None = Field(default=None, ge=1, description="width of a key head or Mamba state, if it differs")
    conv_kernel: int = Field(ge=2, description="convolution width")


class CompressedSection(StrictModel):
    """Compressed attention (DeepSeek-V4): layers that keep one entry of several tokens, and a window in every layer."""

    ratio_1: int = Field(default=0, ge=0, description="layers that keep each token for others (V4.1)")
    ratio_2: int = Field(default=0, ge=0, description="layers that compress 2 tokens (V4.1)")
    ratio_4: int = Field(default=0, ge=0, description="layers that compress 4 tokens")
    ratio_128: int = Field(default=0, ge=0, description="layers that compress 128 tokens")
    window: int = Field(ge=1, description="uncompressed tokens")
    rope_dim: int = Field(ge=1, description="rotary width")

    @model_validator(mode="after")
    def _is_v4_or_v4_1(self) -> "CompressedSection":
        if bool(self.ratio_1 + self.ratio_2) == bool(self.ratio_4 + self.ratio_128):
            raise ValueError("expected `ratio_4` and `ratio_128`, or `ratio_1` and `ratio_2`")
        return self


class KvCacheSection(StrictModel):
    """The KV cache of a token, by the names of the checkpoint's config.json: heads, or a latent (MLA)."""

    head_dim: int | None = Field(default=None, ge=1, description="width of a key head")
    v_head_dim: int | None = Field(default=None, ge=1, description="width of a value head, if it differs")
    kv_lora_rank: int | None = Field(default=None, ge=1, description="width of the latent")
    qk_rope_head_dim: int | None = Field(default=None, ge=0, description="width of the rotary part")
    index_head_dim: int | None = Field(default=None, ge=1, description="width of the indexer's keys (DSA)")
    index_layers: int | None = Field(default=None, ge=1, description="layers with an indexer, if not all")
    index_kpool: int | None = Field(default=None, ge=1, description="tokens per indexer key")
    attention_layers: int | None = Field(default=None, ge=1, description="layers with attention, if not all others")
    linear: LinearSection | None = Field(default=None, description="the layers with linear attention")
    counts_draft: bool = Field(default=True, description="sglang counts the MTP layer when it sizes the cache")
    compressed: CompressedSection | None = Field(default=None, description="compressed attention")
    sliding_window: int | None = Field(default=None, ge=1, description="tokens in the sliding window")
    sliding_layers: int | None = Field(default=None, ge=1, description="layers with a sliding window")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "KvCacheSection":
        latent = (self.kv_lora_rank, self.qk_rope_head_dim)
        if (self.head_dim is None) == (None in latent) or (self.head_dim is not None and latent != (None, None)):
            raise ValueError("expected `head_dim`, or `kv_lora_rank` and `qk_rope_head_dim`")
        if self.head_dim is None and self.v_head_dim is not None:
            raise ValueError("latent attention has no `v_head_dim`: the latent holds keys and values")
        if self.head_dim and self.index_head_dim and not (self.index_layers or self.compressed):
            raise ValueError("`index_head_dim` with `head_dim` needs `index_layers` or `compressed`")
        if (self.sliding_window is None) != (self.sliding_layers is None) or (
            self.sliding_window and not self.head_dim
        ):
            raise ValueError("`sliding_window`, `sliding_layers` and `head_dim` require each other")
        return self


class ModelSection(StrictModel):
    """The checkpoint."""

    checkpoint: CheckpointSection = Field(description="source of the checkpoint")
    served_name: Word = Field(description="name of the model in requests")
    weights_size: Size = Field(ge=1, description="size of all weights")
    architecture: Word = Field(description="`architectures` of its config.json; known issues depend on it")
    quantization: Word = Field(description="quark-mxfp4, nvfp4, fp8, bf16 …")
    context_length: int = Field(ge=1, description="maximum tokens, prompt and answer")
    layers: int = Field(ge=1, description="layers without the MTP layer")
    attention_heads: int | None = Field(default=None, ge=1, description="query heads")
    kv_heads: int | None = Field(
        default=None, ge=1, description="key-value heads, if fewer; none with latent attention"
    )
    sparse_attention: bool = Field(default=False, description="DeepSeek's (DSA)")
    mtp_layer: int | None = Field(default=None, description="index of the MTP layer in the checkpoint")
    gated: bool = Field(default=False, description="needs a token to download")
    mtp_weights_size: Size | None = Field(default=None, description="part of `weights_size`; only speculation loads it")
    moe: MoeSection | None = Field(default=None, description="the routed experts")
    kv_cache: KvCacheSection | None = Field(
        default=None, description="shape of the KV cache; without it capacity is not computed"
    )
    questions: tuple[QuestionSection, ...] = Field(
        default=(), description="questions of the smoke test with correct answers; without them answers are not checked"
    )
    accept_lengths: dict[int, float] = Field(
        default={}, description="published tokens per verification, by draft steps"
    )
    source: Text = Field(default="", description="source of these facts")

    @model_validator(mode="after")
    def _sparse_attention_has_an_indexer(self) -> "ModelSection":
        cache = self.kv_cache
        if cache and self.sparse_attention != bool(cache.kv_lora_rank and cache.index_head_dim):
            raise ValueError("`kv_cache.index_head_dim` is for `sparse_attention: true`, and required there")
        if cache and max(cache.sliding_layers or 0, cache.linear.layers if cache.linear else 0) >= self.layers:
            raise ValueError(
                "`sliding_layers` and `linear.layers` are fewer than `layers`: some layer keeps all tokens"
            )
        return self


class EngineSection(StrictModel):
    """One pinned build of sglang."""

    version: Text = Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?$", description="sglang's version")
    platform: Literal["rocm", "cuda", "cpu"] = Field(description="rocm, cuda or cpu")
    image: ImageName | None = Field(default=None, description="base image without digest")
    image_digest: Text | None = Field(default=None, pattern=f"^{_DIGEST}$", description="digest of the image")
    dockerfile: CatalogName = Field(description="template under images/")
    requirements: CatalogName | None = Field(default=None, description="package list under images/")
    python: Text | None = Field(default=None, pattern="^[^-]", description="Python that has the engine")
    source_dir: AbsolutePath = Field(default="/sgl-workspace/sglang/python/sglang", description="`sglang` in the image")
    aiter_dir: AbsolutePath | None = Field(default=None, description="aiter's directory in the image")
    aiter_commit: Word | None = Field(default=None, description="aiter's commit in the image")
    compiled_kernels: Text | None = Field(
        default=None,
        pattern=f"^(oci://[^@]+|/[^@]*)@{_DIGEST}$",
        description="archive: /FILE@sha256:… or oci://HOST/NAME@sha256:…",
    )
    source: Text = Field(default="", description="source of these facts")


class _CatalogFile(StrictModel):
    flags: dict[Text, FlagField] = Field(default={}, description=_FLAGS)
    env: dict[VariableName, EnvField] = Field(default={}, description=_ENV)


class HardwareFile(_CatalogFile, HardwareSection):
    """A file under profiles/hardware: one node, and the settings that follow from it."""


class ModelFile(_CatalogFile, ModelSection):
    """A file under profiles/models: one checkpoint, and the settings that follow from it."""


class EngineFile(_CatalogFile, EngineSection):
    """A file under profiles/engines: one build of sglang, and the settings that follow from it."""


class RoleSection(StrictModel):
    """The servers of one role. Keys that are not set here have the profile's values."""

    replicas: int = Field(default=1, ge=1, le=32, description="servers of this role")
    tp: CountField | None = Field(default=None, description="`layout.tp` of this role")
    dp: CountField | None = Field(default=None, description="`layout.dp` of this role")
    ep: CountField | None = Field(default=None, description="`layout.ep` of this role")
    dp_attention: SwitchField | None = Field(default=None, description="`layout.dp_attention` of this role")
    nodes: CountField | None = Field(default=None, description="`layout.nodes` of this role")
    flags: dict[Text, FlagField | None] = Field(
        default={}, description="flags of this role; `null` omits a flag of both roles"
    )


class TransferSection(StrictModel):
    """The transfer of the KV cache from prefill to decode servers."""

    backend: Literal["mooncake", "nixl", "mori"] = Field(default="mooncake", description="mooncake, nixl or mori")
    network: Word = Field(description="tcp, or an RDMA NIC: ainic, thor2, connectx")


class LayoutSection(StrictModel):
    """The distribution of the model over the GPUs."""

    tp: CountField = Field(description="GPUs that share the weights, over all nodes")
    dp: CountField = Field(default=CountSetting(value=1, origin=Origin.INFERRED), description="data-parallel ranks")
    ep: CountField = Field(default=CountSetting(value=1, origin=Origin.INFERRED), description="expert-parallel ranks")
    dp_attention: SwitchField = Field(
        default=SwitchSetting(value=False, origin=Origin.INFERRED), description="`dp` ranks split the `tp` GPUs"
    )
    nodes: CountField = Field(default=CountSetting(value=1, origin=Origin.INFERRED), description="nodes of one replica")
    prefill: RoleSection | None = Field(default=None, description="servers that only read prompts; needs `decode`")
    decode: RoleSection | None = Field(default=None, description="servers that only generate; needs `prefill`")
    transfer: TransferSection | None = Field(default=None, description="how the KV cache crosses between the roles")


class ServerSection(StrictModel):
    """The HTTP side."""

    host: Text = Field(default="127.0.0.1", description="address")
    port: int = Field(default=30000, ge=1, le=65535, description="port")
    allow_unauthenticated: bool = Field(default=False, description="allow a public address without an API key")
    api_key_env: Text | None = Field(
        default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="variable with the API key"
    )
    gateway: Text | None = Field(default=None, description="server whose gateway also routes this model")


class Profile(StrictModel):
    """A whole profile, after its layers were put together."""

    description: Text = Field(default="", description="purpose, in one line")
    runtime: Word = Field(default="docker", description="how servers run, such as docker or process")
    workload: Word | None = Field(default=None, description="expected load")
    hardware: HardwareSection = Field(description="the node")
    model: ModelSection = Field(description="the checkpoint")
    engine: EngineSection = Field(description="the build of sglang")
    layout: LayoutSection = Field(description="parallelism of a replica")
    replicas: int = Field(default=1, ge=1, le=64, description="equal servers, behind a gateway")
    gateway: dict[Text, FlagField] = Field(default={}, description=_GATEWAY)
    server: ServerSection = Field(default=ServerSection(), description="the HTTP endpoint")
    flags: dict[Text, FlagField] = Field(default={}, description=_FLAGS)
    env: dict[VariableName, EnvField] = Field(default={}, description=_ENV)
    skip_patches: list[Text] = Field(default=[], description="ids of patches")
    timeouts: TimeoutsSection = Field(default=TimeoutsSection(), description="timeouts of start and stop")
    restart_policy: RestartPolicySection = Field(
        default=RestartPolicySection(), description="restart policy of `deploy watch`"
    )
    soak: float = Field(default=0.0, ge=0, le=10080, description="minutes of mixed load in the smoke test")
    kubernetes: KubernetesSection = Field(default=KubernetesSection(), description="settings for `runtime: kubernetes`")
    slurm: SlurmSection = Field(default=SlurmSection(), description="settings for `runtime: slurm`")
    allow_known_issues: list[Text] = Field(default=[], description="ids of known issues")
