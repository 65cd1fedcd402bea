"""What a shell offers where a name is asked for. It offers nothing rather than fail: nobody reads an error there."""

from collections.abc import Callable
from contextlib import suppress


def names_of(kind: str) -> Callable[[str], list[str]]:
    """The names of a `Kind` of part that begin so."""

    def offer(incomplete: str) -> list[str]:
        from orchestrator.core.catalogue import Catalogue, Kind

        with suppress(Exception):
            return [name for name in Catalogue.from_environment().names(Kind[kind]) if name.startswith(incomplete)]
        return []

    return offer


def server_names(incomplete: str) -> list[str]:
    """The servers of this home that have run; a far machine is not asked."""
    from orchestrator.commands.runs import known_names
    from orchestrator.core.paths import Home

    with suppress(Exception):
        return [name for name in known_names(Home.from_environment()) if name.startswith(incomplete)]
    return []
