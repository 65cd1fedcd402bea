"""The log of a container: read, followed through restarts, and kept when the container goes."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Final

from docker.errors import NotFound
from docker.models.containers import Container

from orchestrator.core.errors import HostError
from orchestrator.core.files import move, open_new
from orchestrator.core.logs.lines import Lines, coalesce, complete_lines, redacted
from orchestrator.core.polling import poll_until
from orchestrator.runtimes.base import LOG

_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{9}Z\Z")
_PAUSE: Final = 0.2  # seconds between two looks at a container that is between two runs
_SETTLED: Final = 10.0  # seconds after which a run that still goes on has not ended: only its stream has


def container_log(container: Container, since: float | None = None) -> Iterator[str]:
    """What the container has written so far, `since` a moment (Unix time), secrets removed."""
    return _lines(container, follow=False, since=since)


def follow_log(container: Container, since: float | None = None) -> Iterator[str]:
    """What the container writes, secrets removed, until it has ended for good: Docker ends a stream at every restart.

    Raises HostError where the stream ends and the run goes on, as when the daemon restarts and leaves containers alone.
    """
    while True:
        run = container.attrs["State"]["StartedAt"]
        yield from _lines(container, follow=True, since=since)
        if not _runs_again(container, run):
            return
        # What a run writes first is older than its recorded start, and younger than the end of the run before it.
        since = datetime.fromisoformat(container.attrs["State"]["FinishedAt"]).timestamp()


class ContainerTail:
    """The new lines of a container's log, at each call; Docker is asked for what is younger than the last one seen.

    So the log is sent once, however often it is looked at, and one that Docker rotates meanwhile goes on.
    """

    def __init__(self, container: Callable[[], Container | None]) -> None:
        """`container` looks it up; None where it is gone, which has no new lines."""
        self._container = container
        self._seen = ""  # stamp of the last line, as the daemon writes it: such text sorts by time

    def __call__(self) -> Iterator[str]:
        """The lines written since the last call."""
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
    """Keep the log, redacted, in the run directory. Raises OSError."""
    unfinished = run_dir / f"{LOG}.new"
    with open_new(unfinished) as file:
        file.writelines(line.encode() for line in redacted(coalesce(container.logs(stream=True, follow=False))))
    move(unfinished, run_dir / LOG)


def _runs_again(container: Container, run: str) -> bool:
    """Wait until Docker has noticed the end of `run`, and then until it has decided: another run (true), or none."""

    def look() -> tuple[str, str]:
        try:
            container.reload()
        except NotFound:
            return "removed", ""
        return container.attrs["State"]["Status"], container.attrs["State"]["StartedAt"]

    goes_on = ("running", run)
    if poll_until(lambda seen: seen != goes_on, look, within=_SETTLED, pause=_PAUSE) == goes_on:
        hint = "ask for it again: the daemon was restarted?"
        raise HostError("the log was cut off while the server runs on", hint=hint)
    status, _ = poll_until(lambda seen: seen[0] != "restarting", look, within=inf, pause=_PAUSE)
    return status == "running"


def _lines(container: Container, *, follow: bool, since: float | None) -> Iterator[str]:
    pieces = container.logs(stream=True, follow=follow, since=since)  # a line each
    return Lines(redacted(pieces if follow else coalesce(pieces)))
