"""The log of a container: reading it, also while it grows, and saving it before the container is removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.files import move, open_new
from orchestrator.core.logs.lines import Lines, coalesce, complete_lines, redacted
from orchestrator.runtimes.base import LOG

if TYPE_CHECKING:
    from docker.models.containers import Container

_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{9}Z\Z")


def container_log(container: Container) -> Lines:
    """Return the container's log so far, without secrets."""
    return Lines(redacted(coalesce(container.logs(stream=True, follow=False))))


class ContainerTail:
    """The new lines of a container's log at each call. Each request asks Docker for lines after the last one seen.

    So the log is transferred once, however often it is polled, and rotation by Docker loses no lines.
    """

    def __init__(self, container: Callable[[], Container | None]) -> None:
        """Follow a container. `container` returns it, or None after its removal, which means no new lines."""
        self._container = container
        self._seen = ""  # timestamp of the last line in the daemon's format, which sorts by time

    def __call__(self) -> Iterator[str]:
        """Yield the lines written since the last call."""
        if (container := self._container()) is None:
            return
        before = self._seen
        since = datetime.fromisoformat(f"{before[:26]}+00:00").timestamp() if before else None
        pieces = container.logs(stream=True, follow=False, timestamps=True, since=since)
        for line in Lines(complete_lines(pieces)):
            stamp, _, text = line.partition(" ")
            if not _STAMP.match(stamp):  # the rest of a line with a carriage return
                stamp, text = self._seen, line
            if stamp > before and text:
                self._seen = max(self._seen, stamp)
                yield text


def save_log(container: Container, run_dir: Path) -> None:
    """Save the redacted log in the run directory. Raises OSError."""
    unfinished = run_dir / f"{LOG}.new"
    with open_new(unfinished) as file:
        file.writelines(block.encode() for block in container_log(container).blocks)
    move(unfinished, run_dir / LOG)
