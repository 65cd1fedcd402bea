"""The log of a container: reading, following through restarts, and saving it before the container is removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import HostError
from orchestrator.core.files import move, open_new
from orchestrator.core.logs.lines import Lines, coalesce, complete_lines, redacted
from orchestrator.core.polling import poll_until
from orchestrator.runtimes.base import LOG
from orchestrator.runtimes.docker.sdk import docker

if TYPE_CHECKING:
    from docker.models.containers import Container

_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{9}Z\Z")
_INTERVAL: Final = 0.2  # seconds between two polls of a container between two runs
_SETTLED: Final = 10.0  # seconds after which a run that continues has not ended: only its log stream has


def container_log(container: Container, since: float | None = None, *, follow: bool = False) -> Iterator[str]:
    """Return the container's log so far, or with `follow` of this run, without secrets. `since` is Unix time."""
    pieces = container.logs(stream=True, follow=follow, since=since)  # one line each
    return Lines(redacted(pieces if follow else coalesce(pieces)))


def follow_log(container: Container) -> Iterator[str]:
    """Yield the container's log without secrets until it has exited for good; Docker ends a stream at every restart.

    Raises HostError if the stream ends and the run continues, as when the daemon restarts and leaves containers
    running.
    """
    since = None
    while True:
        run = container.attrs["State"]["StartedAt"]
        yield from container_log(container, since, follow=True)
        if not _runs_again(container, run):
            return
        # A run may write its first lines before its recorded start, but always after the end of the previous run.
        since = datetime.fromisoformat(container.attrs["State"]["FinishedAt"]).timestamp()


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
        file.writelines(line.encode() for line in redacted(coalesce(container.logs(stream=True, follow=False))))
    move(unfinished, run_dir / LOG)


def _runs_again(container: Container, run: str) -> bool:
    """Wait until Docker has ended `run` and may have restarted it. Return True if another run begins."""

    def probe() -> tuple[str, str]:
        try:
            container.reload()
        except docker.errors.NotFound:
            return "removed", ""
        return container.attrs["State"]["Status"], container.attrs["State"]["StartedAt"]

    goes_on = ("running", run)
    if poll_until(lambda result: result != goes_on, probe, timeout=_SETTLED, interval=_INTERVAL) == goes_on:
        hint = "repeat the command; the daemon may have been restarted"
        raise HostError("the log stream ended while the server is running", hint=hint)
    status, _ = poll_until(lambda result: result[0] != "restarting", probe, timeout=inf, interval=_INTERVAL)
    return status == "running"
