"""The command `deploy prune`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import typer

from orchestrator.cli.options import HostOption, Json, NameOrAllArgument
from orchestrator.core.console import info
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.runtimes.caches import PrunedCache, caches_text, prune_caches
from orchestrator.servers.prune import OldRun, parse_older_than, prune, prune_text
from orchestrator.servers.servers import open_servers

_KEEP: Final = 10
_AGE: Final = "30d"


@dataclass(frozen=True, kw_only=True)
class PrunedRuns:
    """Old runs, removed or kept; with `dry_run` none was removed."""

    dry_run: bool
    runs: tuple[OldRun, ...]


@dataclass(frozen=True, kw_only=True)
class PrunedCaches:
    """With `--caches`: caches, removed or kept; with `dry_run` none was removed."""

    dry_run: bool
    caches: tuple[PrunedCache, ...]


OUTPUT: Final = JsonOutput[PrunedRuns | PrunedCaches](PrunedRuns, PrunedCaches)


def command(
    name: NameOrAllArgument = None,
    *,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="newest runs to keep per server")] = _KEEP,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="remove only older runs: 30d, 12h or 2026-11-22")
    ] = _AGE,
    caches: Annotated[
        bool, typer.Option("--caches", help="remove caches instead: compiled kernels, patched copies of sglang")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would be removed, and stop")] = False,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Remove old run directories or caches. Running servers and the last known good runs stay.

    With `--caches`, remove every cache that no server uses, with any truncated kernels and stale locks in it. The next
    start creates the caches again, which takes longer.
    """
    if caches:
        if name is not None or (keep, older_than) != (_KEEP, _AGE):
            raise UsageError(
                "`--caches` accepts no NAME and no age: it removes every unused cache", hint="`deploy prune --caches`"
            )
        removed = prune_caches(Home.from_environment(), host, dry_run=dry_run)
        if json:
            OUTPUT.show(PrunedCaches(dry_run=dry_run, caches=removed))
        else:
            info(caches_text(removed, dry_run=dry_run))
        return
    since = parse_older_than(older_than, datetime.now().astimezone())
    with open_servers(Home.from_environment(), host, name=name) as servers:
        pruned = prune(servers, name, keep=keep, since=since, dry_run=dry_run)
    if json:
        OUTPUT.show(PrunedRuns(dry_run=dry_run, runs=pruned))
    else:
        info(prune_text(pruned, dry_run=dry_run))
