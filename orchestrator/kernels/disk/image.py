"""Tables inside an image, copied from a container that is never started."""

import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.console import warn
from orchestrator.core.errors import KernelsError, PathNotFoundError, Problem
from orchestrator.images.base import image_id, known_digests
from orchestrator.images.client import DockerCli, find_docker
from orchestrator.images.facts import copy_from_image
from orchestrator.kernels.disk.files import require_readable, tables_below
from orchestrator.kernels.rows import RowOrigin, TunedRow, read_rows

_CONFIGS: Final = "aiter/configs"  # below aiter's sources
_NO_TABLES: Final = "correct `engine.aiter_dir`, or choose an image with aiter"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class ImageTables:
    """The tables of an image: rows in aiter's order, digest, and aiter commit."""

    rows: tuple[TunedRow, ...]
    files: int
    digest: str
    aiter_commit: str | None  # None: no git directory in the image


def read_image(image: str, aiter_dir: str, remote: str | None = None) -> ImageTables:
    """Read the tables of `image` with aiter's sources in `aiter_dir`; `remote` (`ssh://user@host`) names its host.

    Raises HostError without a Docker engine, KernelsError if the image is missing or has no tables, BuildError if it
    cannot be read.
    """
    docker = find_docker(remote)
    digest = _digest(docker, image)
    none = f"no tuned fused-MoE table found in `{image}` under `{aiter_dir}/{_CONFIGS}`"
    with tempfile.TemporaryDirectory(prefix="deploy-tables-") as name:
        folder = Path(name)
        head = folder / "HEAD"
        try:
            copy_from_image(docker, image, f"{aiter_dir}/{_CONFIGS}", folder)
        except PathNotFoundError as error:
            raise KernelsError(none, details=error.details, hint=_NO_TABLES) from error
        with suppress(PathNotFoundError):  # no git directory
            copy_from_image(docker, image, f"{aiter_dir}/.git/HEAD", folder)
        below = tables_below(folder / "configs")
        if not (tables := [path for path in below if _is_copied(path, folder)]):
            raise KernelsError(none, hint=_NO_TABLES)
        for path in (path for path in below if path not in tables):
            warn(f"`{image}`: `{path.relative_to(folder)}` links to a file outside `{_CONFIGS}`; its rows are not read")
        rows = tuple(_rows(tables, folder))
        commit = _COMMIT.fullmatch(_text(head).strip()) if _is_copied(head, folder) else None  # detached in images
    return ImageTables(rows=rows, files=len(tables), digest=digest, aiter_commit=commit and commit[0])


def read_digest(image: str) -> str:
    """Return the digest of `image`. Raises the errors of `read_image`."""
    return _digest(find_docker(), image)


def _digest(docker: DockerCli, image: str) -> str:
    """Return the registry's digest of a pulled image, else the engine's id."""
    if (local := image_id(docker, image)) is None:
        hint = f"`docker pull {image}`, or pass copies of its tables with `--table`"
        raise KernelsError(f"no image `{image}` found", hint=hint)
    return next((name.rpartition("@")[2] for name in known_digests(docker, image)), local)


def _rows(tables: Iterable[Path], folder: Path) -> list[TunedRow]:
    problems: list[Problem] = []
    rows: list[TunedRow] = []
    for path in tables:
        lines, name = _text(path).splitlines(keepends=True), str(path.relative_to(folder))
        rows += read_rows(lines, name=name, origin=RowOrigin.IMAGE, problems=problems)
    require_readable(problems)
    return rows


def _is_copied(path: Path, folder: Path) -> bool:
    """Return whether a path resolves to a file in the copied folder; a symlink may point to a file on this host."""
    file = Path(os.path.realpath(path))  # `resolve` fails on circular links (Python before 3.13)
    return file.is_relative_to(os.path.realpath(folder)) and file.is_file()


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")
