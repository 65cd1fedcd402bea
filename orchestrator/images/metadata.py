"""What a build leaves for the next step of a pipeline."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import UsageError


def write_metadata(path: Path, metadata: Mapping[str, object]) -> None:
    """Write `metadata` as JSON, whole or not at all. Raises UsageError where the place cannot be written."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            file.write(json.dumps(metadata, indent=2) + "\n")
        Path(file.name).replace(path)
    except OSError as error:
        raise UsageError(f"`{path}` cannot be written: {error.strerror}") from error
