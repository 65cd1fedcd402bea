"""The command `deploy inspect`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.checkpoints.view import CheckpointView, view_checkpoint
from orchestrator.cli.options import HostOption, Json
from orchestrator.core.console import note, print_data, table, terminal_width, warn
from orchestrator.core.json_output import JsonOutput, fields_of
from orchestrator.images.receipt import ImageReceipt, receipt_in
from orchestrator.images.registry import read_config


@dataclass(frozen=True, kw_only=True)
class ImageOutput:
    """An image; `digest` is that of its registry, null if no registry has it."""

    digest: str | None
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class BuiltImageOutput(ImageReceipt, ImageOutput):
    """An image built by `deploy build`, with its receipt."""


OUTPUT: Final = JsonOutput[BuiltImageOutput | ImageOutput | CheckpointView](
    BuiltImageOutput, ImageOutput, CheckpointView
)


def command(
    image: Annotated[
        str, typer.Argument(metavar="IMAGE|DIR", help="image on the host or in its registry, or checkpoint")
    ],
    *,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Show what an image or a checkpoint contains. An image need not be pulled first.

    For an image: its environment, its sources and the state of each patch, with evidence and hashes. For a checkpoint:
    how its tensors are stored. Exits with 4 if they do not match its `config.json`.
    """
    if Path(image).is_dir():
        _inspect_checkpoint(Path(image), json=json)
        return

    config = read_config(image, host)
    receipt = receipt_in(config.labels, image)
    if json:
        output = ImageOutput(digest=config.digest or None, environment=config.engine_env)
        OUTPUT.show(BuiltImageOutput(**fields_of(output), **fields_of(receipt)) if receipt else output)
        return
    print_data(table(["variable", "value"], config.engine_env.items(), width=terminal_width()))
    if receipt is None:
        note(f"`{image}` has no receipt; only images built by `deploy build` have one")
        return
    print_data("\n" + receipt.to_text())
    for record in receipt.patches:
        print_data(f"\n{record.id}: {record.state} ({record.upstream})\n  {record.title}")
        for line in record.evidence:
            print_data(f"  {line}")
        for file in record.files:
            print_data(f"  {file.path}\n    sha256 {file.before or '(none)'} -> {file.after}")


def _inspect_checkpoint(directory: Path, *, json: bool) -> None:
    view = view_checkpoint(directory.absolute())
    OUTPUT.show_or_print(view, lambda: view.to_text(width=terminal_width()), json=json)
    for difference in view.mismatches:
        if not difference.fatal or difference.sglang:
            warn(difference.message, hint=difference.hint)
    view.require()
