"""The sglang, aiter and torch of an image, located by the image's own Python. No server is started."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.errors import BuildError, PathNotFoundError
from orchestrator.core.paths import data_root
from orchestrator.core.text import parse_json
from orchestrator.images.client import DockerCli
from orchestrator.images.patch_check import inline_modules, python_in
from orchestrator.images.receipt import SourceRecord
from orchestrator.images.sources import program_paths

_PROGRAM: Final = data_root() / "images" / "image_facts.py"
# Messages of Docker clients 28.2 and 20.10; the last one is for a path below a file.
_NOT_FOUND: Final = re.compile(r"Could not find the file|No such container:path|: not a directory$")


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """The packages that an image's Python imports.

    `platform` is rocm, cuda or cpu, None if torch does not reveal it; `platform_evidence` is the line that names it.
    """

    sglang: SourceRecord
    aiter: SourceRecord | None
    platform: str | None
    platform_evidence: str


def read_facts(docker: DockerCli, image: str) -> ImageFacts:
    """Read the packages of an image on the Docker host. Raises BuildError if it has no Python or no sglang."""
    applier, reader = program_paths()
    result = python_in(docker, image, inline_modules(_PROGRAM, reader, applier))
    if not result.ok:
        raise BuildError(f"cannot read the packages of `{image}`", details=result.stderr.strip())
    facts = parse_json(result.stdout)
    if facts["sglang"] is None:
        hint = "expected an sglang image, in which `python3` can import sglang"
        raise BuildError(f"no sglang found in `{image}`", hint=hint)
    torch = facts["torch"] or {"platform": None, "evidence": ""}
    return ImageFacts(
        sglang=SourceRecord(**facts["sglang"]),
        aiter=facts["aiter"] and SourceRecord(**facts["aiter"]),
        platform=torch["platform"],
        platform_evidence=torch["evidence"],
    )


def copy_from_image(docker: DockerCli, image: str, path: str, folder: Path) -> None:
    """Copy a file or a directory from an image into `folder`, under its own name; a link is followed in the image.

    No process runs in the image. Raises PathNotFoundError without the path, BuildError if it cannot be read or written.
    """
    created = docker.run("create", "--entrypoint", "true", image)
    if not created.ok:
        raise BuildError(f"cannot create a container of `{image}`", details=created.stderr.strip())
    container = created.stdout.strip()
    try:
        copied = docker.run("cp", "--follow-link", f"{container}:{path}", str(folder))
    finally:
        docker.run("rm", "--force", container)
    if not copied.ok:
        reason = copied.stderr.strip()
        error_type = PathNotFoundError if _NOT_FOUND.search(reason) else BuildError
        raise error_type(f"cannot copy `{path}` from `{image}`", details=reason)
