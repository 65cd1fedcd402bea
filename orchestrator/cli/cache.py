"""`deploy cache ls`, `deploy cache clear`: the kernels that servers have compiled, kept between containers."""

from typing import Annotated

import typer

from orchestrator.cli.options import HostOption, Json
from orchestrator.core.console import note, out, out_json, say, table, warn


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Kernels that servers have compiled.")
    group.command("ls")(show)
    group.command()(clear)
    app.add_typer(group, name="cache")


def show(*, host: HostOption = None, json: Json = False) -> None:
    """List caches: one set of Docker volumes for each image and gfx."""
    import dataclasses

    from orchestrator.core.paths import Home
    from orchestrator.runtimes.docker.caches import caches
    from orchestrator.runtimes.docker.host import DockerHost

    found = caches(DockerHost(Home.from_environment(), host))
    if json:
        out_json([dataclasses.asdict(cache) for cache in found])
    elif found:
        rows = [(c.volume, c.image, c.arch, f"{c.size / 2**20:.1f} MiB", str(c.containers)) for c in found]
        out(table(("volume", "image", "gfx", "size", "containers"), rows))
    else:
        note("no caches; a server on a GPU makes one at its first start")


def clear(
    *,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="only the caches of this image; default: all")
    ] = None,
    host: HostOption = None,
) -> None:
    """Remove caches that no container uses. The next start compiles again; mends a truncated kernel or a stale lock."""
    from orchestrator.core.paths import Home
    from orchestrator.runtimes.docker.caches import caches, clear
    from orchestrator.runtimes.docker.host import DockerHost

    at = DockerHost(Home.from_environment(), host)
    for cache in caches(at):
        if image not in (None, cache.image):
            continue
        if clear(at, cache):
            say(f"removed `{cache.volume}`")
        else:
            warn(f"`{cache.volume}` is in use", hint="`deploy status` shows by whom; `deploy down` ends it")
