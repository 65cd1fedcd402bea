"""The base image: it has to be there, and to be the one that was meant, before anything is built."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from orchestrator.core.console import Progress, say, warn
from orchestrator.core.errors import BuildError
from orchestrator.core.text import parse_json
from orchestrator.images.client import DockerCli
from orchestrator.images.registry import Registry
from orchestrator.plan.plan import Engine
from orchestrator.render.dockerfile import base_reference, repository

_GONE: Final = re.compile(r"manifest unknown|not found|does not exist|repository name not known", re.IGNORECASE)
# An unpacked ROCm image has 75.3 GB (70.1 GiB, sgl-project/sglang#22037). The rest is our estimate of what compressed
# layers take while they are unpacked, and of the layers of a build.
IMAGE_BYTES: Final = 96 << 30
_MIRROR: Final = Registry(within=10.0)  # seconds that a further name may take to answer
_PIN: Final = "name another with `--base-image`, and pin it in the engine's file under profiles/engines/"


def ensure_base(docker: DockerCli, engine: Engine) -> str:
    """The id of the engine's base image, pulled where it is missing.

    One that is gone is looked for under the engine's other names; where its digest is pinned, the one that has the same
    content is named. Raises BuildError where it cannot be had: it vanished from its registry, or that does not answer.
    """
    reference = base_reference(engine)
    if image_id(docker, reference) is None:
        try:
            _pull_one(docker, reference, () if engine.image_digest else engine.image_fallbacks)
        except _GoneError as error:
            if mirror := _same_elsewhere(engine):
                error.hint = f"`--set engine.image={mirror}` has it, by the same digest"
            raise
    _warn_of_moved_tag(docker, engine)
    found = image_id(docker, reference)
    if found is None:
        raise BuildError(f"base image `{reference}` was pulled, and is not there")
    return found


def image_id(docker: DockerCli, reference: str) -> str | None:
    """The id of an image on the docker host, None where there is none."""
    found = docker.run("image", "inspect", "--format", "{{.Id}}", reference)
    return found.stdout.strip() if found.ok else None


class _GoneError(BuildError):
    """The registry has no such image (any more)."""


def _pull_one(docker: DockerCli, reference: str, fallbacks: Sequence[str]) -> None:
    """Pull an image, or the first of its fallbacks that is there, under its name: what is in it is told by content."""
    try:
        pull(docker, reference, "base image", hint=_PIN)
    except _GoneError:
        for other in fallbacks:
            with suppress(BuildError):
                pull(docker, other, "base image", hint=_PIN)
                docker.run("tag", other, reference)
                warn(
                    f"base image `{reference}` is gone; `{other}` takes its place and its name on this docker host",
                    hint="which patches it needs is told by its content; its version and its aiter are checked",
                )
                return
        raise


def _same_elsewhere(engine: Engine, registry: Registry = _MIRROR) -> str | None:
    """The first repository of the engine's other names that has the pinned digest; a registry is asked, not pulled."""
    for other in map(repository, engine.image_fallbacks if engine.image_digest else ()):
        with suppress(BuildError):
            registry.config(f"{other}@{engine.image_digest}")
            return other
    return None


def pull(docker: DockerCli, reference: str, what: str, *, hint: str) -> None:
    """Pull an image, `what` it is in words; `hint` is for one that its registry does not have. Raises BuildError."""
    say(f"{what} `{reference}` is not on this docker host: pulling it")
    progress, lines = Progress(), []

    def show(line: str) -> None:
        lines.append(line)
        progress.update(line, stage="pull")

    code = docker.stream(["pull", reference], line=show)
    progress.done()
    if code == 0:
        return
    last = lines[-1] if lines else ""
    if _GONE.search(last):
        raise _GoneError(f"{what} `{reference}` does not exist in its registry (any more)", hint=hint, details=last)
    raise BuildError(f"{what} `{reference}` cannot be pulled", details=last, hint="is its registry reachable?")


def known_digests(docker: DockerCli, reference: str) -> tuple[str, ...]:
    """The digests that registries know an image on the docker host by, `name@sha256:…`; none for one built there."""
    found = docker.run("image", "inspect", "--format", "{{json .RepoDigests}}", reference)
    return tuple(parse_json(found.stdout) or ()) if found.ok else ()


def _warn_of_moved_tag(docker: DockerCli, engine: Engine) -> None:
    """Say so where the tag a digest was pinned from has come to mean another image; the digest is what counts."""
    if engine.image is None or engine.image_digest is None:
        return
    digests = known_digests(docker, engine.image)
    if digests and not any(digest.endswith(engine.image_digest) for digest in digests):
        warn(f"the tag `{engine.image}` has moved since it was pinned; the pinned {engine.image_digest[:19]}… is used")
