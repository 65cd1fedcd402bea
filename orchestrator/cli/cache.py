"""`deploy cache ls`, `deploy cache clear`: what starts have made for later ones: compiled kernels, patched copies."""

from typing import Annotated

import typer

from orchestrator.cli.options import HostOption, Json, image_name
from orchestrator.cli.typer_app import PREPARE, add, below
from orchestrator.core.console import note, print_data, print_json, say, table, terminal_width, warn


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    group = below(app, "cache", section=PREPARE, text="Caches that one start leaves for the next.")
    add(group, show, name="ls")
    add(group, clear)


def show(*, host: HostOption = None, json: Json = False) -> None:
    """List caches: Docker volumes for each image and gfx, and patched copies of sglang for processes."""
    from orchestrator.core.paths import Home
    from orchestrator.runtimes.caches import caches

    found = caches(Home.from_environment(), host)
    if json:
        print_json([cache.to_dict() for cache in found])
    elif found:
        rows = [
            (
                cache.kind,
                cache.place,
                " ".join(cache.made_for.values()),
                f"{cache.size / 2**20:.1f} MiB",
                ", ".join(cache.used_by),
            )
            for cache in found
        ]
        print_data(table(("cache", "place", "made for", "size", "used by"), rows, width=terminal_width()))
    else:
        note("no caches; a server on a GPU makes one at its first start")


def clear(
    *,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", callback=image_name, help="only the volumes of this image; default: all caches"),
    ] = None,
    host: HostOption = None,
) -> None:
    """Remove caches that nothing uses, such as a truncated kernel or a stale lock. The next start makes them again."""
    from orchestrator.core.paths import Home
    from orchestrator.runtimes.caches import caches

    for cache in caches(Home.from_environment(), host):
        if image not in (None, cache.made_for.get("image")):
            continue
        if cache.remove():
            say(f"removed `{cache.place}`")
        else:
            by = f" by `{'`, `'.join(cache.used_by)}`" if cache.used_by else ""
            warn(f"`{cache.place}` is in use{by}", hint="`deploy status` lists servers, `deploy down` ends one")
