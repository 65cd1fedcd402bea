"""An image's configuration: the variables that every container of it starts with, and its labels."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from orchestrator.core.subprocesses import CompletedProgram, run_or_127
from orchestrator.core.text import parse_json
from orchestrator.hosts.daemon import docker_endpoint
from orchestrator.images.client import DockerCli

# Prefixes of what steers an engine and its collectives; `PATH` and the like say nothing of it.
_OF_THE_ENGINE: Final = ("AITER_", "AMD_", "CUDA_", "GPU_", "HIP_", "HSA_", "MIOPEN_", "MORI_", "NCCL_", "NVTE_")
_OF_SGLANG: Final = ("PYTORCH_", "RCCL_", "ROCM_", "SGLANG_", "SGL_", "TORCH", "TRITON_", "VLLM_")
_LIMIT: Final = 2.0  # seconds a daemon that is there may take


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """What is known of an image, by the name it was asked for under."""

    reference: str
    digest: str  # of its manifest in the registry; empty for an image that no registry knows
    env: Mapping[str, str]
    labels: Mapping[str, str]

    @classmethod
    def of(cls, reference: str, digest: str, config: Mapping[str, object]) -> "ImageConfig":
        """From the `config` of an image as registries and docker have it. Raises ValueError, TypeError for another."""
        env, labels = config.get("Env") or [], config.get("Labels") or {}
        if not isinstance(env, list) or not isinstance(labels, dict):
            raise TypeError("`Env` is no list, or `Labels` no mapping")
        pairs = (str(entry).partition("=") for entry in env)
        return cls(
            reference=reference,
            digest=digest,
            env={name: value for name, _, value in pairs},
            labels={str(name): str(text) for name, text in labels.items()},
        )

    @classmethod
    def from_json(cls, text: str) -> "ImageConfig":
        """Read `to_json` back. Raises ValueError, KeyError, TypeError for anything else."""
        data = parse_json(text)
        return cls(reference=data["reference"], digest=data["digest"], env=data["env"], labels=data["labels"])

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @property
    def engine_env(self) -> dict[str, str]:
        """The variables that steer an engine and its collectives, sorted."""
        return {name: self.env[name] for name in sorted(self.env) if name.startswith(_OF_THE_ENGINE + _OF_SGLANG)}


def local_config(reference: str) -> ImageConfig | None:
    """The configuration of an image on this machine; None where it is not there, or no daemon of this machine answers.

    One at the other end of a connection is not asked: this is for what has to be told at once.
    """
    if not docker_endpoint().startswith("unix://"):
        return None
    return _inspected(reference, run_or_127(["docker", "image", "inspect", reference], timeout=_LIMIT))


def docker_config(docker: DockerCli, reference: str) -> ImageConfig | None:
    """The configuration of an image on the docker host, None where it is not there."""
    return _inspected(reference, docker.run("image", "inspect", reference))


def _inspected(reference: str, said: CompletedProgram) -> ImageConfig | None:
    try:
        [image] = parse_json(said.stdout) if said.ok else [None]
        if image is None:
            return None
        digest = next((name.partition("@")[2] for name in image.get("RepoDigests") or ()), "")
        return ImageConfig.of(reference, digest, image["Config"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
