"""The command `deploy patches ls`."""

from typing import Final

from orchestrator.cli.options import Json
from orchestrator.core.console import table, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.patches.ledger import read_ledger
from orchestrator.patches.schema import Patch

OUTPUT: Final = JsonOutput(tuple[Patch, ...])


def command(*, json: Json = False) -> None:
    """List patches and their upstream fixes."""
    ledger = read_ledger()
    rows = [[p.id, p.apply.kind, p.applies.engine or "every", p.upstream.reference, p.title] for p in ledger]
    header = ["patch", "kind", "sglang", "upstream", "what it does"]
    OUTPUT.show_or_print(ledger, lambda: table(header, rows, width=terminal_width()), json=json)
