"""How `deploy build` and `deploy inspect` show the receipt of an image."""

from orchestrator.core.console import table
from orchestrator.images.receipt import ImageReceipt


def receipt_text(receipt: ImageReceipt) -> str:
    """The receipt in a table: sources first, then one line a patch."""
    rows = [
        [name, source.version or "unknown", (source.commit or "unknown")[:12], source.root]
        if source
        else [name, "not in this image", "", ""]
        for name, source in receipt.sources
    ]
    patches = [[record.id, record.state, record.upstream] for record in receipt.patches]
    shown = table(["sources", "version", "commit", "place"], rows)
    return shown + "\n\n" + table(["patch", "state", "upstream"], patches) if patches else shown
