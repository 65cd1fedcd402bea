"""Free disk space, checked before a long download or build."""

import shutil
from pathlib import Path

from orchestrator.core.errors import HostError
from orchestrator.core.text import gb


def require_disk_space(directory: Path, needed: int, *, hint: str) -> None:
    """Raise HostError if the file system of an existing directory has less than `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise disk_full_error(str(directory), needed=needed, free=free, hint=hint)


def disk_full_error(location: str, *, needed: int, free: int, hint: str) -> HostError:
    """Return the error for a full disk; sizes are in bytes."""
    message = f"not enough disk space: {gb(needed)} needed, {gb(free)} free"
    return HostError(message, location=location, hint=f"free up space, or {hint}")
