"""What a build leaves for the next step of a pipeline."""

import json
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.files import write_whole


def write_metadata(path: Path, metadata: Mapping[str, object]) -> None:
    """Write `metadata` as JSON, whole or not at all. Raises UsageError where the place cannot be written."""
    try:
        write_whole(path, json.dumps(metadata, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"`{path}` cannot be written: {error.strerror}") from error
