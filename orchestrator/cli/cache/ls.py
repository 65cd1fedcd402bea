"""The command `deploy cache ls`."""

from orchestrator.cli.options import HostOption, Json
from orchestrator.core.console import note, print_data, print_json, table, terminal_width
from orchestrator.core.paths import Home
from orchestrator.runtimes.caches import caches


def command(*, host: HostOption = None, json: Json = False) -> None:
    """List caches: Docker volumes for each image and gfx, and patched copies of sglang for processes."""
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
