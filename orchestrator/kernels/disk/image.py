"""Tables inside an image, read from a temporary container that is never started."""

import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.core.errors import HostError, KernelsError, Problem
from orchestrator.hosts.daemon import docker_endpoint
from orchestrator.hosts.ssh import SshHost, Tunnel
from orchestrator.kernels.disk.files import require_readable
from orchestrator.kernels.rows import RowOrigin, TunedRow, read_rows

if TYPE_CHECKING:  # the SDK takes 0.2 s to import, and every dry run imports this module
    import docker
    from docker.models.containers import Container

_CONFIGS = "aiter/configs"  # below aiter's sources; tuned_fmoe.csv and model_configs/*tuned_fmoe*.csv (jit/core.py)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class ImageTables:
    """Tables of an image: its rows in aiter's order, its digest, the commit of its aiter."""

    rows: tuple[TunedRow, ...]
    files: int
    digest: str
    aiter_commit: str | None  # None: no git directory in the image


def read_image(image: str, aiter_dir: str, remote: str | None = None) -> ImageTables:
    """Read the tables of `image` with aiter's sources in `aiter_dir`; `remote` (`ssh://user@host`) names its host.

    Raises HostError without a Docker engine, KernelsError if the image is missing or has no tables.
    """
    with _engine(image, remote) as engine, _temporary_container(engine, image) as container:
        files = dict(_csv_files(container, f"{aiter_dir}/{_CONFIGS}"))
        commit = _commit(container, aiter_dir)
        digest = _image_digest(engine, image)
    if not files:
        raise KernelsError(f"no tuned fused-MoE table found in `{image}` under `{aiter_dir}/{_CONFIGS}`")
    return ImageTables(rows=tuple(_rows(files)), files=len(files), digest=digest, aiter_commit=commit)


def tables_below(configs: Path) -> tuple[Path, ...]:
    """Return the tables in aiter's `configs` that aiter reads without `AITER_CONFIG_FMOE`, the general one first."""
    found = (path for path in configs.rglob("*.csv") if _is_read_by_aiter(PurePosixPath(path)))
    return tuple(sorted(found, key=lambda path: (len(path.parts), path)))


def read_digest(image: str) -> str:
    """Return the digest of `image`. Raises as `read_image`."""
    with _engine(image, None) as engine:
        return _image_digest(engine, image)


@contextmanager
def _engine(image: str, remote: str | None) -> "Iterator[docker.DockerClient]":
    from docker.errors import DockerException, ImageNotFound  # noqa: PLC0415 - see above

    try:
        with (
            closing(Tunnel.open(SshHost.parse(remote))) if remote else nullcontext() as tunnel,
            closing(_client(tunnel.docker_url if tunnel else docker_endpoint())) as client,
        ):
            yield client
    except ImageNotFound as error:
        raise KernelsError(
            f"no image `{image}` found",
            hint=f"`docker pull {image}`, or pass copies of its tables with `--table`",
        ) from error
    except DockerException as error:
        raise HostError(f"cannot reach the Docker engine: {error}", hint="`docker info`") from error


def _client(url: str) -> "docker.DockerClient":
    import docker  # noqa: PLC0415 - see above

    return docker.from_env(environment={**os.environ, "DOCKER_HOST": url})


@contextmanager
def _temporary_container(client: "docker.DockerClient", image: str) -> "Iterator[Container]":
    container = client.containers.create(image, command=["true"])
    try:
        yield container
    finally:
        container.remove(force=True)


def _csv_files(container: "Container", folder: str) -> Iterator[tuple[str, str]]:
    """Yield the tables that aiter reads without `AITER_CONFIG_FMOE`, as (path, text), the general one first."""
    found = {}
    for name, content in _archive(container, folder):
        path = PurePosixPath(name)
        if _is_read_by_aiter(path):
            found[path] = content.decode(errors="replace")
    for path in sorted(found, key=lambda path: (len(path.parts), path)):
        yield str(path), found[path]


def _is_read_by_aiter(path: PurePosixPath) -> bool:
    if path.parent.name == "model_configs":
        return path.match("*tuned_fmoe*.csv") and "untuned" not in path.name
    return path.name == "tuned_fmoe.csv"


def _rows(files: dict[str, str]) -> Iterable[TunedRow]:
    problems: list[Problem] = []
    rows = [
        row
        for name, text in files.items()
        for row in read_rows(io.StringIO(text, newline=""), name=name, origin=RowOrigin.IMAGE, problems=problems)
    ]
    require_readable(problems)
    return rows


def _commit(container: "Container", aiter_dir: str) -> str | None:
    """Return the commit of the sources; HEAD is detached in images."""
    for _, content in _archive(container, f"{aiter_dir}/.git/HEAD"):
        if match := _COMMIT.fullmatch(content.decode(errors="replace").strip()):
            return match[0]
    return None


def _archive(container: "Container", path: str) -> Iterator[tuple[str, bytes]]:
    from docker.errors import NotFound  # noqa: PLC0415 - see above

    try:
        stream, _ = container.get_archive(path)
    except NotFound:
        return
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        for member in archive:
            if file := archive.extractfile(member):
                yield member.name, file.read()


def _image_digest(client: "docker.DockerClient", image: str) -> str:
    """Return the registry's digest of a pulled image, else the engine's id."""
    attributes = client.images.get(image).attrs
    pulled = attributes.get("RepoDigests") or []
    return str(pulled[0]).partition("@")[2] if pulled else str(attributes["Id"])
