"""The base image of a build: pulled if it is missing, and checked against its pin."""

import re
from typing import Final

from orchestrator.core.console import info, warn
from orchestrator.core.errors import BuildError
from orchestrator.core.text import parse_json
from orchestrator.images.client import DockerCli
from orchestrator.plan.plan import Engine
from orchestrator.render.dockerfile import base_reference

_NOT_FOUND: Final = re.compile(r"manifest unknown|not found|does not exist|repository name not known", re.IGNORECASE)
# Disk space for an image. An unpacked ROCm image has 75.3 GB (70.1 GiB, sgl-project/sglang#22037); the rest is an
# estimate for compressed layers during unpacking, and for the layers of a build.
IMAGE_BYTES: Final = 96 << 30
_PIN_HINT: Final = "name another image with `--base-image`, and pin it in the engine's file under profiles/engines/"


def ensure_base(docker: DockerCli, engine: Engine) -> str:
    """Return the id of the engine's base image, and pull it if it is missing.

    Raises BuildError if the image is not available or the registry does not respond.
    """
    reference = base_reference(engine)
    if image_id(docker, reference) is None:
        pull(docker, reference, "base image", hint=_PIN_HINT)
    _warn_of_moved_tag(docker, engine)
    if (base := image_id(docker, reference)) is None:
        message = f"base image `{reference}` was pulled but is missing on this Docker host"
        raise BuildError(message, hint="repeat the command: another program removed the image")
    return base


def image_id(docker: DockerCli, reference: str) -> str | None:
    """Return the id of an image on the Docker host; None if the image does not exist."""
    result = docker.run("image", "inspect", "--format", "{{.Id}}", reference)
    return result.stdout.strip() if result.ok else None


def pull(docker: DockerCli, reference: str, kind: str, *, hint: str) -> None:
    """Pull an image and show the progress.

    `kind` is the kind of image in messages; `hint` is the hint if the registry does not have the image. Raises
    BuildError if the pull fails.
    """
    info(f"{kind} `{reference}` is missing on this Docker host; pulling it")
    code, lines = docker.follow(["pull", reference], str, stage="pull")
    if code == 0:
        return
    last = lines[-1] if lines else ""
    if _NOT_FOUND.search(last):
        raise BuildError(f"{kind} `{reference}` does not exist in its registry", hint=hint, details=last)
    raise BuildError(
        f"cannot pull {kind} `{reference}`", details=last, hint=f"`docker pull {reference}` shows the cause"
    )


def known_digests(docker: DockerCli, reference: str) -> tuple[str, ...]:
    """Return the registry digests of an image on the Docker host, `name@sha256:…`; empty if it was built there."""
    result = docker.run("image", "inspect", "--format", "{{json .RepoDigests}}", reference)
    return tuple(parse_json(result.stdout) or ()) if result.ok else ()


def _warn_of_moved_tag(docker: DockerCli, engine: Engine) -> None:
    """Warn if the tag of a pinned image now points to another image. The pinned digest is used in any case."""
    if engine.image is None or engine.image_digest is None:
        return
    digests = known_digests(docker, engine.image)
    if digests and not any(digest.endswith(engine.image_digest) for digest in digests):
        warn(f"the tag `{engine.image}` has moved since it was pinned; using the pinned {engine.image_digest[:19]}…")
