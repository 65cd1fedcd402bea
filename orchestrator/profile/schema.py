"""The schema of the composed document. Every field says what it means; the reference is generated from here.

Sizes are written as people write them (`288GiB`, `438033728823`); settings (`flags`, `env`, `layout`) say where their
value comes from: `published`, somebody's `recipe`, or our `inferred`, the first two with a source. A bare value is the
author's own and has the origin `user`.
"""

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from orchestrator.core.origin import Origin

_SIZE: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?\Z")
_UNITS: Final = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("k", "M", "G", "T"), 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}


def _bytes(value: object) -> object:
    if isinstance(value, int):
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if not match:
        raise ValueError("expected a size such as `288GiB`, `1.5TB` or a number of bytes")
    return int(float(match["number"]) * _UNITS[match["unit"] or "B"])


def _setting(value: object) -> object:
    if isinstance(value, dict):
        return value
    return {"value": value, "origin": "user", "source": "the profile's author"}


Size = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]


class Strict(BaseModel):
    """Frozen, strict about types, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Setting(Strict):
    """A value with its origin."""

    value: bool | int | float | str = Field(description="the value; `true` is a bare switch, `false` leaves it out")
    origin: Annotated[Origin, Field(strict=False)] = Field(description="published, recipe, inferred or user")
    source: str = Field(default="", description="where it is published or whose recipe it is")
    note: str = Field(default="", description="why, where that is not plain")

    @model_validator(mode="after")
    def _has_source(self) -> "Setting":
        if self.origin in {Origin.PUBLISHED, Origin.RECIPE} and not self.source:
            raise ValueError(f"a value with origin `{self.origin}` names its source")
        return self


SettingField = Annotated[Setting, BeforeValidator(_setting)]


class CountSetting(Setting):
    """A setting that counts something."""

    value: int = Field(ge=1, description="a number of at least 1")


class SwitchSetting(Setting):
    """A setting that is on or off."""

    value: bool = Field(description="true or false")


CountField = Annotated[CountSetting, BeforeValidator(_setting)]
SwitchField = Annotated[SwitchSetting, BeforeValidator(_setting)]


class Ulimit(Strict):
    """A resource limit; -1 is unlimited."""

    soft: int = Field(ge=-1, description="soft limit")
    hard: int = Field(ge=-1, description="hard limit")


class Container(Strict):
    """What a container on this hardware has to be given."""

    devices: list[str] = Field(default=[], description="device nodes, such as /dev/kfd")
    all_gpus: bool = Field(default=False, description="the NVIDIA device request (`--gpus all`)")
    groups: list[str] = Field(default=[], description="groups that own the device nodes, by name; resolved on the host")
    ipc: str | None = Field(default=None, description="IPC namespace, such as `host`")
    shm: Size | None = Field(default=None, description="size of /dev/shm")
    ulimits: dict[str, Ulimit] = Field(default={}, description="resource limits by name")
    security_opt: list[str] = Field(default=[], description="security options, such as seccomp=unconfined")
    cap_add: list[str] = Field(default=[], description="capabilities, such as SYS_PTRACE")


class Hardware(Strict):
    """One node."""

    vendor: Literal["amd", "nvidia", "cpu"] = Field(description="amd, nvidia or cpu")
    arch: str = Field(description="what the compiler calls the GPU: gfx950, sm100; or the machine, x86_64")
    gpus: int = Field(ge=0, description="GPUs in the node")
    compute_units: int = Field(ge=0, description="compute units (CUs, SMs) of one GPU")
    vram: Size = Field(description="memory of one GPU")
    watts: int = Field(ge=0, description="board power of one GPU, W")
    container: Container = Field(default=Container(), description="what a container is given")
    source: str = Field(default="", description="where these facts are published")


class ModelOrigin(Strict):
    """Where the checkpoint comes from."""

    kind: Literal["hub", "generated", "directory"] = Field(description="hub, generated or directory")
    location: str = Field(description="repository id, generator script under images/, or an absolute directory")
    revision: str | None = Field(default=None, description="commit of the repository")


class Moe(Strict):
    """The routed experts of the whole model."""

    hidden_size: int = Field(ge=1, description="model dimension")
    intermediate_size: int = Field(ge=1, description="inner dimension of one expert")
    routed_experts: int = Field(ge=1, description="experts of a layer")
    shared_experts: int = Field(ge=0, description="experts that every token takes")
    experts_per_token: int = Field(ge=1, description="routed experts a token takes")


class Model(Strict):
    """The checkpoint."""

    origin: ModelOrigin = Field(description="where it comes from")
    served_name: str = Field(description="the name clients ask for")
    weights: Size = Field(description="size of all weights")
    quantisation: str = Field(description="quark-mxfp4, nvfp4, fp8, bf16 …")
    context_length: int = Field(ge=1, description="tokens of prompt and answer together")
    layers: int = Field(ge=1, description="transformer layers, without the MTP layer")
    mtp_layer: int | None = Field(
        default=None, description="index of the next-token-prediction layer in the checkpoint"
    )
    gated: bool = Field(default=False, description="needs a token to download")
    moe: Moe | None = Field(default=None, description="the routed experts")
    source: str = Field(default="", description="where these facts are published")


class Engine(Strict):
    """One pinned build of sglang."""

    version: str = Field(pattern=r"^\d+\.\d+\.\d+(\.post\d+)?$", description="sglang's version")
    platform: Literal["rocm", "cuda", "cpu"] = Field(description="rocm, cuda or cpu")
    image: str | None = Field(default=None, description="base image, without digest")
    image_digest: str | None = Field(
        default=None, pattern=r"^sha256:[0-9a-f]{64}$", description="its digest, where one is known"
    )
    template: str = Field(description="Dockerfile template under images/")
    requirements: str | None = Field(default=None, description="pinned requirement file under images/")
    python: str | None = Field(default=None, description="an interpreter that already has the engine")
    source_dir: str = Field(
        default="/sgl-workspace/sglang/python/sglang", description="where the image keeps the package"
    )
    aiter_dir: str | None = Field(default=None, description="where the image keeps aiter")
    aiter_commit: str | None = Field(default=None, description="the aiter commit the image was built with")
    source: str = Field(default="", description="where these facts are published")


class Layout(Strict):
    """How the model is spread over the GPUs."""

    tp: CountField = Field(description="GPUs that share one replica's weights")
    dp: CountField = Field(default=CountSetting(value=1, origin=Origin.INFERRED), description="replicas")
    ep: CountField = Field(default=CountSetting(value=1, origin=Origin.INFERRED), description="expert-parallel ranks")
    dp_attention: SwitchField = Field(
        default=SwitchSetting(value=False, origin=Origin.INFERRED), description="dp splits the same GPUs"
    )


class Server(Strict):
    """The HTTP side."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=30000, ge=1, le=65535, description="port to listen on")
    allow_public: bool = Field(default=False, description="listen beyond this machine without an API key")
    api_key_env: str | None = Field(
        default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="variable of your shell that holds the API key"
    )


class Waiting(Strict):
    """When to give up."""

    silence: int = Field(default=900, ge=1, description="seconds without any progress after which a start has failed")
    grace: int = Field(default=120, ge=0, description="seconds a stop waits for running requests")


class Profile(Strict):
    """A whole profile, after its layers were put together."""

    description: str = Field(default="", description="what it is for, one line")
    runtime: str = Field(default="docker", description="docker or process")
    hardware: Hardware = Field(description="the node")
    model: Model = Field(description="the checkpoint")
    engine: Engine = Field(description="the build of sglang")
    layout: Layout = Field(description="how the model is spread")
    server: Server = Field(default=Server(), description="the HTTP side")
    flags: dict[str, SettingField] = Field(default={}, description="sglang's options, long names without dashes")
    env: dict[str, SettingField] = Field(default={}, description="the server's environment")
    without_patches: list[str] = Field(
        default=[], description="patches to leave out although the ledger calls for them"
    )
    waiting: Waiting = Field(default=Waiting(), description="when to give up")
    accept_known_bad: list[str] = Field(default=[], description="known-bad layouts to run in spite of the reports")
