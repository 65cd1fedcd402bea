"""The command `deploy cache clear`."""

from typing import Annotated

import typer

from orchestrator.cli.options import HostOption, image_name
from orchestrator.core.console import say, warn
from orchestrator.core.paths import Home
from orchestrator.runtimes.caches import caches


def command(
    *,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", callback=image_name, help="only the volumes of this image; default: all caches"),
    ] = None,
    host: HostOption = None,
) -> None:
    """Remove caches that nothing uses, such as a truncated kernel or a stale lock. The next start makes them again."""
    for cache in caches(Home.from_environment(), host):
        if image not in (None, cache.made_for.get("image")):
            continue
        if cache.remove():
            say(f"removed `{cache.place}`")
        else:
            by = f" by `{'`, `'.join(cache.used_by)}`" if cache.used_by else ""
            warn(f"`{cache.place}` is in use{by}", hint="`deploy status` lists servers, `deploy down` ends one")
