"""`deploy cache ls`, `deploy cache clear`: what starts have made for later ones: compiled kernels, patched copies."""

from typing import Annotated

import typer

from orchestrator.cli.grammar import PREPARE, add, below
from orchestrator.cli.options import HostOption, Json
from orchestrator.core.console import note, out, out_json, say, table, warn


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    group = below(app, "cache", section=PREPARE, text="What starts have made for later ones.")
    add(group, show, name="ls")
    add(group, clear)


def show(*, host: HostOption = None, json: Json = False) -> None:
    """List caches: Docker volumes for each image and gfx, and patched copies of sglang for processes."""
    from orchestrator.commands.caches import cached
    from orchestrator.core.paths import Home

    found = cached(Home.from_environment(), host)
    if json:
        out_json(found.to_dict())
        return
    if found.volumes:
        rows = [(c.volume, c.image, c.arch, f"{c.size / 2**20:.1f} MiB", str(c.containers)) for c in found.volumes]
        out(table(("volume", "image", "gfx", "size", "containers"), rows))
    if found.copies:
        copied = [
            (
                str(c.folder),
                c.version or "not whole",
                ", ".join(c.patches),
                f"{c.size / 2**20:.1f} MiB",
                ", ".join(c.servers),
            )
            for c in found.copies
        ]
        out(table(("patched copy", "sglang", "patches", "size", "servers"), copied))
    if not found.volumes and not found.copies:
        note("no caches; a server on a GPU makes one at its first start")


def clear(
    *,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="only the volumes of this image; default: all caches")
    ] = None,
    host: HostOption = None,
) -> None:
    """Remove caches that nothing uses. The next start makes them again; mends a truncated kernel or a stale lock."""
    from orchestrator.commands.caches import cached
    from orchestrator.core.paths import Home
    from orchestrator.runtimes.docker.caches import clear
    from orchestrator.runtimes.docker.host import DockerHost
    from orchestrator.runtimes.process.copies import remove

    home = Home.from_environment()
    found = cached(home, host)
    at = DockerHost(home, host)
    for cache in found.volumes:
        if image not in (None, cache.image):
            continue
        if clear(at, cache):
            say(f"removed `{cache.volume}`")
        else:
            warn(f"`{cache.volume}` is in use", hint="`deploy status` shows by whom; `deploy down` ends it")
    for copy in found.copies if image is None else ():
        if copy.servers:
            warn(f"`{copy.folder}` is in use by `{copy.servers[0]}`", hint=f"`deploy down {copy.servers[0]}` ends it")
        else:
            remove(copy)
            say(f"removed `{copy.folder}`")
