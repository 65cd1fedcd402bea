"""The configuration of an image: the environment variables of its containers, and its labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.core.subprocesses import CompletedProgram, run_or_127
from orchestrator.core.text import parse_json
from orchestrator.hosts.daemon import docker_endpoint
from orchestrator.images.client import DockerCli

# Prefixes of variables that configure an engine or its collectives; others, such as `PATH`, are irrelevant.
_ENGINE_PREFIXES: Final = (
    *("AITER_", "AMD_", "CUDA_", "GPU_", "HIP_", "HSA_", "MIOPEN_", "MORI_", "NCCL_", "NVTE_"),
    *("PYTORCH_", "RCCL_", "ROCM_", "SGLANG_", "SGL_", "TORCH", "TRITON_", "VLLM_"),
)
_TIMEOUT_S: Final = 2.0  # for the local daemon to respond


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The configuration of an image, with the reference under which it was requested."""

    reference: str
    digest: str  # of the manifest in its registry; empty if no registry has the image
    env: Mapping[str, str]
    labels: Mapping[str, str]

    @classmethod
    def of(cls, reference: str, digest: str, config: Mapping[str, object]) -> "ImageConfig":
        """Parse the `config` object of an image from a registry or docker. Raises TypeError if it is malformed."""
        env, labels = config.get("Env") or [], config.get("Labels") or {}
        if not isinstance(env, list) or not isinstance(labels, dict):
            raise TypeError("`Env` is not a list, or `Labels` is not a mapping")
        pairs = (str(entry).partition("=") for entry in env)
        return cls(
            reference=reference,
            digest=digest,
            env={name: value for name, _, value in pairs},
            labels={str(name): str(text) for name, text in labels.items()},
        )

    @property
    def engine_env(self) -> dict[str, str]:
        """Variables that configure an engine or its collectives, sorted by name."""
        return {name: self.env[name] for name in sorted(self.env) if name.startswith(_ENGINE_PREFIXES)}


def local_config(reference: str) -> ImageConfig | None:
    """Return the configuration of an image on the local docker daemon; None without the image or a response in 2 s.

    A remote daemon is not queried, because callers need the result at once.
    """
    if not docker_endpoint().startswith("unix://"):
        return None
    return _parse_inspect(reference, run_or_127(["docker", "image", "inspect", reference], timeout=_TIMEOUT_S))


def docker_config(docker: DockerCli, reference: str) -> ImageConfig | None:
    """Return the configuration of an image on the Docker host; None if the image does not exist."""
    return _parse_inspect(reference, docker.run("image", "inspect", reference))


def _parse_inspect(reference: str, result: CompletedProgram) -> ImageConfig | None:
    if not result.ok:
        return None
    try:
        [image] = parse_json(result.stdout)
        digest = next((name.partition("@")[2] for name in image.get("RepoDigests") or ()), "")
        return ImageConfig.of(reference, digest, image["Config"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
