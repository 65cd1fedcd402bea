"""The baseline of a site's network: `preflight --save-baseline` records it, `--baseline` compares with it."""

from pathlib import Path
from typing import Final

from pydantic import Field

from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.validation import StrictModel, Text, read_model

SHARE: Final = 0.95  # of the recorded figure: less is reported; two runs on a quiet fabric differ by 1 to 2 %


class FabricBaseline(StrictModel):
    """The figures of one run between nodes of a site; it may be compared with a run between other nodes."""

    firmware: dict[Text, list[Text]] = Field(default={}, description="versions of each NIC")
    write_gbits: dict[Text, float] = Field(default={}, description="Gb/s of each NIC, the lowest of all pairs of nodes")
    all_reduce_gbytes: dict[Text, float] = Field(default={}, description="bus bandwidth by size, GB/s by bytes")
    ranks: int = Field(ge=1, description="ranks of the all-reduce")


def read_baseline(path: Path) -> FabricBaseline:
    """Read a baseline. Raises UsageError with every problem and its line."""
    try:
        return read_model(path, FabricBaseline, str(path))
    except ProfileError as error:
        raise UsageError(error.message, location=error.location, hint=error.hint, problems=error.problems) from error


def save_baseline(path: Path, found: FabricBaseline) -> None:
    """Write a baseline. Raises OSError."""
    atomic_write(path, found.model_dump_json(indent=2) + "\n")
