"""The base image: it has to be there, and to be the one that was meant, before anything is built."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from orchestrator.core.console import Progress, say, warn
from orchestrator.core.errors import BuildError
from orchestrator.core.text import parse_json
from orchestrator.images.client import Docker
from orchestrator.plan import Engine
from orchestrator.render import base_reference

_GONE: Final = re.compile(r"manifest unknown|not found|does not exist|repository name not known", re.IGNORECASE)


def ensure_base(docker: Docker, engine: Engine) -> str:
    """The id of the engine's base image, pulled where it is missing.

    One that is gone is looked for under the engine's other names, unless its digest is pinned. Raises BuildError where
    it cannot be had: it vanished from its registry, or the registry does not answer.
    """
    reference = base_reference(engine)
    if image_id(docker, reference) is None:
        _pull_one(docker, reference, () if engine.image_digest else engine.image_fallbacks)
    _warn_of_moved_tag(docker, engine)
    found = image_id(docker, reference)
    if found is None:
        raise BuildError(f"base image `{reference}` was pulled, and is not there")
    return found


def image_id(docker: Docker, reference: str) -> str | None:
    """The id of an image on the docker host, None where there is none."""
    found = docker.run("image", "inspect", "--format", "{{.Id}}", reference)
    return found.stdout.strip() if found.ok else None


class _GoneError(BuildError):
    """The registry has no such image (any more)."""


def _pull_one(docker: Docker, reference: str, fallbacks: Sequence[str]) -> None:
    """Pull an image, or the first of its fallbacks that is there, under its name: what is in it is told by content."""
    try:
        _pull(docker, reference)
    except _GoneError:
        for other in fallbacks:
            with suppress(BuildError):
                _pull(docker, other)
                docker.run("tag", other, reference)
                warn(
                    f"base image `{reference}` is gone; `{other}` takes its place and its name on this docker host",
                    hint="which patches it needs is told by its content; its version and its aiter are checked",
                )
                return
        raise


def _pull(docker: Docker, reference: str) -> None:
    say(f"base image `{reference}` is not on this docker host: pulling it")
    progress, lines = Progress(), []

    def show(line: str) -> None:
        lines.append(line)
        progress.update(line)

    code = docker.stream(["pull", reference], line=show)
    progress.done()
    if code == 0:
        return
    last = lines[-1] if lines else ""
    if _GONE.search(last):
        raise _GoneError(
            f"base image `{reference}` does not exist in its registry (any more)",
            hint="name another with `--base-image`, and pin it in the engine's file under profiles/engines/",
            details=last,
        )
    raise BuildError(f"base image `{reference}` cannot be pulled", details=last, hint="is its registry reachable?")


def _warn_of_moved_tag(docker: Docker, engine: Engine) -> None:
    """Say so where the tag a digest was pinned from has come to mean another image; the digest is what counts."""
    if engine.image is None or engine.image_digest is None:
        return
    found = docker.run("image", "inspect", "--format", "{{json .RepoDigests}}", engine.image)
    digests = parse_json(found.stdout) if found.ok else []
    if digests and not any(digest.endswith(engine.image_digest) for digest in digests):
        warn(f"the tag `{engine.image}` has moved since it was pinned; the pinned {engine.image_digest[:19]}… is used")
