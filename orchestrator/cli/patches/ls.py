"""The command `deploy patches ls`."""

from typing import Final

from orchestrator.cli.options import Json
from orchestrator.core.console import print_data, table, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.patches.ledger import read_ledger
from orchestrator.patches.schema import Patch

OUTPUT: Final = JsonOutput(tuple[Patch, ...])


def command(*, json: Json = False) -> None:
    """List patches and their upstream fixes."""
    ledger = read_ledger()
    if json:
        OUTPUT.show(tuple(ledger))
        return
    rows = [[p.id, p.apply.kind, p.applies.engine or "every", p.upstream.reference, p.title] for p in ledger]
    print_data(table(["patch", "kind", "sglang", "upstream", "what it does"], rows, width=terminal_width()))
