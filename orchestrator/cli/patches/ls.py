"""The command `deploy patches ls`."""

from orchestrator.cli.options import Json
from orchestrator.core.console import print_data, print_json, table, terminal_width
from orchestrator.patches.ledger import read_ledger


def command(*, json: Json = False) -> None:
    """List patches and their upstream fixes."""
    ledger = read_ledger()
    if json:
        print_json([patch.model_dump(mode="json") for patch in ledger])
        return
    rows = [[p.id, p.apply.kind, p.applies.engine or "every", p.upstream.reference, p.title] for p in ledger]
    print_data(table(["patch", "kind", "sglang", "upstream", "what it does"], rows, width=terminal_width()))
